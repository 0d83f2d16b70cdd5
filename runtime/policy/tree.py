"""Candidate trees: growth level by level, selection of the nodes to verify, the ancestor mask.

The same `expand` serves live drafting (one tree) and trace recording (many trees at once), so a recorded
order is the live order. Scores are cumulative log-probabilities in float32 everywhere, for the same reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from profiles.policy import DraftRule

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]


def proposed(rule: DraftRule, level: int, parent_logprobs: FloatArray, child_logprobs: FloatArray) -> FloatArray:
    """The children that a rule lets a frontier propose; the others become -inf.

    `parent_logprobs` [..., F] of the frontier's nodes, their own or, for a cumulative rule, along their path;
    `child_logprobs` [..., F, W], each row sorted best first. Returns [..., F, W].
    """
    if rule.kind != "tapered":
        return child_logprobs
    allowed = np.ones(child_logprobs.shape, dtype=np.bool_)
    if level > 1:
        limit = rule.width / level * (0.5 + np.exp(parent_logprobs))
        if rule.rounding != "none":
            limit = {"floor": np.floor, "nearest": np.rint, "ceil": np.ceil}[rule.rounding](limit)
        allowed &= np.arange(child_logprobs.shape[-1]) < limit[..., None]
    if rule.own_floor:
        allowed &= np.exp(child_logprobs) > rule.own_floor * level
    return np.where(allowed, child_logprobs, np.float32(-np.inf))


def frontier_rows(rule: DraftRule, scores: FloatArray) -> IntArray:
    """How many of a level's candidates [..., C], sorted best first, form its frontier; returns [...]."""
    best = scores[..., : rule.width]
    alive = np.isfinite(best)
    if rule.kind == "margin":
        alive &= best >= best[..., :1] + np.float32(math.log(rule.mu))
    rows: IntArray = alive.sum(axis=-1)
    return rows


class Candidates(NamedTuple):
    """The candidates of one level, best first. Leading axes are trees; those that a rule forbids are -inf, at the
    end of an array of many trees, and left out of the arrays of a single one."""

    scores: FloatArray
    """[..., C] cumulative log-probability."""
    parents: IntArray
    """[..., C] slot of the parent in the frontier of the level before."""
    ranks: IntArray
    """[..., C] place among the children of that parent, 0 best."""


def expand(frontier_scores: FloatArray, child_logprobs: FloatArray) -> Candidates:
    """All children of a frontier, ranked by cumulative score; ties by parent order, then rank.

    Shapes: frontier_scores [..., F], child_logprobs [..., F, W] with each row sorted best first.
    Returns arrays [..., F * W].
    """
    scores = (frontier_scores[..., None] + child_logprobs).astype(np.float32, copy=False)
    width = child_logprobs.shape[-1]
    flat = scores.reshape(*scores.shape[:-2], -1)
    order = np.argsort(-flat, axis=-1, kind="stable")
    ordered = -np.sort(-flat, axis=-1, kind="stable")
    if flat.ndim == 1 and len(flat) and np.isneginf(ordered[-1]):
        alive = int(np.isfinite(ordered).sum())
        order, ordered = order[:alive], ordered[:alive]
    parents, ranks = np.divmod(order, width)
    return Candidates(ordered, parents, ranks)


@dataclass
class Pool:
    """Every candidate that a round drafted, level by level; within a level best first.

    `parents` are pool indices, -1 for the root. The first candidates of a level are its frontier.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    expanded: list[int] = field(default_factory=list)
    """Pool indices that went through the draft, in the order of their cache rows."""

    def add_level(self, level: Candidates, tokens: IntArray, frontier: list[int], depth: int) -> list[int]:
        """Append one level (arrays [C], none of them -inf); returns the pool indices of its candidates."""
        start = len(self.tokens)
        self.tokens += tokens.tolist()
        self.parents += [frontier[slot] for slot in level.parents.tolist()]
        self.scores += level.scores.tolist()
        self.depths += [depth] * len(tokens)
        return list(range(start, len(self.tokens)))


@dataclass(frozen=True)
class Tree:
    """The nodes that go to verification, parents before children; node 0 is the root.

    `parents[0]` is -1; `pool_index[i]` says which candidate node i was (-1 for the root).
    """

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    pool_index: list[int]

    def __len__(self) -> int:
        return len(self.tokens)


def select(pool: Pool, nodes: int, root_token: int) -> Tree:
    """The `nodes` best candidates by cumulative score, ties by level then order within it.

    Scores never rise along a path and a parent precedes its children on ties, so the selection is closed
    under ancestors. Fewer are returned when the pool is smaller.
    """
    ranked = np.argsort(-np.asarray(pool.scores, dtype=np.float32), kind="stable")[:nodes]
    chosen = np.sort(ranked).tolist()
    place = {-1: 0}
    tokens, parents, depths = [root_token], [-1], [0]
    for i, candidate in enumerate(chosen, start=1):
        place[candidate] = i
        tokens.append(pool.tokens[candidate])
        parents.append(place[pool.parents[candidate]])
        depths.append(pool.depths[candidate])
    return Tree(tokens, parents, depths, [-1, *chosen])


def ancestor_mask(parents: list[int]) -> BoolArray:
    """[n, n] bool: node i may attend to itself and its ancestors. Parents must precede children."""
    n = len(parents)
    mask = np.zeros((n, n), dtype=np.bool_)
    for i, parent in enumerate(parents):
        if parent >= 0:
            mask[i] = mask[parent]
        mask[i, i] = True
    return mask


def padded_size(nodes: int, verify_sizes: tuple[int, ...]) -> int:
    """The verify size (root counted) that a tree of `nodes` nodes is charged for. Raises ValueError beyond."""
    for size in verify_sizes:
        if size >= nodes + 1:
            return size
    raise ValueError(f"a tree of {nodes} nodes and its root exceeds the largest verify size {verify_sizes[-1]}")
