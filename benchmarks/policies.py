"""The policies that exactness is shown on: chains, narrow and wide trees, one node, early stops, adaptive ones."""

from __future__ import annotations

from typing import get_args

import numpy as np

from profiles.config import GridConfig
from profiles.growth import GO_ON, GrowthTree
from profiles.measurement import PASS_KINDS, CostTable, HostTime, PassTime
from profiles.policy import HistorySpec, PolicySource, SignalKind, SignalSpec, Tier
from runtime.decode import OFF
from tuner.outcomes import Record
from tuner.space import edges_at
from tuner.yardsticks.single import static_policy


def _tier(depth: int, width: int, nodes: int, stop: float = 0.0) -> Tier:
    return Tier(depth=depth, width=width, nodes=nodes, stop=stop)


def exactness_policies(record: Record) -> list[PolicySource]:
    """More than twenty policies within depth 6 and widths 1 to 3, edges at quantiles of the recorded signals."""
    fixed = [_tier(d, 1, d) for d in range(1, 7)]
    fixed += [_tier(1, 2, 1), _tier(1, 3, 3), _tier(2, 2, 4), _tier(2, 3, 7), _tier(3, 2, 6), _tier(3, 3, 12)]
    fixed += [_tier(5, 2, 11), _tier(5, 3, 15), _tier(6, 2, 15), _tier(6, 3, 15), _tier(6, 3, 6)]
    fixed += [_tier(6, 1, 6, stop=0.5), _tier(6, 2, 15, stop=0.2), _tier(6, 3, 15, stop=0.05)]
    named = [static_policy("plain", OFF)] + [static_policy(f"tier {tier.label()}", tier) for tier in fixed]
    ladder = (_tier(6, 1, 6), _tier(5, 2, 9), _tier(3, 3, 11), _tier(1, 3, 3))
    for kind in get_args(SignalKind):
        signal = SignalSpec.model_validate({"kind": kind, "top_k": 10})
        edges = _edges(record, signal, 4)
        named.append(PolicySource(name=f"{kind}, 4 bins", signal=signal, edges=edges, tiers=ladder[: len(edges) + 1]))
        lagged = signal.model_copy(update={"lag": 1})
        named.append(PolicySource(name=f"{kind}, lag 1", signal=lagged, edges=edges, tiers=ladder[: len(edges) + 1]))
    entropy = SignalSpec()
    edges = _edges(record, entropy, 2)
    for window, step in ((1, 2), (4, 1), (10, 3)):
        history = HistorySpec(window=window, low=1.0, high=2.0, step=step, hysteresis=0.25, max_depth=6)
        named.append(
            PolicySource(
                name=f"history {window}", signal=entropy, edges=edges, tiers=ladder[: len(edges) + 1], history=history
            )
        )
    smooth = entropy.model_copy(update={"smoothing": 0.5})
    named.append(PolicySource(name="entropy, smoothed", signal=smooth, edges=edges, tiers=ladder[: len(edges) + 1]))
    stops, keep = (0.1, 0.3, 0.4, 0.4, 0.5), (0.05, 0.05, 0.1, 0.1, 0.2, 0.3)
    gated = Tier(depth=6, width=2, nodes=15, stops=stops, keep=keep)
    named.append(static_policy("gates by level", gated))
    named.append(PolicySource(name="growth tree", tiers=(_tier(6, 2, 15),), growth=GROWTH))
    named.append(
        PolicySource(
            name="growth tree in bins", signal=entropy, edges=edges, tiers=ladder[: len(edges) + 1], growth=GROWTH
        )
    )
    margins = [rule for rule in record.manifest.rules if rule.kind == "margin"]
    named += [
        static_policy(
            "margin rule",
            Tier(depth=6, width=rule.width, nodes=15, rule=rule.model_copy(update={"width": 1})),
        )
        for rule in margins
    ]
    off = Tier(depth=0, nodes=0)
    named.append(PolicySource(name="off when unsure", signal=entropy, edges=edges, tiers=(ladder[0], off)))
    return named


GROWTH = GrowthTree(
    features=("level", "best", "mass", "target_entropy", "lead"),
    thresholds=(2.5, -0.71, 0.52, 0.117, 0.83),
    left=(1, -1, 3, -3, -5),
    right=(2, -2, 4, -4, -6),
    leaves=(4, GO_ON, 6, 10, 8, GO_ON),
)
"""A tree that asks of every kind: the level, scores, their sum, and the target's own signal."""


def _edges(record: Record, signal: SignalSpec, bins: int) -> tuple[float, ...]:
    return edges_at(record.signal(signal.kind, signal.top_k), np.linspace(0, 1, bins + 1)[1:-1])


def made_up_costs(grid: GridConfig, contexts: tuple[int, int]) -> CostTable:
    """A complete table of plausible, invented times, for benchmarks that are not about time."""
    sizes = {"plain": (1,), "verify": grid.verify_sizes, "catch_up": (1, 2), "frontier": grid.widths}
    base_ns = {"plain": 1.5e6, "verify": 1.5e6, "catch_up": 3e5, "frontier": 2e5}
    passes = tuple(
        PassTime(kind=kind, n=n, context=c, time_ns=base_ns[kind] * (1 + n / 50), p10_ns=1, p90_ns=1e9, samples=1)
        for kind in PASS_KINDS
        for n in sizes[kind]
        for c in contexts
    )
    host = HostTime(plain_ns=5e4, round_ns=1e5, level_ns=5e4, rounds=1)
    return CostTable(mark="estimated", threads=1, passes=passes, host=host)
