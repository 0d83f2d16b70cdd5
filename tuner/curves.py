"""Entropy-acceptance curves: what a signal says about the rounds that follow it, with intervals by prompt."""

from __future__ import annotations

from typing import get_args

import numpy as np

from profiles.measurement import Curve, CurvePoint
from profiles.policy import SignalKind, SignalSpec, Tier
from tuner.outcomes import Record
from tuner.statistics import clustered_mean, rank_correlation

BINS = 8
TOP_K = SignalSpec().top_k
"""k of the entropies that curves show."""
RESAMPLES = 500


def reference_tier(record: Record) -> Tier:
    """The tier whose acceptance the curves show: the deepest chain on record."""
    depth = record.manifest.depth
    return Tier(depth=depth, width=1, nodes=depth)


def acceptance_curves(record: Record) -> list[Curve]:
    """One curve per signal and modality (and `all`), in bins of equal position counts."""
    modality_of = np.array([s.modality for s in record.samples])[record.sample_of]
    groups = [("all", np.ones(record.positions, dtype=np.bool_))]
    groups += [(name, modality_of == name) for name in sorted(set(modality_of.tolist()))]
    if len(groups) == 2:
        groups = groups[1:]
    return [_curve(record, signal, name, mine) for signal in get_args(SignalKind) for name, mine in groups]


def _curve(record: Record, signal: SignalKind, modality: str, mine: np.ndarray) -> Curve:
    tier = reference_tier(record)
    values = record.signal(signal, TOP_K)[mine]
    accepted = record.outcome(tier).accepted[mine].astype(np.float64)
    hit = (record.column("true_rank") == 0)[mine].astype(np.float64)
    prompt_of = record.sample_of[mine]
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)))
    if len(edges) < 2:
        edges = np.array([edges[0], edges[0]])
    bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    points = []
    for i in range(len(edges) - 1):
        inside = bins == i
        if not inside.any():
            continue
        top1, top1_low, top1_high = clustered_mean(hit[inside], prompt_of[inside], RESAMPLES)
        mean, low, high = clustered_mean(accepted[inside], prompt_of[inside], RESAMPLES)
        points.append(
            CurvePoint(
                low_edge=float(edges[i]),
                high_edge=float(edges[i + 1]),
                positions=int(inside.sum()),
                signal_mean=float(values[inside].mean()),
                top1_acceptance=top1,
                top1_low=top1_low,
                top1_high=top1_high,
                accepted_mean=mean,
                accepted_low=low,
                accepted_high=high,
            )
        )
    return Curve(
        signal=signal,
        modality=modality,
        reference_tier=tier.label(),
        rank_correlation=rank_correlation(values, accepted),
        points=tuple(points),
    )
