"""Calibrated gates: how likely a drafted node really is accepted, and one price of time for all decisions.

The draft's path probabilities are overconfident, unevenly by level. On the tuning prompts the record says of every
candidate whether it lay on the output's path, so isotonic regression by level and signal bin turns a path score
into an acceptance probability. A node is worth verifying while that probability times the price of a token exceeds
the time of its slot; a level is worth drafting while the measured gain of going on, isotonic in the best score, is
positive. Both come out as gates by level, which is all the runtime sees. This is SMART's rule (arXiv 2604.09731:
expand while marginal benefit exceeds marginal cost) with measured probabilities in place of the draft's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.optimize import isotonic_regression

from profiles.config import GridConfig
from profiles.policy import DraftRule, PolicySource, SignalSpec, Tier, pool_size
from tuner.cost_model import Floats
from tuner.space import edges_at
from tuner.yardsticks.base import Arena, TablePolicy

CALIBRATED = "calibrated gates"
BINS = (1, 2, 4)
ITERATIONS = 4
_Bools = npt.NDArray[np.bool_]


def calibrated_policies(arena: Arena, on_fit: Callable[[], None] = lambda: None) -> list[TablePolicy]:
    """A policy per recorded beam and number of signal bins. `on_fit` is called `variants(arena.grid)` times."""
    found = []
    for width in arena.grid.widths:
        for bins in BINS:
            found.append(calibrated(arena, width, bins))
            on_fit()
    return found


def variants(grid: GridConfig) -> int:
    """Policies that `calibrated_policies` fits."""
    return len(grid.widths) * len(BINS)


def calibrated(arena: Arena, width: int, bins: int) -> TablePolicy:
    """Gates and price of time in turn, from the price of plain decoding; the best policy met on the way."""
    replay = arena.replay
    signal = SignalSpec(top_k=replay.record.default_top_k)
    values = replay.record.signal(signal.kind, signal.top_k)
    tuned = np.isin(replay.record.sample_of, arena.tune)
    edges = edges_at(values[tuned], np.arange(1, bins) / bins)
    members = [tuned & (np.searchsorted(edges, values, side="right") == i) for i in range(len(edges) + 1)]
    token_ns = float(replay.plain_time_ns(arena.tune).sum() / replay.walk_plain(arena.tune).tokens)
    best: tuple[float, TablePolicy] | None = None
    for _ in range(ITERATIONS):
        source = PolicySource(
            name=CALIBRATED,
            signal=signal if edges else SignalSpec(),
            edges=edges,
            tiers=tuple(_gated(arena, width, mine, token_ns) for mine in members),
            monotone=False,
        )
        policy = TablePolicy(CALIBRATED, source, arena)
        walk = policy.walk(arena.tune)
        speedup = arena.speedup(walk, arena.tune)
        if best is None or speedup > best[0]:
            best = (speedup, policy)
        token_ns = float(walk.time_ns.sum()) / walk.tokens
    assert best is not None
    return best[1]


def acceptance_calibration(scores: Floats, on_path: _Bools) -> tuple[Floats, Floats]:
    """Sorted scores and the isotonic estimate of the probability that a node of that score is on the path."""
    order = np.argsort(scores, kind="stable")
    fitted = isotonic_regression(on_path[order].astype(np.float64), increasing=True)
    return scores[order], np.asarray(fitted.x, dtype=np.float64)


def first_at_least(scores: Floats, fitted: Floats, bound: float) -> float:
    """The lowest score from which on `fitted`, which never falls, reaches `bound`; infinite where it never does."""
    place = int(np.searchsorted(fitted, bound, side="left"))
    return float(scores[place]) if place < len(scores) else math.inf


def _gated(arena: Arena, width: int, mine: _Bools, token_ns: float) -> Tier:
    """The tier whose gates are best for the positions `mine` [N] at this price."""
    replay, depth = arena.replay, arena.grid.depth
    record = replay.record
    draft = record.draft(DraftRule(width=width))
    slot_ns = _slot_ns(arena)
    nodes = max(min(arena.grid.max_nodes, pool_size(depth, width)), depth)
    keep = []
    for level in range(depth):
        scores = draft.scores[mine, level]
        alive = np.isfinite(scores)
        on_path = np.arange(scores.shape[1]) == draft.rank_in_level[mine, level, None]
        known, probability = acceptance_calibration(scores[alive].astype(np.float64), on_path[alive])
        keep.append(_gate(first_at_least(known, probability, slot_ns / token_ns)))
    at = np.nonzero(mine)[0]

    def ending(level: int) -> Floats:
        tier = Tier(depth=level, width=width, nodes=min(nodes, pool_size(level, width)), keep=tuple(keep[:level]))
        outcome = record.outcome(tier, arena.grid.verify_sizes)
        cost = replay.round_ns(outcome, arena.grid.verify_sizes) - token_ns * (outcome.accepted + 1)
        return (cost + replay.catch_up_ns[outcome.unseen, np.arange(record.positions)])[at]

    stops: list[float] = []
    value = ending(depth)
    for level in range(depth - 1, 0, -1):
        here = ending(level)
        best = draft.scores[at, level - 1, 0].astype(np.float64)
        order = np.argsort(best, kind="stable")
        gain = np.asarray(isotonic_regression((here - value)[order], increasing=True).x)
        gate = first_at_least(best[order], gain, 0.0)
        value = np.where(best >= gate, value, here)
        stops.insert(0, _gate(gate))
    return Tier(depth=depth, width=width, nodes=nodes, stops=tuple(stops), keep=tuple(keep))


def _gate(score: float) -> float:
    """A score as a gate on probabilities, on four digits so that it does not lie on a recorded value; 1 shuts it."""
    return min(float(f"{math.exp(score):.4g}"), 1.0) if math.isfinite(score) else 1.0


def _slot_ns(arena: Arena) -> float:
    """Mean time of one more verified node: the slope of verification passes over size, at the mean context."""
    sizes = np.array(arena.grid.verify_sizes)
    context = np.array([int(arena.replay.record.context.mean())])
    times = [float(arena.replay.costs.pass_ns("verify", int(size), context)[0]) for size in sizes]
    return max(float(np.polyfit(sizes, times, 1)[0]), 1.0)
