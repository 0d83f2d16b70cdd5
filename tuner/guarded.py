"""A guarded policy in replay: the runtime's own controller decides, round by round, output by output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from profiles.policy import CompiledPolicy
from runtime.policy.controller import Controller
from tuner.drafts import Floats, Ints

if TYPE_CHECKING:
    from tuner.replay import Replay


class GuardedAgent:
    """An agent of `Replay.walk_agent` that is the controller itself, one per output as in the runtime. `rows` are the
    policy's kinds of round, `signal` [N] its signal at every position."""

    def __init__(self, policy: CompiledPolicy, replay: Replay, rows: Ints, signal: Floats) -> None:
        self._policy, self._replay, self._signal = policy, replay, signal
        self._row_of = dict(zip(policy.tiers, rows.tolist(), strict=True))
        self._tier_of = {row: tier for tier, row in self._row_of.items()}
        self._at = 0

    def begin(self) -> None:
        self._controller = Controller(self._policy)

    def choose(self, at: int) -> int:
        self._at = at
        # a round's context counts the root, which is not cached yet
        context = int(self._replay.record.context[at]) + 1
        row: int = self._row_of[self._controller.choose(float(self._signal[at]), context)]
        return row

    def observe(self, row: int, accepted: int, time_ns: float) -> None:
        where, here = np.array(row), np.array(self._at)
        levels, nodes = (int(self._replay.rounds.ints(name, where, here)) for name in ("levels", "nodes"))
        self._controller.observe(self._tier_of[row], accepted, levels, nodes)
