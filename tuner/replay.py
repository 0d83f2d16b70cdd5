"""Exact replay: walk a policy over the record, round by round, and charge every round by the cost table.

All samples advance together. `walk` makes the decisions of `runtime.policy.controller` with arrays; the
rounds it returns are those of live decoding (tested round for round).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiles.errors import EnvelopeError
from profiles.measurement import PASS_KINDS, CostTable, PassKind
from profiles.policy import CompiledPolicy, HistorySpec, Tier
from runtime.policy.controller import FIRST_LAGGED_SIGNAL, HIGH, LOW, MID
from tuner.costs import CATCH_UP_SIZES
from tuner.outcomes import Ints, Outcome, Record

Floats = npt.NDArray[np.float64]
_Step = tuple[Ints, Ints, Ints, Ints]
"""(running samples, their positions, their tiers, committed tokens the draft has not seen) of one step."""


class CostModel:
    """Interpolates a cost table over context; sizes are never interpolated, contexts never extrapolated."""

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self._contexts = np.array(table.contexts(), dtype=np.float64)
        self._ns: dict[tuple[str, int], Floats] = {
            (kind, n): np.array(
                [p.time_ns for p in sorted(table.passes, key=lambda p: p.context) if (p.kind, p.n) == (kind, n)]
            )
            for kind in PASS_KINDS
            for n in table.sizes(kind)
        }

    def pass_ns(self, kind: PassKind, n: int, context: Ints) -> Floats:
        """[...] time of a pass of n tokens over `context` cached rows. Raises EnvelopeError outside the table."""
        curve = self._ns.get((kind, n))
        if curve is None:
            raise EnvelopeError(f"{kind} passes of {n} tokens were not measured; have {self.table.sizes(kind)}")
        if context.size and (context.min() < self._contexts[0] or context.max() > self._contexts[-1]):
            raise EnvelopeError(
                f"contexts {context.min()}..{context.max()} leave the measured "
                f"{self._contexts[0]:.0f}..{self._contexts[-1]:.0f}"
            )
        times: Floats = np.interp(context, self._contexts, curve)
        return times


@dataclass(frozen=True)
class Walk:
    """A replayed policy. Rounds are ordered by sample, then by position."""

    samples: Ints
    """Sample of each round (index into the record)."""
    at: Ints
    """Recorded position (row of the record) where each round starts."""
    tier_index: Ints
    """Tier of each round (index into the policy's tiers)."""
    accepted: Ints
    nodes: Ints
    levels: Ints
    time_ns: Floats
    tokens: int
    """Tokens emitted by the rounds, over all samples."""

    @property
    def rounds(self) -> int:
        return len(self.at)

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, bonus included."""
        return self.tokens / self.rounds


class _TierTable:
    """Arrays [tiers, positions] of every tier that was ever replayed, so that a policy is a few gathers."""

    NAMES = ("following", "unseen", "accepted", "nodes", "levels")

    def __init__(self, positions: int) -> None:
        self._positions = positions
        self._row_of: dict[tuple[Tier, tuple[int, ...]], int] = {}
        self._ints = {name: np.empty((8, positions), dtype=np.int64) for name in self.NAMES}
        self._time_ns = np.empty((8, positions))

    def row(self, tier: Tier, verify_sizes: tuple[int, ...]) -> int | None:
        return self._row_of.get((tier, verify_sizes))

    def add(self, tier: Tier, verify_sizes: tuple[int, ...], ints: dict[str, Ints], time_ns: Floats) -> int:
        row = len(self._row_of)
        if row == len(self._time_ns):
            self._ints = {name: np.concatenate([old, np.empty_like(old)]) for name, old in self._ints.items()}
            self._time_ns = np.concatenate([self._time_ns, np.empty_like(self._time_ns)])
        for name in self.NAMES:
            self._ints[name][row] = ints[name]
        self._time_ns[row] = time_ns
        self._row_of[tier, verify_sizes] = row
        return row

    def ints(self, name: str, rows: Ints, at: Ints) -> Ints:
        return self._ints[name].reshape(-1).take(rows * self._positions + at)

    def time_ns(self, rows: Ints, at: Ints) -> Floats:
        return self._time_ns.reshape(-1).take(rows * self._positions + at)


class Replay:
    """A record, a cost model, and the per-tier arrays that policies share."""

    def __init__(self, record: Record, costs: CostTable) -> None:
        self.record, self.costs = record, CostModel(costs)
        self._tiers = _TierTable(record.positions)
        host = costs.host
        self._host = host
        context = record.context
        self._plain_ns = self.costs.pass_ns("plain", 1, context) + host.plain_ns
        self._plain_ns += cold_extra(host.plain_cold_ns, np.arange(len(context)) - record.start[record.sample_of])
        self._catch_up_ns = np.stack(
            [np.zeros_like(self._plain_ns)] + [self.costs.pass_ns("catch_up", n, context) for n in CATCH_UP_SIZES]
        )
        self._end_of = record.end[record.sample_of]

    def plain_time_ns(self, samples: Ints) -> Floats:
        """[len(samples)] time of plain decoding of the same tokens: one round per recorded position."""
        total: Floats = np.bincount(
            self.record.sample_of, weights=self._plain_ns, minlength=len(self.record.samples)
        ).astype(np.float64)
        return total[samples]

    def speedup(self, policy: CompiledPolicy, samples: Ints) -> float:
        """Time of plain decoding over time of the policy's rounds, for the same tokens of these samples."""
        walk = self.walk(policy, samples)
        return float(self.plain_time_ns(samples).sum() / walk.time_ns.sum())

    def walk(self, policy: CompiledPolicy, samples: Ints) -> Walk:
        """Rounds of the policy over `samples`. Raises EnvelopeError when the record or the table cannot say."""
        record = self.record
        if record.positions and record.context_max > policy.context_max:
            raise EnvelopeError(
                f"the record reaches context {record.context_max}, the policy was compiled for {policy.context_max}"
            )
        if not policy.drafts():
            return self._plain_walk(policy, samples)
        rows = np.array([self._row(tier, policy.verify_sizes) for tier in policy.tiers])
        static = policy.history is None and not policy.signal.lag
        visited = self._walk_static(policy, samples, rows) if static else self._walk_state(policy, samples, rows)
        who, at, chosen, unseen = (np.concatenate(column) for column in zip(*visited, strict=True))
        order = np.argsort(who, kind="stable")  # rounds were collected step by step over all samples
        who, at, chosen, unseen = who[order], at[order], chosen[order], unseen[order]
        row = rows[chosen]
        first = np.searchsorted(who, who, side="left")
        cold_ns = cold_extra(self._host.draft_cold_ns, np.arange(len(who)) - first)
        return Walk(
            samples=samples[who],
            at=at,
            tier_index=chosen,
            accepted=self._tiers.ints("accepted", row, at),
            nodes=self._tiers.ints("nodes", row, at),
            levels=self._tiers.ints("levels", row, at),
            time_ns=self._tiers.time_ns(row, at) + self._catch_up_ns[unseen, at] + cold_ns,
            tokens=int((record.end - record.start)[samples].sum()),
        )

    def _walk_static(self, policy: CompiledPolicy, samples: Ints, rows: Ints) -> list[_Step]:
        """Without history or lag a position's tier is known beforehand: the walk is a chain of look-ups."""
        everywhere = np.arange(self.record.positions)
        chosen = np.array(policy.table)[self._bins(policy), MID]
        following = self._tiers.ints("following", rows[chosen], everywhere)
        unseen_after = self._tiers.ints("unseen", rows[chosen], everywhere)
        who, cur = np.arange(len(samples)), self.record.start[samples]
        unseen, steps = np.ones(len(samples), dtype=np.int64), []
        while len(who):
            steps.append((who, cur, chosen[cur], unseen))
            unseen, cur = unseen_after[cur], following[cur]
            alive = cur < self.record.positions
            if not alive.all():
                who, cur, unseen = who[alive], cur[alive], unseen[alive]
        return steps

    def _walk_state(self, policy: CompiledPolicy, samples: Ints, rows: Ints) -> list[_Step]:
        """The controller's state decides: every step asks the table for the samples that are still running."""
        bins, table = self._bins(policy), np.array(policy.table)
        drafting = np.array([tier.depth > 0 for tier in policy.tiers])
        lag = policy.signal.lag
        state = _HistoryState(policy.history, len(samples))
        previous = np.full(len(samples), np.searchsorted(policy.edges, FIRST_LAGGED_SIGNAL, side="right"))
        who, cur = np.arange(len(samples)), self.record.start[samples]
        unseen, steps = np.ones(len(samples), dtype=np.int64), []
        while len(who):
            here = bins[cur]
            chosen = table[previous if lag else here, state.values]
            steps.append((who, cur, chosen, unseen))
            row = rows[chosen]
            state.observe(self._tiers.ints("accepted", row, cur), drafting[chosen])
            unseen, following = self._tiers.ints("unseen", row, cur), self._tiers.ints("following", row, cur)
            previous, cur = here, following
            alive = cur < self.record.positions
            if not alive.all():
                who, cur, unseen, previous = who[alive], cur[alive], unseen[alive], previous[alive]
                state.keep(alive)
        return steps

    def _plain_walk(self, policy: CompiledPolicy, samples: Ints) -> Walk:
        """A policy that never drafts makes no draft pass and one round per token."""
        record = self.record
        at = np.concatenate([np.arange(record.start[i], record.end[i]) for i in samples])
        zeros = np.zeros(len(at), dtype=np.int64)
        index = np.full(len(at), policy.table[0][MID])
        return Walk(record.sample_of[at], at, index, zeros, zeros, zeros, self._plain_ns[at], len(at))

    def _row(self, tier: Tier, verify_sizes: tuple[int, ...]) -> int:
        row = self._tiers.row(tier, verify_sizes)
        if row is None:
            outcome = self.record.outcome(tier)
            following = np.arange(self.record.positions) + outcome.accepted + 1
            following[following >= self._end_of] = self.record.positions  # finished
            ints = {
                "following": following,
                "unseen": outcome.unseen,
                "accepted": outcome.accepted,
                "nodes": outcome.nodes,
                "levels": outcome.levels,
            }
            row = self._tiers.add(tier, verify_sizes, ints, self._round_ns(tier, outcome, verify_sizes))
        return row

    def _round_ns(self, tier: Tier, outcome: Outcome, verify_sizes: tuple[int, ...]) -> Floats:
        """[N] time of a round without its catch-up pass: frontier passes, padded verification, host."""
        context = self.record.context
        host = self._host.round_ns + self._host.level_ns * outcome.levels
        sizes = np.array(verify_sizes)[np.searchsorted(verify_sizes, outcome.nodes + 1)]
        time_ns = host.astype(np.float64)
        for size in np.unique(sizes):
            mine = sizes == size
            time_ns[mine] += self.costs.pass_ns("verify", int(size), context[mine])
        if tier.depth > 1:
            time_ns += (outcome.levels - 1) * self.costs.pass_ns("frontier", tier.width, context)
        return time_ns

    def _bins(self, policy: CompiledPolicy) -> Ints:
        if not policy.edges:
            return np.zeros(self.record.positions, dtype=np.int64)  # no signal is asked
        return np.searchsorted(policy.edges, self.record.signal(policy.signal), side="right")


def cold_extra(extra_ns: tuple[float, ...], index: Ints) -> Floats:
    """Extra time of the round with this index in its output; nothing once the caches are warm."""
    padded = np.array([*extra_ns, 0.0])
    return padded[np.minimum(index, len(extra_ns))]


class _HistoryState:
    """The controller's history of many samples at once."""

    def __init__(self, history: HistorySpec | None, count: int) -> None:
        self._history = history
        self.values = np.full(count, MID)
        if history is not None:
            self._ring = np.zeros((count, history.window), dtype=np.int64)
            self._total, self._count = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)

    def observe(self, accepted: Ints, drafting: npt.NDArray[np.bool_]) -> None:
        history = self._history
        if history is None:
            return
        rows = np.nonzero(drafting)[0]
        slot = self._count[rows] % history.window
        self._total[rows] += accepted[rows] - self._ring[rows, slot]
        self._ring[rows, slot] = accepted[rows]
        self._count[rows] += 1
        # the same comparisons as controller.next_state, on the same quotient
        mean = self._total[rows] / np.minimum(self._count[rows], history.window)
        old = self.values[rows]
        new = old.copy()
        new[(old == LOW) & (mean >= history.low + history.hysteresis)] = MID
        new[(old == HIGH) & (mean <= history.high - history.hysteresis)] = MID
        new[(mean > history.high) & (old != HIGH)] = HIGH
        new[(mean < history.low) & (old != LOW)] = LOW
        self.values[rows] = new

    def keep(self, alive: npt.NDArray[np.bool_]) -> None:
        self.values = self.values[alive]
        if self._history is not None:
            self._ring, self._total = self._ring[alive], self._total[alive]
            self._count = self._count[alive]
