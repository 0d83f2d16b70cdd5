"""The clairvoyant oracle: the least time in which each output can be produced with the tiers of the grid.

It knows every outcome in advance: a shortest path over positions, by dynamic programming from the end of each
output. Tokens that the draft has not seen and the cold rounds at the start of an output are part of the state, and
plain decoding of the whole output is one of its options. So no policy on the grid is faster (tested).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tuner.drafts import Ints
from tuner.replay import Walk
from tuner.yardsticks.base import Arena

ORACLE = "oracle"


@dataclass(frozen=True)
class Oracle:
    """A bound, not a policy: nothing can run it."""

    arena: Arena = field(repr=False)
    name: str = ORACLE
    detail: str = "knows every outcome"

    def walk(self, samples: Ints) -> Walk:
        return clairvoyant(self.arena, samples)


def oracle(arena: Arena) -> Oracle:
    return Oracle(arena)


def clairvoyant(arena: Arena, samples: Ints) -> Walk:
    """The rounds of least total time over `samples`."""
    replay, actions = arena.replay, arena.actions
    record, positions = replay.record, replay.record.positions
    cold = np.array([*replay.host.draft_cold_ns, 0.0])
    rounds = np.arange(len(cold))
    later = np.minimum(rounds + 1, len(cold) - 1)[:, None]
    # state: round number (capped where rounds are warm), unseen tokens; one row past the end for finished outputs
    least = np.zeros((len(cold), len(replay.catch_up_ns), positions + 1))
    best = np.zeros((len(cold), positions), dtype=np.int64)
    time_ns, following, unseen = actions.time_ns.T.copy(), actions.following.T.copy(), actions.unseen.T.copy()
    plain_ns = dict(zip(samples.tolist(), replay.plain_time_ns(samples), strict=True))
    drafting: list[tuple[int, int, int, int, int]] = []
    plain: list[int] = []
    for number, sample in enumerate(samples.tolist()):
        for at in range(record.end[sample] - 1, record.start[sample] - 1, -1):
            total = time_ns[at] + least[later, unseen[at], following[at]]
            best[:, at] = total.argmin(axis=1)
            least[:, :, at] = total[rounds, best[:, at], None] + cold[:, None] + replay.catch_up_ns[:, at]
        start = int(record.start[sample])
        if least[0, 1, start] >= plain_ns[sample]:
            plain.append(sample)
            continue
        at, fresh, round_number = start, 1, 0
        while at < positions:
            action = int(best[round_number, at])
            drafting.append((number, at, int(actions.rows[action]), action, fresh))
            fresh, at = int(unseen[at, action]), int(following[at, action])
            round_number = min(round_number + 1, len(cold) - 1)
    walks = [replay.walk_plain(np.array(plain))] if plain else []
    if drafting:
        who, places, rows, chosen, fresh_tokens = np.array(drafting, dtype=np.int64).T
        numbers, index = np.unique(who, return_inverse=True)
        walks.append(replay.assembled([(index, places, rows, chosen, fresh_tokens)], samples[numbers]))
    return Walk.joined(walks)
