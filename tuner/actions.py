"""Actions: every tier of the grid at every recorded position, as arrays. What a round could have been, everywhere.

The best decision of a cell or a leaf is a minimum over rows of these arrays, and nothing has to be decoded for it.
Rounds that gates and growth trees make off the grid's slots are not among them; `tuner.cheapest` covers every round.
"""

from __future__ import annotations

import numpy as np

from profiles.config import GridConfig
from profiles.policy import Tier
from runtime.decode import OFF
from tuner.cost_model import Floats
from tuner.drafts import Ints
from tuner.replay import Replay


def grid_tiers(grid: GridConfig) -> list[Tier]:
    """Every fixed shape of the grid that leaves no verify slot idle."""
    return [
        Tier(depth=depth, width=width, nodes=nodes)
        for width in grid.widths
        for depth in range(1, grid.depth + 1)
        for nodes in grid.node_counts(depth, width)
    ]


class ActionTable:
    """Arrays [actions, N] over `tiers`; the last action is `off`, a plain step of a drafting policy."""

    def __init__(self, replay: Replay, grid: GridConfig) -> None:
        self.replay = replay
        self.tiers = [*grid_tiers(grid), OFF]
        self.index = {tier: i for i, tier in enumerate(self.tiers)}
        self.rows = np.array([replay.row_of(tier, grid.verify_sizes) for tier in self.tiers])
        everywhere = np.arange(replay.record.positions)
        at = self.rows[:, None], everywhere[None, :]
        self.accepted: Ints = replay.rounds.ints("accepted", *at)
        self.following: Ints = replay.rounds.ints("following", *at)
        self.unseen: Ints = replay.rounds.ints("unseen", *at)
        self.time_ns: Floats = replay.rounds.time_ns(*at)
        """Without the round's own catch-up pass, which the round before decides."""

    def cost_ns(self, token_ns: float) -> Floats:
        """[actions, N] time of a round and of the catch-up pass it leaves behind, less `token_ns` for every token
        it emits.

        With `token_ns` the time per token of the best policy, the decision of least cost is the one that is best
        for the total time (average-reward dynamic programming: the price of a token is what it takes elsewhere).
        """
        everywhere = np.arange(self.time_ns.shape[1])
        after: Floats = self.replay.catch_up_ns[self.unseen, everywhere]
        cost: Floats = self.time_ns + after - token_ns * (self.accepted + 1)
        return cost
