"""The clairvoyant oracle: the least time in which each output can be produced.

It knows every outcome in advance: a shortest path over positions, by dynamic programming from the end of each
output. In every round it may draft any number of levels under any recorded rule, verify any number of nodes, or
take one of the fixed rank trees among the yardsticks. Tokens that the draft has not seen and the cold rounds at the
start of an output are part of the state, and plain decoding of the whole output is one of its options. So no policy
on the record and no yardstick is faster (tested).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tuner.cheapest import CheapestRounds
from tuner.drafts import Ints
from tuner.replay import Walk
from tuner.yardsticks.base import Arena
from tuner.yardsticks.rank_tree import rank_tree
from tuner.yardsticks.sequoia import sequoia

ORACLE = "oracle"


@dataclass(frozen=True)
class Oracle:
    """A bound, not a policy: nothing can run it."""

    arena: Arena = field(repr=False)
    name: str = ORACLE
    detail: str = "knows every outcome"

    @cached_property
    def rounds(self) -> CheapestRounds:
        trees = [fit(self.arena) for fit in (rank_tree, sequoia)]
        rows = [int(tree.rows[0]) for tree in trees if tree is not None]
        return CheapestRounds(self.arena.replay, self.arena.grid.verify_sizes, rows)

    def walk(self, samples: Ints) -> Walk:
        """The rounds of least total time over `samples`; every output has the pruning that suits it best."""
        prunings = self.arena.prunings
        if len(prunings) == 1:
            return self._walk_here(samples)
        bounds = [Oracle(self.arena.under(pruning)) for pruning in prunings]
        times = np.stack([bound.walk(samples).time_by_sample(samples) for bound in bounds])
        best = times.argmin(axis=0)
        return Walk.joined([bounds[i].walk(samples[best == i]) for i in np.unique(best)])

    def _walk_here(self, samples: Ints) -> Walk:
        replay, rounds = self.arena.replay, self.rounds
        record, positions = replay.record, replay.record.positions
        cold = np.array([*replay.host.draft_cold_ns, 0.0])
        numbers = np.arange(len(cold))
        later = np.minimum(numbers + 1, len(cold) - 1)[:, None]
        # state: round number (capped where rounds are warm), unseen tokens; one row past the end for finished outputs
        least = np.zeros((len(cold), len(replay.catch_up_ns), positions + 1))
        best = np.zeros((len(cold), positions), dtype=np.int64)
        time_ns, following = rounds.time_ns.T.copy(), rounds.following.T.copy()
        plain_ns = dict(zip(samples.tolist(), replay.plain_time_ns(samples), strict=True))
        drafting: list[tuple[int, int, int, int, int]] = []
        plain: list[int] = []
        for number, sample in enumerate(samples.tolist()):
            for at in range(record.end[sample] - 1, record.start[sample] - 1, -1):
                total = time_ns[at] + least[later, rounds.unseen, following[at]]
                best[:, at] = total.argmin(axis=1)
                least[:, :, at] = total[numbers, best[:, at], None] + cold[:, None] + replay.catch_up_ns[:, at]
            start = int(record.start[sample])
            if least[0, 1, start] >= plain_ns[sample]:
                plain.append(sample)
                continue
            at, fresh, round_number = start, 1, 0
            while at < positions:
                result = int(best[round_number, at])
                drafting.append((number, at, int(rounds.rows[result]), result, fresh))
                fresh, at = int(rounds.unseen[result]), int(following[at, result])
                round_number = min(round_number + 1, len(cold) - 1)
        walks = [replay.walk_plain(np.array(plain))] if plain else []
        if drafting:
            who, places, rows, chosen, fresh_tokens = np.array(drafting, dtype=np.int64).T
            present, index = np.unique(who, return_inverse=True)
            walks.append(replay.assembled([(index, places, rows, chosen, fresh_tokens)], samples[present]))
        return Walk.joined(walks)


def oracle(arena: Arena) -> Oracle:
    return Oracle(arena)
