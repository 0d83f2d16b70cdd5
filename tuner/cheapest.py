"""The cheapest round with each result, at every recorded position: what a clairvoyant chooses from.

A result is (draft tokens accepted, committed tokens that the draft has not seen afterwards); the rest of an output
depends on nothing else. A round of any policy drafts some number of levels under a recorded rule and verifies some
number of the best candidates, so there are few results and one least time for each. Every count of nodes is
considered, not only those that fill a verify slot: accepting more is not always better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tuner.cost_model import Floats
from tuner.drafts import Ints, Outcome, RuleRecord
from tuner.replay import Replay

Bools = npt.NDArray[np.bool_]


class CheapestRounds:
    """Arrays by result; times and `following` are [results, N]."""

    def __init__(self, replay: Replay, verify_sizes: Sequence[int], others: Sequence[int] = ()) -> None:
        """`others` are registered kinds of round that no recorded rule makes, such as fixed rank trees."""
        self._replay, self._sizes = replay, tuple(verify_sizes)
        record = replay.record
        depth = record.manifest.depth
        results = [(0, 1), *((accepted, unseen) for accepted in range(1, depth + 1) for unseen in (1, 2))]
        self.accepted: Ints = np.array([accepted for accepted, _ in results])
        self.unseen: Ints = np.array([unseen for _, unseen in results])
        shape = len(results), record.positions
        self.time_ns: Floats = np.full(shape, np.inf)
        """Without the round's own catch-up pass; infinite where no round has this result."""
        self._nodes, self._levels = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        self._verify_ns = [replay.costs.pass_ns("verify", size, record.context) for size in self._sizes]
        for rule in record.manifest.rules:
            self._consider_rule(record.draft(rule))
        for row in others:
            self._consider_row(row)
        self.rows: Ints = np.array([self._register(i, record.positions) for i in range(len(results))])
        """Registered kind of round of each result."""
        everywhere = np.arange(record.positions)
        self.following: Ints = replay.rounds.ints("following", self.rows[:, None], everywhere[None, :])

    def _consider_rule(self, draft: RuleRecord) -> None:
        """Every number of levels and nodes under one rule."""
        host, n = self._replay.host, draft.positions
        draft_ns = np.full(n, float(host.round_ns))
        for drafted in range(1, draft.depth + 1):
            draft_ns += host.level_ns
            if drafted > 1:
                draft_ns += self._replay.frontier_ns(draft.frontier[:, drafted - 2])
            places = draft.places[:, :drafted, drafted - 1]
            room = np.minimum(draft.available[:, drafted], self._sizes[-1] - 1)
            alive: Bools = np.ones(n, dtype=np.bool_)
            fewest: Ints = np.zeros(n, dtype=np.int64)
            for accepted in range(drafted + 1):
                if accepted:
                    alive = alive & (places[:, accepted - 1] >= 0)
                    fewest = np.maximum(fewest, places[:, accepted - 1] + 1)
                most = room
                if accepted < drafted:
                    # enough nodes would accept the next token as well, and that is another result
                    beyond = np.where(places[:, accepted] >= 0, np.maximum(fewest, places[:, accepted] + 1), room + 1)
                    most = np.minimum(room, beyond - 1)
                verify_ns, nodes = self._cheapest_verification(fewest, most)
                time_ns = np.where(alive, draft_ns + verify_ns, np.inf)
                expanded = accepted < drafted and (accepted == 0 or draft.in_frontier[:, accepted - 1])
                unseen = np.where(expanded, 1, 2)
                self._offer(accepted, unseen, time_ns, nodes, np.full(n, drafted))

    def _cheapest_verification(self, fewest: Ints, most: Ints) -> tuple[Floats, Ints]:
        """[N] least time of verifying between `fewest` and `most` nodes, and how many that are; infinite where
        no count is left. A larger size can measure faster than a smaller one, so all are compared."""
        best, nodes = np.full(len(fewest), np.inf), np.zeros(len(fewest), dtype=np.int64)
        smaller = 0
        for size, time_ns in zip(self._sizes, self._verify_ns, strict=True):
            better = (fewest <= np.minimum(most, size - 1)) & (most >= smaller) & (time_ns < best)
            best = np.where(better, time_ns, best)
            nodes = np.where(better, np.minimum(most, size - 1), nodes)
            smaller = size
        return best, nodes

    def _consider_row(self, row: int) -> None:
        rounds, everywhere = self._replay.rounds, np.arange(self._replay.record.positions)
        names = ("accepted", "unseen", "nodes", "levels")
        accepted, unseen, nodes, levels = (rounds.ints(name, np.array(row), everywhere) for name in names)
        time_ns = rounds.time_ns(np.array(row), everywhere)
        for count in np.unique(accepted):
            self._offer(int(count), unseen, np.where(accepted == count, time_ns, np.inf), nodes, levels)

    def _offer(self, accepted: int, unseen: Ints, time_ns: Floats, nodes: Ints, levels: Ints) -> None:
        """Keep rounds that are faster than the known ones with the same result."""
        for result in np.nonzero(self.accepted == accepted)[0]:
            better = (unseen == self.unseen[result]) & (time_ns < self.time_ns[result])
            for kept, offered in ((self.time_ns, time_ns), (self._nodes, nodes), (self._levels, levels)):
                kept[result, better] = offered[better]

    def _register(self, result: int, n: int) -> int:
        accepted, unseen = np.full(n, self.accepted[result]), np.full(n, self.unseen[result])
        outcome = Outcome(accepted, self._nodes[result], self._levels[result], unseen, ())
        return self._replay.rounds.add(outcome, self.time_ns[result])
