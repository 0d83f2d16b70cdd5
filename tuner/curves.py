"""Entropy-acceptance curves: what a signal says about the round that follows it, with intervals by prompts.

A curve is drawn for every signal over all positions, over those of each modality, over the early and the late
half of positions in the output, and over the thirds of context lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
import numpy.typing as npt

from profiles.measurement import Curve, CurvePart, CurvePoint
from profiles.policy import MAX_NODES, SignalKind, Tier, pool_size
from tuner.association import association, bins_of
from tuner.outcomes import Record
from tuner.statistics import Floats, Ints, clustered_mean

Bools = npt.NDArray[np.bool_]

BINS, PART_BINS = 8, 4
"""Bins of a curve over all positions, and over a part of them."""


def reference_tier(record: Record) -> Tier:
    """The tier whose acceptance the curves show: the deepest tree on record of the narrowest width, which is a
    chain unless width 1 was not recorded."""
    beams = [rule.width for rule in record.manifest.rules if rule.kind == "beam"]
    depth, width = record.manifest.depth, min(beams)
    return Tier(depth=depth, width=width, nodes=min(pool_size(depth, width), MAX_NODES))


def recorded_signals(record: Record) -> dict[str, Floats]:
    """[N] values of every kind of signal, by its name."""
    return {kind: record.signal(kind, record.default_top_k) for kind in get_args(SignalKind)}


def acceptance_curves(record: Record, signals: Mapping[str, Floats] | None = None) -> list[Curve]:
    """Curves of `signals` (name to [N] values; every recorded kind by default). A position where a signal is not
    known (NaN) is left out. Those over all positions come first, in the order of the signals."""
    signals = recorded_signals(record) if signals is None else signals
    tier = reference_tier(record)
    accepted, hit = record.outcome(tier).accepted, (record.column("true_rank") == 0).astype(np.float64)
    curves = []
    for part in _parts(record):
        for name, values in signals.items():
            mine = part.mine & np.isfinite(values)
            if mine.any():
                curves.append(_curve(name, part, tier, values[mine], accepted[mine], hit[mine], record.sample_of[mine]))
    return curves


@dataclass(frozen=True)
class _Part:
    """Positions [N] that a curve is drawn over, and what they are called."""

    mine: Bools
    modality: str
    name: CurvePart = "all"
    bounds: tuple[int, int] | None = None


def _parts(record: Record) -> Iterator[_Part]:
    everywhere = np.ones(record.positions, dtype=np.bool_)
    modality_of = np.array([s.modality for s in record.samples])[record.sample_of]
    modalities = sorted(set(modality_of.tolist()))
    everything = "all" if len(modalities) > 1 else modalities[0]
    yield _Part(everywhere, everything)
    if len(modalities) > 1:
        for modality in modalities:
            yield _Part(modality_of == modality, modality)
    position = np.arange(record.positions) - record.start[record.sample_of]
    halves: tuple[CurvePart, ...] = ("early", "late")
    thirds: tuple[CurvePart, ...] = ("short", "middle", "long")
    for axis, names in ((position, halves), (record.context, thirds)):
        share = bins_of(axis.astype(np.float64), len(names))
        if share.max() + 1 == len(names):  # else the axis has too few values to be cut
            for i, name in enumerate(names):
                mine = share == i
                yield _Part(mine, everything, name, (int(axis[mine].min()), int(axis[mine].max())))


def _curve(signal: str, part: _Part, tier: Tier, values: Floats, accepted: Ints, hit: Floats, prompt_of: Ints) -> Curve:
    found = association(values, accepted, prompt_of)
    bins = BINS if part.name == "all" else PART_BINS
    return Curve(
        signal=signal,
        modality=part.modality,
        part=part.name,
        bounds=part.bounds,
        reference_tier=tier.label(),
        rank_correlation=found.rank_correlation.median if found else 0.0,
        points=tuple(curve_points(values, accepted, hit, prompt_of, tier.depth, bins)),
        association=found,
    )


def curve_points(
    values: Floats, accepted: Ints, hit: Floats, prompt_of: Ints, depth: int, bins: int
) -> Iterator[CurvePoint]:
    """Acceptance by bins of equal position counts of a signal. All arguments [N]; `depth` bounds `accepted`."""
    bin_of = bins_of(values, bins)
    for i in range(int(bin_of.max()) + 1):
        mine = bin_of == i
        top1, top1_low, top1_high = clustered_mean(hit[mine], prompt_of[mine], 1.0)
        mean, low, high = clustered_mean(accepted[mine].astype(np.float64), prompt_of[mine], float(depth))
        yield CurvePoint(
            low_edge=float(values[mine].min()),
            high_edge=float(values[mine].max()),
            positions=int(mine.sum()),
            signal_mean=float(values[mine].mean()),
            top1_acceptance=top1,
            top1_low=top1_low,
            top1_high=top1_high,
            accepted_mean=mean,
            accepted_low=low,
            accepted_high=high,
        )
