"""Exact replay: walk a policy over the record, round by round, and charge every round by the cost table.

All samples advance together. `walk` makes the decisions of `runtime.policy.controller` with arrays; the
rounds it returns are those of live decoding (tested round for round).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from profiles.errors import EnvelopeError
from profiles.growth import GrowthTree
from profiles.measurement import CostTable
from profiles.policy import CompiledPolicy, HistorySpec, Tier
from profiles.pruning import Pruning
from runtime.policy.controller import FIRST_LAGGED_SIGNAL, HIGH, LOW, MID, smoothed
from tuner.cost_model import CostModel, Floats, cold_extra
from tuner.costs import CATCH_UP_SIZES
from tuner.drafts import Ints, Outcome
from tuner.guarded import GuardedAgent
from tuner.outcomes import Record
from tuner.round_table import RoundTable

_Step = tuple[Ints, Ints, Ints, Ints, Ints]
"""(running samples, their positions, their kinds of round, what was chosen, tokens the draft has not seen)."""


@dataclass(frozen=True)
class Walk:
    """A replayed policy. Rounds are ordered by sample, then by position."""

    samples: Ints
    """Sample of each round (index into the record)."""
    at: Ints
    """Recorded position (row of the record) where each round starts."""
    choice: Ints
    """What each round was: an index into the policy's tiers, or the number of a registered kind of round."""
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

    def time_by_sample(self, samples: Ints) -> Floats:
        """[len(samples)] time of each sample's rounds."""
        total = np.bincount(self.samples, weights=self.time_ns, minlength=int(samples.max(initial=0)) + 1)
        return total[samples].astype(np.float64)

    @staticmethod
    def joined(walks: Sequence[Walk]) -> Walk:
        """Walks over disjoint samples as one."""
        arrays = ("samples", "at", "choice", "accepted", "nodes", "levels", "time_ns")
        columns = {name: np.concatenate([getattr(walk, name) for walk in walks]) for name in arrays}
        return Walk(**columns, tokens=sum(walk.tokens for walk in walks))


class Agent(Protocol):
    """A rule that decides from what its earlier rounds did, over outputs in their order."""

    def begin(self) -> None:
        """Called before each output."""

    def choose(self, at: int) -> int:
        """The registered kind of round to make at a recorded position."""

    def observe(self, row: int, accepted: int, time_ns: float) -> None:
        """Told after every round, its time with the catch-up pass included."""


class Replay:
    """A record, a cost model, and the rounds that policies share."""

    def __init__(self, record: Record, costs: CostTable) -> None:
        self.record, self.costs = record, CostModel(costs)
        self.host = host = costs.host
        self.rounds = RoundTable(record.end[record.sample_of])
        context = record.context
        self._plain_ns = self.costs.pass_ns("plain", 1, context) + host.plain_ns
        self._plain_ns += cold_extra(host.plain_cold_ns, np.arange(len(context)) - record.start[record.sample_of])
        self.catch_up_ns: Floats = np.stack(
            [np.zeros_like(self._plain_ns)]
            + [self.costs.pass_ns("catch_up", n, record.draft_context) for n in CATCH_UP_SIZES]
        )
        """[1 + sizes, N] time of the catch-up pass by the number of tokens that the draft has not seen."""
        self._views = {record.pruning: self}

    def under(self, pruning: Pruning) -> Replay:
        """Replay of the draft under a pruning. Raises EnvelopeError for one that was not recorded."""
        if pruning not in self._views:
            self._views[pruning] = Replay(self.record.under(pruning), self.costs.table)
        return self._views[pruning]

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

    def register(self, outcome: Outcome, verify_sizes: tuple[int, ...]) -> int:
        """Make any kind of round walkable; returns its number for `walk_chosen` and `walk_agent`."""
        return self.rounds.add(outcome, self.round_ns(outcome, verify_sizes))

    def rows_of(self, policy: CompiledPolicy) -> Ints:
        """[tiers] the kind of round of each tier of a policy."""
        return np.array([self.row_of(tier, policy.verify_sizes, policy.growth) for tier in policy.tiers])

    def row_of(self, tier: Tier, verify_sizes: tuple[int, ...], growth: GrowthTree | None = None) -> int:
        """The kind of round that a tier makes. Raises EnvelopeError when the record does not contain it."""
        key = (tier, growth, verify_sizes)
        row = self.rounds.find(key)
        if row is None:
            outcome = self.record.outcome(tier, verify_sizes, growth)
            row = self.rounds.add(outcome, self.round_ns(outcome, verify_sizes), key)
        return row

    def walk(self, policy: CompiledPolicy, samples: Ints) -> Walk:
        """Rounds of the policy over `samples`. Raises EnvelopeError when the record or the table cannot say."""
        record = self.record
        if policy.drafts() and policy.pruning != record.pruning:
            return self.under(policy.pruning).walk(policy, samples)
        if record.positions and record.context_max > policy.context_max:
            raise EnvelopeError(
                f"the record reaches context {record.context_max}, the policy was compiled for {policy.context_max}"
            )
        if not policy.drafts():
            return self.walk_plain(samples)
        rows = self.rows_of(policy)
        if policy.guard is not None:
            walk = self.walk_agent(GuardedAgent(policy, self, rows, self._signal(policy)), samples)
            return replace(walk, choice=np.argsort(rows)[np.searchsorted(np.sort(rows), walk.choice)])
        if policy.history is not None or policy.signal.has_state:
            return self._walk_state(policy, samples, rows)
        chosen = np.array(policy.table)[np.searchsorted(policy.edges, self._signal(policy), side="right"), MID]
        return self._walk_chosen(rows[chosen], chosen, samples)

    def walk_plain(self, samples: Ints) -> Walk:
        """Plain decoding: no draft pass and one round per token."""
        record = self.record
        at = np.concatenate([np.arange(record.start[i], record.end[i]) for i in samples])
        zeros = np.zeros(len(at), dtype=np.int64)
        return Walk(record.sample_of[at], at, zeros, zeros, zeros, zeros, self._plain_ns[at], len(at))

    def walk_chosen(self, rows: Ints, samples: Ints) -> Walk:
        """Rounds when every position has its own kind of round, `rows` [N]."""
        return self._walk_chosen(rows, rows, samples)

    def walk_agent(self, agent: Agent, samples: Ints) -> Walk:
        """Rounds of a rule that learns from its rounds: outputs one after the other, in the order of `samples`."""
        table, catch_up, cold = self.rounds, self.catch_up_ns, self.host.draft_cold_ns
        steps: list[tuple[int, int, int, int]] = []
        for i, sample in enumerate(samples.tolist()):
            agent.begin()
            at, unseen, number = int(self.record.start[sample]), 1, 0
            while at < self.record.positions:
                row = agent.choose(at)
                steps.append((i, at, row, unseen))
                here = np.array(at)
                time_ns = float(table.time_ns(np.array(row), here)) + float(catch_up[unseen, at])
                time_ns += cold[number] if number < len(cold) else 0.0
                agent.observe(row, int(table.ints("accepted", np.array(row), here)), time_ns)
                unseen, at = (int(table.ints(name, np.array(row), here)) for name in ("unseen", "following"))
                number += 1
        who, at_all, row_all, unseen_all = np.array(steps, dtype=np.int64).T
        return self.assembled([(who, at_all, row_all, row_all, unseen_all)], samples)

    def _walk_chosen(self, row_of: Ints, choice: Ints, samples: Ints) -> Walk:
        """A position's round is known beforehand: the walk is a chain of look-ups."""
        everywhere = np.arange(self.record.positions)
        following = self.rounds.ints("following", row_of, everywhere)
        unseen_after = self.rounds.ints("unseen", row_of, everywhere)
        who, cur = np.arange(len(samples)), self.record.start[samples]
        unseen, steps = np.ones(len(samples), dtype=np.int64), []
        while len(who):
            steps.append((who, cur, row_of[cur], choice[cur], unseen))
            unseen, cur = unseen_after[cur], following[cur]
            alive = cur < self.record.positions
            if not alive.all():
                who, cur, unseen = who[alive], cur[alive], unseen[alive]
        return self.assembled(steps, samples)

    def _walk_state(self, policy: CompiledPolicy, samples: Ints, rows: Ints) -> Walk:
        """The controller's state decides: every step asks the table for the samples that are still running."""
        table, edges = np.array(policy.table), np.array(policy.edges)
        drafting = np.array([tier.depth > 0 for tier in policy.tiers])
        lag, smoothing = policy.signal.lag, policy.signal.smoothing
        signal = self._signal(policy)
        state = _HistoryState(policy.history, len(samples))
        who, cur = np.arange(len(samples)), self.record.start[samples]
        mean, previous = signal[cur], np.full(len(samples), FIRST_LAGGED_SIGNAL)
        unseen, steps = np.ones(len(samples), dtype=np.int64), []
        while len(who):
            here = signal[cur]
            if smoothing:
                here = mean = smoothed(mean, here, smoothing)
            chosen = table[np.searchsorted(edges, previous if lag else here, side="right"), state.values]
            row = rows[chosen]
            steps.append((who, cur, row, chosen, unseen))
            state.observe(self.rounds.ints("accepted", row, cur), drafting[chosen])
            unseen, following = self.rounds.ints("unseen", row, cur), self.rounds.ints("following", row, cur)
            previous, cur = here, following
            alive = cur < self.record.positions
            if not alive.all():
                who, cur, unseen, previous, mean = who[alive], cur[alive], unseen[alive], previous[alive], mean[alive]
                state.keep(alive)
        return self.assembled(steps, samples)

    def assembled(self, steps: list[_Step], samples: Ints) -> Walk:
        """A walk from its steps, in any order as long as each sample's rounds come in theirs."""
        who, at, row, choice, unseen = (np.concatenate(column) for column in zip(*steps, strict=True))
        order = np.argsort(who, kind="stable")  # rounds were collected step by step over all samples
        who, at, row, choice, unseen = who[order], at[order], row[order], choice[order], unseen[order]
        first = np.searchsorted(who, who, side="left")
        cold_ns = cold_extra(self.host.draft_cold_ns, np.arange(len(who)) - first)
        return Walk(
            samples=samples[who],
            at=at,
            choice=choice,
            accepted=self.rounds.ints("accepted", row, at),
            nodes=self.rounds.ints("nodes", row, at),
            levels=self.rounds.ints("levels", row, at),
            time_ns=self.rounds.time_ns(row, at) + self.catch_up_ns[unseen, at] + cold_ns,
            tokens=int((self.record.end - self.record.start)[samples].sum()),
        )

    def round_ns(self, outcome: Outcome, verify_sizes: tuple[int, ...]) -> Floats:
        """[N] time of a round without its catch-up pass: frontier passes, padded verification, host.

        A frontier between two measured sizes is charged for the larger.
        """
        context = self.record.context
        time_ns: Floats = self.host.round_ns + self.host.level_ns * outcome.levels.astype(np.float64)
        sizes = np.array(verify_sizes)[np.searchsorted(verify_sizes, outcome.nodes + 1)]
        for size in np.unique(sizes):
            mine = sizes == size
            time_ns[mine] += self.costs.pass_ns("verify", int(size), context[mine])
        for rows, passes in outcome.frontiers:
            size = self.costs.measured_size("frontier", rows)
            time_ns += passes * self.costs.pass_ns("frontier", size, self.record.draft_context)
        return time_ns

    def frontier_ns(self, rows: Ints) -> Floats:
        """[N] time of one frontier pass of `rows` [N] nodes at every position; nothing where there are none."""
        time_ns, context = np.zeros(len(rows)), self.record.draft_context
        for count in np.unique(rows[rows > 0]):
            mine = rows == count
            size = self.costs.measured_size("frontier", int(count))
            time_ns[mine] = self.costs.pass_ns("frontier", size, context[mine])
        return time_ns

    def _signal(self, policy: CompiledPolicy) -> Floats:
        """[N] the policy's signal; zeros where it has one bin and asks for none, whatever is on record."""
        if not policy.edges:
            return np.zeros(self.record.positions)
        return self.record.signal(policy.signal.kind, policy.signal.top_k)


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
