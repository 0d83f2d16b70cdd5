"""The clock and the cost model recover what was planted and refuse what was not measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

from profiles.config import GridConfig, TimingConfig
from profiles.errors import EnvelopeError
from profiles.measurement import HostTime, PassTime
from profiles.policy import Tier
from runtime.records import StepRecord
from tests.fakes import fake_pair, fake_prompt
from tuner.costs import context_grid, cost_table, fit_host, measure_passes
from tuner.replay import CostModel
from tuner.timing import Budget, coefficient_of_variation, warm_up


def step(levels: int, host_ns: int) -> StepRecord:
    return StepRecord(0, 10, Tier(depth=0, nodes=0), 0.5, levels, 0, 0, 1, 1000, 5000, 6000 + host_ns)


def test_host_time_is_recovered_under_bursts_of_load() -> None:
    rng = np.random.default_rng(0)
    records = []
    for levels in [0, 1, 2, 4, 8] * 200:
        true = 40_000 if levels == 0 else 60_000 + 25_000 * levels
        burst = 5.0 if rng.random() < 0.2 else 1.0
        records.append(step(levels, int(true * burst * rng.lognormal(0, 0.03))))
    host = fit_host(records)
    assert host.plain_ns == pytest.approx(40_000, rel=0.05)
    assert host.round_ns + 4 * host.level_ns == pytest.approx(160_000, rel=0.05)
    assert host.level_ns == pytest.approx(25_000, rel=0.05)


def test_host_fit_needs_plain_rounds_and_two_depths() -> None:
    with pytest.raises(ValueError, match=r"got levels \[0, 3\]"):
        fit_host([step(0, 100), step(3, 100)])


def test_passes_of_every_size_and_context_are_measured() -> None:
    grid = GridConfig(depth=3, widths=(1, 3), verify_sizes=(1, 2, 4))
    timing = TimingConfig(samples=5, warmup_max=5)
    shares: list[float] = []
    samples = measure_passes(fake_pair(), fake_prompt(1, 9), grid, timing, [7, 12], shares.append)
    table = cost_table(samples, HostTime(plain_ns=1, round_ns=1, level_ns=1, rounds=3), threads=1)
    assert table.sizes("target") == [1, 2, 4] and table.sizes("draft") == [1, 2, 3]
    assert table.contexts() == [7, 12]
    assert min(p.samples for p in table.passes if p.model == "target") >= 5
    assert shares[-1] == 1.0 and shares == sorted(shares)


def test_contexts_are_interpolated_sizes_are_not() -> None:
    passes = [
        PassTime(model=m, n=n, context=c, median_ns=100.0 * n + c, p10_ns=1, p90_ns=1e3, samples=5)
        for m in ("draft", "target")
        for n in (1, 2)
        for c in (10, 30)
    ]
    table = cost_table({}, HostTime(plain_ns=0, round_ns=0, level_ns=0, rounds=1), 1)
    model = CostModel(table.model_copy(update={"passes": tuple(passes)}))
    assert model.pass_ns("target", 2, np.array([10, 20, 30])).tolist() == [210.0, 220.0, 230.0]
    with pytest.raises(EnvelopeError, match="target passes of 3 tokens were not measured"):
        model.pass_ns("target", 3, np.array([10]))
    with pytest.raises(EnvelopeError, match=r"contexts 9\.\.31 leave the measured 10\.\.30"):
        model.pass_ns("draft", 1, np.array([9, 31]))


def test_context_grid_spans_the_record() -> None:
    assert context_grid(58, 200, 3) == [58, 129, 200]
    assert context_grid(10, 10, 3) == [10, 11, 12]


def test_warm_up_waits_for_a_drifting_clock() -> None:
    """A machine that speeds up for thirty samples is not measured before it has settled."""
    times = iter([100 * math.exp(-i / 6) + 10 for i in range(200)])
    config = TimingConfig(warmup_cv=0.05, warmup_max=100)
    assert 25 <= warm_up(lambda: next(times), config) < 60
    steady = iter([10.0] * 100)
    assert warm_up(lambda: next(steady), config) == 8
    noisy = iter(range(1, 1000))
    assert warm_up(lambda: float(next(noisy) % 7), config) == 100, "the cap ends a warm-up that never settles"


def test_coefficient_of_variation() -> None:
    assert coefficient_of_variation([5.0]) == math.inf
    assert coefficient_of_variation([5.0, 5.0]) == 0.0


def test_budget() -> None:
    assert not Budget(None).expired and Budget(None).left_s == math.inf
    assert Budget(0.0).expired and Budget(0.0).left_s == 0.0
