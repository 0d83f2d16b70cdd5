"""Chains that stop early: what SVIP and AdaEDL have in common.

Both look at the entropy of the draft's distribution at every node of a linear draft, keep the token that was drawn
from it, and stop after the first distribution they do not trust. All of it is on record, on and off the true path.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.trace_schema import CHAIN
from tuner.cost_model import Floats
from tuner.drafts import Ints
from tuner.yardsticks.base import Arena
from tuner.yardsticks.single import chain_tiers


@dataclass(frozen=True)
class Chains:
    """Linear drafts of 1..L tokens, L the longest on the grid."""

    rows: Ints
    """[L] their registered kinds of round."""
    entropy: Floats
    """[N, L] nats, of the distribution that proposes the token of each level."""

    @property
    def longest(self) -> int:
        return len(self.rows)

    def stopped(self, distrusted: np.ndarray) -> Ints:
        """[N] kinds of round when drafting ends after the first level whose distribution is distrusted [N, L]."""
        ends = np.concatenate([distrusted[:, :-1], np.ones((len(distrusted), 1), dtype=np.bool_)], axis=1)
        rows: Ints = self.rows[ends.argmax(axis=1)]
        return rows


def chains(arena: Arena) -> Chains | None:
    """None when the grid records no chains."""
    replay = arena.replay
    tiers = chain_tiers(arena.grid)
    if not tiers:
        return None
    rows = np.array([replay.row_of(tier, arena.grid.verify_sizes) for tier in tiers])
    entropy = replay.record.column(f"{CHAIN.stem()}.frontier_entropy")[:, : len(tiers)]
    return Chains(rows, entropy.astype(np.float64))


def at_tuning(arena: Arena, values: Floats) -> Floats:
    """Rows of an array by position that belong to tuning prompts."""
    rows: Floats = values[np.isin(arena.replay.record.sample_of, arena.tune)]
    return rows
