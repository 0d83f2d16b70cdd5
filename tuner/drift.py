"""Drift: what production counts, against what the report prompts showed when the policy was tuned.

Workload drift is another signal, another acceptance, or contexts beyond the tuned ones. Machine drift is another time
of the same passes: every pass is held against what the cost table charges for its kind, size and context, so another
mix of sizes is no machine drift. Intervals are over requests; a difference of two has the interval of Zou and Donner
(2008, Statistics in Medicine 27, MOVER).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from profiles.counters import SIGNAL_BINS, Counters, Snapshot, summed
from profiles.errors import EnvelopeError
from profiles.measurement import CostTable, Interval, PassKind
from profiles.policy import CompiledPolicy
from runtime.counters import signal_bin
from tuner.cost_model import CostModel
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.statistics import Floats, rate_interval

Verdict = Literal["same", "moved", "open"]
Group = Literal["workload", "machine"]
TARGET: tuple[PassKind, ...] = ("plain", "verify")
AS_CHARGED = Interval(median=1.0, low=1.0, high=1.0, mark="measured", prompts=1)
"""What a cost is compared with where the report prompts left none: the cost table itself."""


@dataclass(frozen=True)
class Change:
    """One statistic then and now. `low` and `high` are the ends of the change's interval."""

    name: str
    group: Group
    was: Interval
    now: Interval
    change: float
    low: float
    high: float
    relative: bool
    tolerance: float
    decides: bool = True
    """False for one that can raise an alarm but whose uncertainty leaves no verdict open."""

    @property
    def verdict(self) -> Verdict:
        """`moved` when the change is certainly beyond the tolerance, `same` when it is certainly within."""
        if self.low > self.tolerance or self.high < -self.tolerance:
            return "moved"
        return "same" if -self.tolerance <= self.low and self.high <= self.tolerance else "open"


@dataclass(frozen=True)
class Drift:
    """All changes, and what could not be compared."""

    changes: tuple[Change, ...]
    not_recorded: tuple[str, ...]
    requests: int

    def verdict(self, group: Group) -> Verdict | None:
        """Of one group; None when nothing of it could be compared."""
        found = [c for c in self.changes if c.group == group]
        if not found:
            return None
        if any(c.verdict == "moved" for c in found):
            return "moved"
        return "open" if any(c.verdict == "open" for c in found if c.decides) else "same"

    @property
    def exit_code(self) -> int:
        """0 no drift, 1 drift, 4 inconclusive."""
        found = [verdict for group in ("workload", "machine") if (verdict := self.verdict(group)) is not None]
        if "moved" in found:
            return 1
        return 4 if "open" in found or not found else 0

    def document(self) -> dict[str, object]:
        """The numbers for a script."""
        return {
            "requests": self.requests,
            "workload": self.verdict("workload") or "not recorded",
            "machine": self.verdict("machine") or "not recorded",
            "changes": [
                {
                    "name": c.name,
                    "group": c.group,
                    "verdict": c.verdict,
                    "was": c.was.median,
                    "now": c.now.median,
                    "change": c.change,
                    "low": c.low,
                    "high": c.high,
                    "relative": c.relative,
                    "tolerance": c.tolerance,
                }
                for c in self.changes
            ],
            "not_recorded": list(self.not_recorded),
        }


def snapshot(requests: Sequence[Counters], table: CostTable) -> Snapshot:
    """What the counters of requests show. An interval needs two requests that have something to say."""

    def rate(top: Floats, bottom: Floats) -> Interval | None:
        kept = bottom > 0
        return rate_interval(top[kept], bottom[kept], "measured") if kept.sum() >= 2 else None

    def column(name: str) -> Floats:
        return np.array([getattr(c, name) for c in requests], dtype=np.float64)

    total = summed(requests)
    positions = []
    for depth in range(len(total.reached)):
        found = rate(_at(requests, "accepted_at", depth), _at(requests, "reached", depth))
        if found is None:
            break
        positions.append(found)
    signals = np.array([sum(c.signal_counts) for c in requests], dtype=np.float64)
    spent = np.array([_spent(c, CostModel(table)) for c in requests]).reshape(-1, 3, 2)
    costs = [rate(spent[:, part, 0], spent[:, part, 1]) for part in range(3)]
    return Snapshot(
        counters=total,
        acceptance=rate(column("accepted"), column("drafts")),
        accepted_at=tuple(positions),
        signal=rate(column("signal_sum"), signals),
        outside_hull=rate(column("outside_hull"), column("rounds")),
        target_cost=costs[0],
        draft_cost=costs[1],
        round_cost=costs[2],
    )


def compare_snapshots(base: Snapshot | None, now: Snapshot, tolerance: float, signal_tolerance: float) -> Drift:
    """Then against now. Without `base` only costs can be compared, with the cost table itself."""
    changes: list[Change] = []
    missing: list[str] = []

    def then(field: str) -> Interval | None:
        found: Interval | None = getattr(base, field) if base else None
        return found

    def add(name: str, group: Group, was: Interval | None, here: Interval | None, **how: bool) -> None:
        relative, decides = how.get("relative", True), how.get("decides", True)
        if here is None:
            return
        if was is None or (relative and was.median <= 0):
            missing.append(name)
            return
        allowed = tolerance if relative else signal_tolerance
        changes.append(_change(name, group, was, here, relative, allowed, decides))

    add("draft tokens accepted per draft", "workload", then("acceptance"), now.acceptance)
    add("mean signal", "workload", then("signal"), now.signal, relative=False)
    add("rounds outside the tuned contexts", "workload", then("outside_hull"), now.outside_hull, relative=False)
    for depth, here in enumerate(now.accepted_at):
        was = base.accepted_at[depth] if base and depth < len(base.accepted_at) else None
        add(f"accepted at depth {depth + 1}", "workload", was, here, decides=False)
    for name, field in (
        ("target passes", "target_cost"),
        ("draft passes", "draft_cost"),
        ("whole rounds", "round_cost"),
    ):
        add(f"time of {name}", "machine", then(field) or AS_CHARGED, getattr(now, field))
    return Drift(tuple(changes), tuple(missing), now.counters.requests)


def replayed_counters(policy: CompiledPolicy, record: Record, table: CostTable) -> list[Counters]:
    """Counters of the report prompts by replay, one per prompt, without times: for profiles that recorded none."""
    samples = record.split_samples("report")
    walk = Replay(record, table).walk(policy, samples)
    signal = record.signal(policy.signal.kind, policy.signal.top_k) if policy.drafts() else None
    found = []
    for sample in samples.tolist():
        rows = np.nonzero(walk.samples == sample)[0]
        choice, nodes, levels, accepted = (a[rows] for a in (walk.choice, walk.nodes, walk.levels, walk.accepted))
        drafts = nodes > 0
        deepest = int(levels[drafts].max(initial=0))
        values = np.array([]) if signal is None else signal[walk.at[rows]]
        bins = np.bincount([signal_bin(v) for v in values.tolist()], minlength=SIGNAL_BINS)
        found.append(
            Counters(
                requests=1,
                tokens=len(record.samples[sample].output) - 1,
                rounds=len(rows),
                drafts=int(drafts.sum()),
                proposed=int(nodes.sum()),
                accepted=int(accepted.sum()),
                reached=tuple(int((levels[drafts] > depth).sum()) for depth in range(deepest)),
                accepted_at=tuple(int((accepted > depth).sum()) for depth in range(deepest)),
                tier_rounds=tuple(np.bincount(choice, minlength=len(policy.tiers)).tolist()),
                signal_counts=tuple(bins.tolist()),
                signal_sum=float(values.sum()),
            )
        )
    return found


def _change(
    name: str, group: Group, was: Interval, now: Interval, relative: bool, tolerance: float, decides: bool
) -> Change:
    scale = was.median if relative else 1.0
    difference = now.median - was.median
    below = math.hypot(now.median - now.low, was.high - was.median)
    above = math.hypot(now.high - now.median, was.median - was.low)
    return Change(
        name=name,
        group=group,
        was=was,
        now=now,
        change=difference / scale,
        low=(difference - below) / scale,
        high=(difference + above) / scale,
        relative=relative,
        tolerance=tolerance,
        decides=decides,
    )


def _at(requests: Sequence[Counters], name: str, place: int) -> Floats:
    rows = [getattr(c, name) for c in requests]
    return np.array([row[place] if place < len(row) else 0 for row in rows], dtype=np.float64)


def _spent(counters: Counters, costs: CostModel) -> list[tuple[float, float]]:
    """(time, what the table charges) of the target's passes, the draft's, and whole rounds, over warm rounds. Passes
    that the table does not know leave it unsaid for the part they belong to, and for the whole."""
    spent: dict[str, list[float]] = {"target": [0.0, 0.0], "draft": [0.0, 0.0]}
    unknown = {"target": False, "draft": False}
    made: dict[PassKind, int] = {}
    for p in counters.passes:
        part = "target" if p.kind in TARGET else "draft"
        made[p.kind] = made.get(p.kind, 0) + p.count
        try:
            charged = float(costs.pass_ns(p.kind, p.n, np.array(p.context / p.count)))
        except EnvelopeError:
            unknown[part] = True
            continue
        spent[part][0] += p.time_ns
        spent[part][1] += charged * p.count
    host = costs.table.host
    levels = made.get("catch_up", 0) + made.get("frontier", 0)
    host_ns = host.plain_ns * made.get("plain", 0) + host.round_ns * made.get("catch_up", 0) + host.level_ns * levels
    parts = [(0.0, 0.0) if unknown[part] else (spent[part][0], spent[part][1]) for part in ("target", "draft")]
    if any(unknown.values()):
        return [*parts, (0.0, 0.0)]
    whole = sum(row[0] for row in spent.values()) + counters.warm_host_ns
    return [*parts, (whole, sum(row[1] for row in spent.values()) + host_ns)]
