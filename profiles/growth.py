"""Growth trees: a small decision tree that is asked after every drafted level whether to go on, and how much to
verify. It is the in-draft half of a policy, as the signal table is the half that is decided before drafting.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from profiles.frozen import Frozen

MAX_LEAVES = 32

Feature = Literal[
    "level",
    "entropy",
    "one_minus_top1",
    "one_minus_margin",
    "target_entropy",
    "best",
    "step",
    "lead",
    "mass",
]
"""What a growth tree may ask.

`level` counts drafted levels from 1; the next four are the round's signals (entropies over the policy's
`top_k`); `best` is the frontier's best cumulative log-probability, `step` what the last level added to it,
`lead` its distance to the second best candidate of the level (`NO_RIVAL` without one), `mass` the summed
probability of the level's `width` best candidates.
"""
FEATURES: Final[tuple[Feature, ...]] = get_args(Feature)
NO_RIVAL: Final = 50.0
"""Lead of a candidate that stands alone, in nats: more than float32 probabilities can express."""
GO_ON: Final = 0
"""Leaf value that drafts another level; any other leaf is the verify size (root counted) to end with."""


class GrowthTree(Frozen):
    """Decision nodes in arrays, node 0 first: `value <= threshold` goes to `left`, else to `right`.

    A child index below 0 is leaf `-1 - index`; `leaves[i]` is `GO_ON` or a verify size. A tree without nodes
    has one leaf. At the tier's last level, or when no candidate is left, going on is no choice: as much is
    verified as the tier allows.
    """

    features: tuple[Feature, ...] = ()
    thresholds: tuple[float, ...] = ()
    left: tuple[int, ...] = ()
    right: tuple[int, ...] = ()
    leaves: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1, max_length=MAX_LEAVES)]
    top_k: Annotated[int, Field(ge=2, le=64)] = 10
    """k of the entropies."""

    @model_validator(mode="after")
    def _one_tree(self) -> Self:
        nodes = len(self.features)
        if not nodes == len(self.thresholds) == len(self.left) == len(self.right) == len(self.leaves) - 1:
            raise ValueError(f"a tree of {len(self.leaves)} leaves has {len(self.leaves) - 1} nodes, got {nodes}")
        # every node but the first and every leaf has exactly one parent, which comes before it
        children = sorted(child for pair in zip(self.left, self.right, strict=True) for child in pair)
        expected = [-1 - leaf for leaf in reversed(range(len(self.leaves)))] + list(range(1, nodes))
        if nodes and children != expected:
            raise ValueError(f"every node and leaf must have one parent, got children {children}")
        for parent, pair in enumerate(zip(self.left, self.right, strict=True)):
            if any(0 <= child <= parent for child in pair):
                raise ValueError(f"node {parent} points back to {pair}")
        return self

    def check_sizes(self, verify_sizes: tuple[int, ...]) -> None:
        """Raises ValueError when a leaf ends a round with a size that is not one of the policy's."""
        unknown = sorted({size for size in self.leaves if size != GO_ON} - set(verify_sizes))
        if unknown:
            raise ValueError(f"leaves must be verify sizes of the policy {verify_sizes}, got {unknown}")

    def decide(self, values: dict[Feature, float]) -> int:
        """The leaf value for one set of features."""
        node = 0 if self.features else -1
        while node >= 0:
            lower = values[self.features[node]] <= self.thresholds[node]
            node = self.left[node] if lower else self.right[node]
        return self.leaves[-1 - node]
