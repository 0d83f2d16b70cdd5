"""Intervals cover what they claim, repeats narrow nothing, the winner is never luck."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.policy import PolicySource, Tier
from runtime.decode import OFF
from runtime.policy.compile import compile_policy
from tests.strategies import VERIFY_SIZES
from tuner.confirm import Arm, Comparison, winner
from tuner.statistics import clustered_mean, rank_correlation, ratio_interval


def test_ratio_interval_covers_the_truth() -> None:
    rng, covered = np.random.default_rng(3), 0
    for study in range(200):
        size = rng.lognormal(0, 0.5, 60)
        plain, policy = size * rng.lognormal(0, 0.1, 60), size / 1.8 * rng.lognormal(0, 0.1, 60)
        interval = ratio_interval(plain, policy, "measured", 400, seed=study)
        covered += interval.low <= 1.8 <= interval.high
    assert 0.89 <= covered / 200 <= 0.99


def test_clustered_interval_covers_the_truth() -> None:
    rng, covered = np.random.default_rng(4), 0
    for study in range(200):
        prompt_of = np.repeat(np.arange(50), 20)
        values = 0.6 + np.repeat(rng.normal(0, 0.2, 50), 20) + rng.normal(0, 0.3, 1000)
        _, low, high = clustered_mean(values, prompt_of, 400, seed=study)
        covered += low <= 0.6 <= high
    assert 0.89 <= covered / 200 <= 0.99


def test_repeats_of_a_prompt_do_not_narrow_an_interval() -> None:
    rng = np.random.default_rng(5)
    values, prompt_of = rng.normal(0, 1, 30), np.arange(30)
    once = clustered_mean(values, prompt_of, 2000)
    often = clustered_mean(np.tile(values, 50), np.tile(prompt_of, 50), 2000)
    assert often[2] - often[1] == pytest.approx(once[2] - once[1], rel=1e-9)


def test_rank_correlation() -> None:
    x = np.arange(50.0)
    assert rank_correlation(x, np.exp(x / 10)) == pytest.approx(1.0)
    assert rank_correlation(x, -(x**3)) == pytest.approx(-1.0)
    assert rank_correlation(x, np.ones(50)) == 0.0
    assert rank_correlation(np.array([1, 1, 2, 2]), np.array([1, 1, 2, 2])) == pytest.approx(1.0)


def comparison(times: dict[str, np.ndarray]) -> Comparison:
    tiers = {"plain": OFF}
    arms = []
    for name in times:
        source = PolicySource(name=name, tiers=(tiers.get(name, Tier(depth=2, nodes=2)),))
        arms.append(Arm(name, source, compile_policy(source, VERIFY_SIZES, 100)))
    listed = {name: list(t) for name, t in times.items()}
    return Comparison(arms, listed, listed, samples=list(range(40)))


def study(rng: np.random.Generator, gain: float, static: float = 1.8) -> dict[str, np.ndarray]:
    size = rng.lognormal(0, 0.5, 40)
    noise = {name: size * rng.lognormal(0, 0.05, 40) for name in ("plain", "static", "tuned 1", "tuned 2")}
    return {
        "plain": noise["plain"],
        "static": noise["static"] / static,
        "tuned 1": noise["tuned 1"] / (static * gain),
        "tuned 2": noise["tuned 2"] / (static * gain),
    }


def test_equal_policies_rarely_beat_the_static_tier() -> None:
    rng = np.random.default_rng(6)
    picked = [winner(comparison(study(rng, 1.0)), "static", ["tuned 1", "tuned 2"], 400)[0] for _ in range(100)]
    assert picked.count("static") >= 90


def test_a_planted_gain_is_found() -> None:
    rng = np.random.default_rng(7)
    picked = [winner(comparison(study(rng, 1.05)), "static", ["tuned 1", "tuned 2"], 400)[0] for _ in range(100)]
    assert picked.count("static") <= 5


def test_what_does_not_beat_plain_decoding_is_off() -> None:
    rng = np.random.default_rng(8)
    for _ in range(20):
        choice, reason, gain = winner(comparison(study(rng, 1.0, static=0.95)), "static", ["tuned 1"], 400)
        assert choice == "plain" and "does not pay" in reason and gain is not None


def test_the_static_tier_ships_when_nothing_adaptive_was_found() -> None:
    rng = np.random.default_rng(9)
    choice, _, gain = winner(comparison(study(rng, 1.0)), "static", [], 400)
    assert choice == "static" and gain is None
