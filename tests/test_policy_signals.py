"""Signals are what their formulas say, stay in [0, 1] and rise with uncertainty."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.policy.signals import compute, entropy_nats

logits = st.lists(st.floats(-30, 30), min_size=10, max_size=10)


def _sorted_logprobs(values: list[float]) -> np.ndarray:
    x = np.sort(np.array(values))[::-1]
    return (x - x.max() - np.log(np.exp(x - x.max()).sum())).astype(np.float32)


@given(logits)
def test_entropy_is_that_of_the_renormalised_best_k(values: list[float]) -> None:
    logprobs = _sorted_logprobs(values)
    for k in (2, 5, 10):
        p = np.exp(logprobs[:k].astype(np.float64))
        p /= p.sum()
        expected = -sum(x * math.log(x) for x in p if x > 0) / math.log(k)
        assert compute("entropy", logprobs, k) == pytest.approx(min(max(expected, 0), 1), abs=1e-6)


@given(logits)
def test_every_signal_stays_in_the_unit_interval(values: list[float]) -> None:
    for kind in ("entropy", "one_minus_top1", "one_minus_margin"):
        assert 0.0 <= float(compute(kind, _sorted_logprobs(values), 10)) <= 1.0


def test_extremes() -> None:
    certain = np.array([0.0] + [-np.inf] * 9, np.float32)
    uniform = np.full(10, -math.log(10), np.float32)
    for kind in ("entropy", "one_minus_top1", "one_minus_margin"):
        assert float(compute(kind, certain, 10)) == pytest.approx(0.0, abs=1e-9)
    assert float(compute("entropy", uniform, 10)) == pytest.approx(1.0)
    assert float(compute("one_minus_top1", uniform, 10)) == pytest.approx(0.9)
    assert float(compute("one_minus_margin", uniform, 10)) == pytest.approx(1.0)


def test_entropy_refuses_too_few_candidates() -> None:
    with pytest.raises(ValueError, match="needs 10 log-probabilities, got 4"):
        compute("entropy", np.zeros(4, np.float32), 10)


def test_entropy_in_nats_counts_the_rest_as_one_token() -> None:
    p = np.exp(_sorted_logprobs(np.random.default_rng(0).normal(0.0, 3.0, 24).tolist()).astype(np.float64))
    whole = -float((p * np.log(p)).sum())
    for kept in (3, 10, 24):
        rest = 1.0 - p[:kept].sum()
        expected = -float((p[:kept] * np.log(p[:kept])).sum()) - (rest * math.log(rest) if rest > 1e-9 else 0.0)
        value = float(entropy_nats(np.log(p[:kept])))
        assert value == pytest.approx(expected, abs=1e-5) and value <= whole + 1e-5
    assert float(entropy_nats(np.array([0.0, -np.inf]))) == pytest.approx(0.0)
