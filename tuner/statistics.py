"""Intervals over prompts. Repeats of a prompt never narrow one: a prompt is one observation, however often run."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from profiles.measurement import Interval, Mark

Floats = npt.NDArray[np.float64]


def ratio_interval(numerator: Floats, denominator: Floats, mark: Mark, resamples: int, seed: int = 0) -> Interval:
    """Ratio of totals with its 95 % interval, prompts resampled in pairs (percentile bootstrap).

    `numerator` and `denominator` are times per prompt, [prompts]; a speedup has plain decoding on top. The
    ratio of totals weighs a prompt by its tokens, which is what a user pays for.
    """
    prompts = len(numerator)
    drawn = np.random.default_rng(seed).integers(0, prompts, size=(resamples, prompts))
    ratios = numerator[drawn].sum(axis=1) / denominator[drawn].sum(axis=1)
    low, median, high = np.percentile(ratios, [2.5, 50, 97.5])
    return Interval(
        median=float(median),
        low=float(low),
        high=float(high),
        mark=mark,
        prompts=prompts,
    )


def clustered_mean(
    values: Floats, prompt_of: npt.NDArray[np.int64], resamples: int, seed: int = 0
) -> tuple[float, float, float]:
    """Mean over positions with its 95 % interval, whole prompts resampled. Returns (mean, low, high)."""
    prompts, inverse = np.unique(prompt_of, return_inverse=True)
    sums = np.bincount(inverse, weights=values)
    counts = np.bincount(inverse).astype(np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(prompts), size=(resamples, len(prompts)))
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(values.mean()), float(low), float(high)


def rank_correlation(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> float:
    """Spearman's correlation with mean ranks for ties; 0.0 when either side is constant."""
    x, y = _ranks(a), _ranks(b)
    if x.std() == 0 or y.std() == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])


def _ranks(values: npt.NDArray[np.generic]) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2.0)[inverse]
    return ranks
