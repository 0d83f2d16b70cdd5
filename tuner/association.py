"""How much a signal says about acceptance: rank correlation and mutual information, with intervals by prompts.

Everything is computed from one count table per prompt, [signal bin, accepted]: leaving a prompt out is a
subtraction, so the jackknife of `tuner.statistics` costs no second pass over the positions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from profiles.measurement import Association, Interval
from tuner.statistics import Floats, Ints, half_width

RANK_BINS = 256
"""Bins of the rank correlation; a signal with fewer values is exact."""
INFORMATION_BINS = 8
"""Bins of the mutual information, of equal counts. Finer bins show more chance and hardly more signal."""
SHIFTS = 99
"""Signals of other positions that chance is judged by."""
FEWEST_PROMPTS = 3
"""Prompts that an interval needs."""


def association(signal: Floats, accepted: Ints, prompt_of: Ints) -> Association | None:
    """Association of a signal [N] with `accepted` [N]; None where fewer than three prompts contribute.

    Mutual information of counts is never negative, so even a signal of nothing seems to say a little, and more
    where positions of a prompt are alike. How much is seen by giving every position the signal of another one: all
    signals shifted along the record, which leaves prompts and their order as they are. Their mean is subtracted.
    """
    if len(np.unique(prompt_of)) < FEWEST_PROMPTS:
        return None
    fine = count_tables(bins_of(signal, RANK_BINS), accepted, prompt_of)
    codes = bins_of(signal, INFORMATION_BINS)
    tables = count_tables(codes, accepted, prompt_of)
    total = tables.sum(axis=0)
    shifts = (np.arange(1, SHIFTS + 1) * len(codes)) // (SHIFTS + 1)
    levels = total.shape[1]
    chance = mutual_information(
        np.stack([np.bincount(np.roll(codes, by) * levels + accepted, minlength=total.size) for by in shifts])
        .reshape(SHIFTS, *total.shape)
        .astype(np.float64)
    )
    by_chance, entropy = float(chance.mean()), float(entropy_nats(total.sum(axis=0)))
    return Association(
        rank_correlation=_interval(fine, rank_correlation, 0.0, (-1.0, 1.0)),
        information_nats=_interval(tables, mutual_information, by_chance, (0.0, np.inf)),
        share=_interval(tables, _share, by_chance / entropy if entropy else 0.0, (0.0, 1.0)),
        entropy_nats=entropy,
        chance_nats=max(float(np.quantile(chance, 0.95)) - by_chance, 0.0),
    )


def bins_of(values: Floats, count: int) -> Ints:
    """[N] bin of every value, in at most `count` bins of equal counts, none empty; equal values share a bin."""
    distinct, codes = np.unique(values, return_inverse=True)
    if len(distinct) > count:
        edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])
        _, codes = np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)
    return codes


def count_tables(codes: Ints, accepted: Ints, prompt_of: Ints) -> Floats:
    """[prompts, bins, levels] positions of every prompt by signal bin and accepted tokens."""
    _, cluster = np.unique(prompt_of, return_inverse=True)
    shape = int(cluster.max()) + 1, int(codes.max()) + 1, int(accepted.max()) + 1
    flat = (cluster * shape[1] + codes) * shape[2] + accepted
    return np.bincount(flat, minlength=shape[0] * shape[1] * shape[2]).reshape(shape).astype(np.float64)


def rank_correlation(table: Floats) -> Floats:
    """[...] Spearman's correlation of a count table [..., bins, levels], mean ranks for ties; 0 where one side is
    constant."""
    rows, columns = table.sum(axis=-1), table.sum(axis=-2)
    x, y = _centred_ranks(rows), _centred_ranks(columns)
    product = np.einsum("...ba,...b,...a->...", table, x, y)
    spread = np.sqrt((rows * x**2).sum(axis=-1) * (columns * y**2).sum(axis=-1))
    correlation: Floats = np.divide(product, spread, out=np.zeros_like(product), where=spread > 0)
    return correlation


def mutual_information(table: Floats) -> Floats:
    """[...] mutual information in nats of a count table [..., bins, levels], as counted."""
    joint = table.reshape(*table.shape[:-2], -1)
    information: Floats = entropy_nats(table.sum(axis=-1)) + entropy_nats(table.sum(axis=-2)) - entropy_nats(joint)
    return information


def entropy_nats(counts: Floats) -> Floats:
    """[...] entropy of counts [..., values]."""
    share = counts / counts.sum(axis=-1, keepdims=True)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    entropy: Floats = -(share * logs).sum(axis=-1)
    return entropy


def _share(table: Floats) -> Floats:
    entropy = entropy_nats(table.sum(axis=-2))
    share: Floats = np.divide(mutual_information(table), entropy, out=np.zeros_like(entropy), where=entropy > 0)
    return share


def _centred_ranks(counts: Floats) -> Floats:
    """[..., values] mean rank of every value, the mean of all subtracted."""
    ranks = np.cumsum(counts, axis=-1) - counts / 2
    centred: Floats = ranks - (ranks * counts).sum(axis=-1, keepdims=True) / counts.sum(axis=-1, keepdims=True)
    return centred


def _interval(
    tables: Floats, statistic: Callable[[Floats], Floats], by_chance: float, bounds: tuple[float, float]
) -> Interval:
    total = tables.sum(axis=0)
    value = float(statistic(total)) - by_chance
    width = half_width(statistic(total - tables), tables.sum(axis=(1, 2)))
    return Interval(
        median=float(np.clip(value, *bounds)),
        low=float(np.clip(value - width, *bounds)),
        high=float(np.clip(value + width, *bounds)),
        mark="replayed",
        prompts=len(tables),
    )
