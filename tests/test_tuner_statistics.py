"""Intervals cover what they claim, and repeats narrow nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.statistics import clustered_mean, half_width, ratio_interval

STUDIES = 2000


def uneven_times(rng: np.random.Generator, prompts: int, noise: float, outliers: float) -> np.ndarray:
    """[2, prompts] times of two arms that are equally fast: lognormal lengths, noise by arm, some far off."""
    work = rng.lognormal(0, 0.85, prompts)
    times = work * rng.lognormal(0, noise, (2, prompts))
    return times * np.where(rng.random((2, prompts)) < outliers, 3.0, 1.0)


@pytest.mark.parametrize("outliers", [0.0, 0.05])
@pytest.mark.parametrize("prompts", [7, 12, 40, 72])
def test_ratio_interval_covers_the_truth(prompts: int, outliers: float) -> None:
    rng, covered, above = np.random.default_rng(3), 0, 0
    for _ in range(STUDIES):
        interval = ratio_interval(*uneven_times(rng, prompts, 0.05, outliers), "measured")
        covered += interval.low <= 1.0 <= interval.high
        above += interval.low > 1.0
    share = covered / STUDIES
    print(f"\n{prompts} prompts, {outliers:.0%} outliers: covers in {share:.1%}, too high in {above / STUDIES:.1%}")
    assert 0.95 <= share <= 0.99
    assert above / STUDIES <= 0.03, "a gain is claimed where there is none"


def test_the_percentile_bootstrap_would_not_cover() -> None:
    """Negative control, and the reason for the jackknife."""
    rng, covered = np.random.default_rng(3), 0
    for _ in range(STUDIES):
        top, bottom = uneven_times(rng, 12, 0.05, 0.0)
        drawn = rng.integers(0, 12, (400, 12))
        low, high = np.percentile(top[drawn].sum(axis=1) / bottom[drawn].sum(axis=1), [2.5, 97.5])
        covered += low <= 1.0 <= high
    print(f"\npercentile bootstrap, 12 prompts: covers in {covered / STUDIES:.1%}")
    assert covered / STUDIES < 0.91


def test_a_ratio_is_that_of_the_totals_and_turns_over() -> None:
    top, bottom = uneven_times(np.random.default_rng(0), 20, 0.1, 0.0)
    there, back = ratio_interval(top, bottom, "measured"), ratio_interval(bottom, top, "measured")
    assert there.median == pytest.approx(top.sum() / bottom.sum()) and there.prompts == 20
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    alike = ratio_interval(top, top / 2, "measured")
    assert (alike.low, alike.median, alike.high) == pytest.approx((2.0, 2.0, 2.0)), "no spread, no width"


def test_one_long_prompt_is_little_evidence() -> None:
    """The spread of the times is the same; where one prompt carries the total the interval is far wider."""
    without = np.random.default_rng(0).normal(0, 1, 20)
    even = half_width(without, np.ones(20))
    assert half_width(without, np.array([1.0] * 19 + [100.0])) > 5 * even


def test_clustered_interval_covers_the_truth() -> None:
    rng, covered = np.random.default_rng(4), 0
    for _ in range(STUDIES):
        lengths = rng.integers(5, 40, 50)
        prompt_of = np.repeat(np.arange(50), lengths)
        values = 0.5 + (rng.normal(0, 0.2, 50).clip(-0.4, 0.4))[prompt_of] + rng.uniform(-0.1, 0.1, len(prompt_of))
        _, low, high = clustered_mean(values, prompt_of, 1.0)
        covered += low <= 0.5 <= high
    assert 0.93 <= covered / STUDIES <= 0.97


def test_repeats_of_a_prompt_do_not_narrow_an_interval() -> None:
    rng = np.random.default_rng(5)
    values, prompt_of = rng.uniform(0, 1, 30), np.arange(30)
    once = clustered_mean(values, prompt_of, 1.0)
    often = clustered_mean(np.tile(values, 50), np.tile(prompt_of, 50), 1.0)
    assert often == pytest.approx(once, rel=1e-9)


def test_means_at_a_bound_stay_uncertain() -> None:
    """Thirty prompts that were always right do not prove that the next one will be."""
    prompt_of = np.repeat(np.arange(30), 4)
    mean, low, high = clustered_mean(np.ones(120), prompt_of, 1.0)
    assert (mean, high) == (1.0, 1.0) and low == pytest.approx(0.025 ** (1 / 30))
    assert clustered_mean(np.zeros(120), prompt_of, 4.0) == pytest.approx((0.0, 0.0, 4 * (1 - low)))
    assert clustered_mean(np.array([1.0, 2.0]), np.zeros(2, dtype=np.int64), 4.0) == (1.5, 0.0, 4.0), "one prompt"
