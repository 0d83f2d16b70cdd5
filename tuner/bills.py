"""Bills: what the rounds of a policy are charged for, counted once, priced under any cost table.

Replay charges every pass by its kind, size and context, and interpolates the cost table over context. That is linear
in the table, so the passes of all rounds add up to one weight per cell: `bill x table` is the replayed time, exactly.
A profile carries the bills of every tier of the grid, so a machine without the record can tell which would win there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from profiles.errors import EnvelopeError
from profiles.gate import PLAIN_BILL, SHIPPED_BILL, PassBill, PassCount
from profiles.measurement import CostTable, PassKind, PassTime
from profiles.policy import CompiledPolicy
from runtime.decode import plain_policy
from runtime.records import COLD_ROUNDS
from tuner.costs import CATCH_UP_SIZES
from tuner.drafts import Floats, Ints
from tuner.replay import Replay, Walk
from tuner.yardsticks.base import Arena
from tuner.yardsticks.single import grid_tiers, static_policy

DIGITS = 2
"""Decimals of a weight; a pass in a million says nothing."""
Weights = dict[tuple[PassKind, int], Floats]


def bills(arena: Arena, shipped: CompiledPolicy) -> tuple[PassBill, ...]:
    """Plain decoding, the shipped policy and every tier of the grid under every pruning on record, over all samples."""
    replay = arena.replay
    samples = np.arange(len(replay.record.samples))
    samples = samples[replay.record.end > replay.record.start]
    named = [(PLAIN_BILL, plain_policy()), (SHIPPED_BILL, shipped)]
    for pruning in arena.prunings:
        for tier in grid_tiers(arena.grid):
            name = ", ".join(filter(None, [tier.label(), pruning.label()]))
            source = static_policy(name, tier).model_copy(update={"pruning": pruning})
            named.append((name, arena.compiled(source)))
    return tuple(bill(name, replay, policy, samples) for name, policy in named)


def bill(name: str, replay: Replay, policy: CompiledPolicy, samples: Ints) -> PassBill:
    """The bill of a policy over `samples`. Raises EnvelopeError when the record does not contain its trees."""
    replay = replay.under(policy.pruning) if policy.drafts() else replay
    walk = replay.walk(policy, samples)
    record, contexts = replay.record, np.array(replay.costs.table.contexts(), dtype=np.float64)
    target_context, draft_context = record.context[walk.at], record.draft_context[walk.at]
    weights: Weights = defaultdict(lambda: np.zeros(len(contexts)))

    def count(kind: PassKind, n: int, times: Ints) -> None:
        context = target_context if kind in ("plain", "verify") else draft_context
        weights[kind, n] += _by_context(context, times, contexts)

    if not policy.drafts():
        count("plain", 1, np.ones(walk.rounds, dtype=np.int64))
    else:
        sizes = np.array(policy.verify_sizes)[np.searchsorted(policy.verify_sizes, walk.nodes + 1)]
        for size in np.unique(sizes):
            count("verify", int(size), sizes == size)
        unseen = _unseen(replay, policy, walk)
        for n in CATCH_UP_SIZES:
            count("catch_up", n, unseen == n)
        for i in np.unique(walk.choice):
            outcome = record.outcome(policy.tiers[i], policy.verify_sizes, policy.growth)
            for rows, passes in outcome.frontiers:
                n = replay.costs.measured_size("frontier", rows)
                count("frontier", n, passes[walk.at] * (walk.choice == i))
    drafting = walk.rounds if policy.drafts() else 0
    number = np.arange(walk.rounds) - np.searchsorted(walk.samples, walk.samples, side="left")
    return PassBill(
        name=name,
        plain_rounds=walk.rounds - drafting,
        draft_rounds=drafting,
        levels=int(walk.levels.sum()),
        cold=tuple(int((number == i).sum()) for i in range(COLD_ROUNDS)),
        passes=tuple(
            PassCount(kind=kind, n=n, at=tuple(round(float(w), DIGITS) for w in at))
            for (kind, n), at in sorted(weights.items())
            if at.any()
        ),
    )


def bill_ns(owed: PassBill, table: CostTable) -> float:
    """Time of the billed rounds under a cost table over the same contexts. Raises EnvelopeError for a pass that the
    table does not hold."""
    host = table.host
    total = owed.plain_rounds * host.plain_ns + owed.draft_rounds * host.round_ns + owed.levels * host.level_ns
    cold_ns = host.draft_cold_ns if owed.draft_rounds else host.plain_cold_ns
    if len(cold_ns) > len(owed.cold):
        raise EnvelopeError(f"the bill counts {len(owed.cold)} cold rounds of an output, the table has {len(cold_ns)}")
    total += sum(count * extra for count, extra in zip(owed.cold, cold_ns, strict=False))
    times = _times(table)
    for count in owed.passes:
        line = times.get((count.kind, count.n))
        if line is None or len(line) != len(count.at):
            raise EnvelopeError(f"{count.kind} passes of {count.n} tokens at {len(count.at)} contexts were not timed")
        total += float(np.dot(count.at, line))
    return total


def speedup(bills_by_name: dict[str, PassBill], name: str, table: CostTable) -> float:
    """Replayed speedup of a billed policy over plain decoding under a cost table."""
    return bill_ns(bills_by_name[PLAIN_BILL], table) / bill_ns(bills_by_name[name], table)


def fastest(owed: Sequence[PassBill], table: CostTable) -> tuple[str, float]:
    """Name and time of the cheapest of plain decoding and the fixed tiers; the shipped policy takes no part."""
    times = {b.name: bill_ns(b, table) for b in owed if b.name != SHIPPED_BILL}
    name = min(times, key=lambda name: times[name])
    return name, times[name]


def regret(owed: Sequence[PassBill], table: CostTable) -> float:
    """Share of the shipped policy's time that the best fixed tier, or plain decoding, would save under a cost table.
    Negative where the shipped policy beats them all."""
    shipped = next(b for b in owed if b.name == SHIPPED_BILL)
    return 1.0 - fastest(owed, table)[1] / bill_ns(shipped, table)


def completed(measured: CostTable, saved: CostTable) -> tuple[CostTable, list[str]]:
    """The measured table with every pass that only the saved one holds, scaled by how the nearest measured size of its
    kind changed (sizes between two are scaled in between); and the names of what was filled in so."""
    now, then = _times(measured), _times(saved)
    passes, filled = list(measured.passes), []
    for (kind, n), line in then.items():
        if (kind, n) in now:
            continue
        sizes = sorted(size for k, size in now if k == kind and (k, size) in then)
        if sizes:
            changes = np.array([now[kind, size] / then[kind, size] for size in sizes])
            factor = np.array([np.interp(n, sizes, column) for column in changes.T])
        else:
            factor = now["plain", 1] / then["plain", 1]
        filled.append(f"{kind} {n}")
        passes += [
            PassTime(kind=kind, n=n, context=c, time_ns=t, p10_ns=t, p90_ns=t, samples=0)
            for c, t in zip(saved.contexts(), (line * factor).tolist(), strict=True)
        ]
    return measured.model_copy(update={"passes": tuple(passes)}), filled


def _times(table: CostTable) -> dict[tuple[PassKind, int], Floats]:
    lines: dict[tuple[PassKind, int], list[float]] = defaultdict(list)
    for cell in sorted(table.passes, key=lambda p: p.context):
        lines[cell.kind, cell.n].append(cell.time_ns)
    return {key: np.array(line) for key, line in lines.items()}


def _unseen(replay: Replay, policy: CompiledPolicy, walk: Walk) -> Ints:
    """[rounds] tokens that each round's catch-up pass feeds: what the round before left, one at the start."""
    rows = replay.rows_of(policy)[walk.choice]
    after = replay.rounds.ints("unseen", rows, walk.at)
    first = np.diff(walk.samples, prepend=-1) != 0
    before: Ints = np.where(first, 1, np.roll(after, 1))
    return before


def _by_context(context: Ints, times: Ints, contexts: Floats) -> Floats:
    """[contexts] weights of `times` [rounds] passes: what linear interpolation gives each context of the table."""
    upper = np.clip(np.searchsorted(contexts, context, side="right"), 1, len(contexts) - 1)
    share = (context - contexts[upper - 1]) / (contexts[upper] - contexts[upper - 1])
    above = np.bincount(upper, weights=times * share, minlength=len(contexts))
    below = np.bincount(upper - 1, weights=times * (1 - share), minlength=len(contexts))
    return (above + below).astype(np.float64)
