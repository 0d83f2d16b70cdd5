"""What one drafting rule did at every recorded position: the deepest tree, and every smaller one inside it.

A tier's tree is contained in the deepest recorded tree of its rule. The place of the true path's node among
all candidates of levels 1..D decides whether a node budget reaches it, so acceptance is a comparison of
integers; nothing is estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from profiles.growth import GO_ON, Feature, GrowthTree
from profiles.policy import DraftRule, Tier
from runtime.policy.growth import budget, features, log_gate
from runtime.policy.tree import frontier_rows

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """What a round does if it starts at each recorded position, [N]."""

    accepted: Ints
    """Draft tokens accepted, bonus excluded."""
    nodes: Ints
    """Nodes verified, root and padding excluded."""
    levels: Ints
    """Draft passes, the catch-up pass included."""
    unseen: Ints
    """Committed tokens that the draft has not seen when the next round starts."""
    frontiers: tuple[tuple[int, Ints], ...]
    """(nodes in the pass, [N] how many such frontier passes)."""


class RuleRecord:
    """The columns of one rule, [N] positions, D levels. Everything derived is computed once."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("pool_scores", "score", "rank_in_level", "in_frontier")

    def __init__(self, rule: DraftRule, depth: int, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        self.rule, self.depth = rule, depth
        self.positions = len(columns["score"])
        self.scores: npt.NDArray[np.float32] = columns["pool_scores"].reshape(self.positions, depth, -1)
        """[N, D, width^2] cumulative log-probabilities of a level's candidates, best first, -inf where none is."""
        self.true_score: npt.NDArray[np.float32] = columns["score"]
        """[N, D] of the output's own path, NaN where it was not drafted."""
        self.rank_in_level = columns["rank_in_level"]
        self.in_frontier: npt.NDArray[np.bool_] = columns["in_frontier"]
        """[N, D] the output's own node of the level is in its frontier."""
        self._places: npt.NDArray[np.int32] | None = None
        self._everywhere = np.arange(self.positions)
        candidates = np.isfinite(self.scores).sum(axis=2).cumsum(axis=1)
        self.available: Ints = np.concatenate([np.zeros((self.positions, 1), dtype=np.int64), candidates], axis=1)
        """[N, D + 1] candidates of levels 1..d."""
        self.frontier: Ints = frontier_rows(rule, self.scores)
        """[N, D] nodes of each level's frontier."""

    @property
    def places(self) -> npt.NDArray[np.int32]:
        """[N, level, D] place of the true path's node of `level` among all candidates of levels 1..D, by score
        (ties by level, then order within it); -1 where it is absent or D is smaller than its level."""
        if self._places is None:
            places = np.full((self.positions, self.depth, self.depth), -1, dtype=np.int32)
            for level in range(self.depth):
                before = self.rank_in_level[:, level].astype(np.int64)
                mine = self.true_score[:, level, None]
                for earlier in range(level):
                    before = before + (self.scores[:, earlier] >= mine).sum(axis=1)
                present = self.rank_in_level[:, level] >= 0
                for last in range(level, self.depth):
                    if last > level:
                        before = before + (self.scores[:, last] > mine).sum(axis=1)
                    places[:, level, last] = np.where(present, before, -1)
            self._places = places
        return self._places

    def reached(self, drafted: Ints, nodes: Ints) -> Ints:
        """[N] draft tokens accepted when `drafted` levels are drafted and the `nodes` best candidates verified."""
        alive, accepted = np.ones(self.positions, dtype=np.bool_), np.zeros(self.positions, dtype=np.int64)
        for level in range(1, int(drafted.max(initial=0)) + 1):
            place = self.places[self._everywhere, level - 1, drafted - 1]
            alive &= (level <= drafted) & (place >= 0) & (place < nodes)
            accepted += alive
        return accepted

    def outcome(self, drafted: Ints, nodes: Ints) -> Outcome:
        """Rounds that draft `drafted` >= 1 levels and verify the `nodes` best of their candidates, [N] each."""
        accepted = self.reached(drafted, nodes)
        in_frontier = self.in_frontier[self._everywhere, np.maximum(accepted, 1) - 1]
        expanded = (accepted < drafted) & in_frontier
        unseen = 1 + ((accepted > 0) & ~expanded)
        levels = np.arange(1, self.depth + 1)
        rows = np.where(levels < drafted[:, None], self.frontier, 0)
        sizes = [int(n) for n in np.unique(rows) if n]
        frontiers = tuple((n, (rows == n).sum(axis=1)) for n in sizes)
        return Outcome(accepted, nodes, drafted, unseen.astype(np.int64), frontiers)

    def level_features(self, level: int) -> dict[Feature, Floats]:
        """[N] what a growth tree may ask after a level, signals excepted. Positions without a candidate hold NaN."""
        before = self.scores[:, level - 2, 0].astype(np.float64) if level > 1 else np.zeros(self.positions)
        with np.errstate(invalid="ignore"):  # -inf minus -inf, where nothing was drafted
            return features(level, self.rule.width, self.scores[:, level - 1], before)

    def grown(
        self,
        tier: Tier,
        verify_sizes: tuple[int, ...],
        growth: GrowthTree | None,
        signals: Mapping[Feature, Floats],
    ) -> tuple[Ints, Ints]:
        """[N] levels drafted and nodes verified: the decisions of `runtime.policy.growth.Growth` with arrays."""
        n = self.positions
        drafted = np.full(n, tier.depth, dtype=np.int64)
        ended_with = np.full(n, GO_ON, dtype=np.int64)
        going = np.ones(n, dtype=np.bool_)
        for level in range(1, tier.depth + 1):
            best = self.scores[:, level - 1, 0]
            dead = going & np.isneginf(best)
            ends = dead.copy()
            if growth is not None:
                leaf = decided(growth, {**signals, **self.level_features(level)}, n)
                ended_with = np.where(going & ~dead, leaf, ended_with)
                ends |= going & ~dead & (leaf != GO_ON)
            if level < tier.depth:
                ends |= going & (best.astype(np.float64) < log_gate(tier.gates[level - 1]))
            drafted[ends] = level
            going &= ~ends
        available = self.available[self._everywhere, drafted]
        return drafted, budget(tier, verify_sizes or (1,), available, self._kept(tier, drafted), ended_with)

    def _kept(self, tier: Tier, drafted: Ints) -> Ints:
        """[N] candidates that reach the gate of their level; without gates the tier's nodes."""
        if not tier.keep:
            return np.full(self.positions, tier.nodes, dtype=np.int64)
        alive = np.isfinite(self.scores)
        kept = [(alive[:, i] & (self.scores[:, i] >= log_gate(gate))).sum(axis=1) for i, gate in enumerate(tier.keep)]
        return np.cumsum(np.stack(kept, axis=1), axis=1)[self._everywhere, drafted - 1]


def decided(tree: GrowthTree, values: Mapping[Feature, Floats], n: int) -> Ints:
    """[n] leaf values of a growth tree; the vector form of `GrowthTree.decide`."""
    node = np.zeros(n, dtype=np.int64) if tree.features else np.full(n, -1, dtype=np.int64)
    for i, feature in enumerate(tree.features):  # children come after their parent
        here = node == i
        lower = values[feature] <= tree.thresholds[i]
        node = np.where(here, np.where(lower, tree.left[i], tree.right[i]), node)
    return np.asarray(tree.leaves)[-1 - node]
