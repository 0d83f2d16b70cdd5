"""The fixed 25-node tree of EAGLE (arXiv 2401.15077) and SpecVLM (arXiv 2508.16201), and rank trees in general.

A rank tree says once and for all which children are drafted: node [0, 2] is the third best token after the best
one. What it accepts is exact from one column: the draft's distribution at a node of the true path is its root
distribution at that later position of the output, so `true_rank` there says which child the path takes. That holds
under sampling too, since noise and penalty depend on position and prefix alone; the tree keeps its shape, and a node
whose rank the draft's filters leave out is padding. The paths were compared with EAGLE's code (`mc_sim_7b_63` in
eagle/model/choices.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from profiles.errors import EnvelopeError
from tuner.drafts import Outcome
from tuner.outcomes import Record
from tuner.yardsticks.base import Arena, PositionRule

RANK_TREE = "rank tree"
Path = tuple[int, ...]
"""Ranks among siblings from the root to a node, 0 best."""

EAGLE_PATHS: tuple[Path, ...] = (
    *((0,), (1,), (2,), (3,)),
    *((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)),
    *((0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (0, 1, 1), (0, 2, 0), (0, 2, 1), (1, 0, 0)),
    *((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 0, 2)),
    *((0, 0, 0, 0, 0), (0, 0, 0, 0, 1)),
)


@dataclass(frozen=True)
class RankTree:
    """Nodes as rank paths, the root not among them. Raises ValueError for a node without its parent."""

    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        known = {(), *self.paths}
        orphans = [path for path in self.paths if path[:-1] not in known]
        if not self.paths or orphans or len(known) != len(self.paths) + 1:
            raise ValueError(f"a rank tree has distinct nodes whose parents are in it, got {self.paths}")

    @cached_property
    def parents(self) -> frozenset[Path]:
        """Nodes that have children: these go through the draft."""
        return frozenset(path[:-1] for path in self.paths if len(path) > 1)

    @property
    def depth(self) -> int:
        return max(len(path) for path in self.paths)

    @property
    def frontiers(self) -> list[int]:
        """Nodes in the draft pass after level 1, 2, ...: those of the level that have children."""
        counts = Counter(len(path) for path in self.parents)
        return [counts[level] for level in range(1, self.depth)]

    def label(self) -> str:
        """Nodes by level."""
        counts = Counter(len(path) for path in self.paths)
        return f"{len(self.paths)} nodes, levels {','.join(str(counts[i]) for i in range(1, self.depth + 1))}"

    def outcome(self, record: Record) -> Outcome:
        """The tree as a round at every position. Raises EnvelopeError for a rank beyond the recorded ones."""
        kept, n = record.manifest.signal_logprobs, record.positions
        largest = max(max(path) for path in self.paths)
        if largest >= kept:
            raise EnvelopeError(f"rank {largest} of a tree is outside the record ({kept} ranks per position)")
        index = {path: i for i, path in enumerate([(), *self.paths])}
        child = np.full((len(index), kept + 1), -1)  # the last column is what rank -1 reads: beyond the recorded ones
        for path in self.paths:
            child[index[path[:-1]], path[-1]] = index[path]
        rank, everywhere = record.column("true_rank"), np.arange(n)
        rank = np.where(rank < kept, rank, -1)
        node, accepted = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
        alive = np.ones(n, dtype=np.bool_)
        for level in range(self.depth):
            at = np.minimum(everywhere + level, n - 1)
            step = child[node, rank[at]]
            alive &= (everywhere + level < record.end[record.sample_of]) & (step >= 0)
            node, accepted = np.where(alive, step, node), accepted + alive
        expanded = np.array([not path or path in self.parents for path in index])
        sizes = Counter(self.frontiers)
        return Outcome(
            accepted=accepted,
            nodes=np.full(n, len(self.paths)),
            levels=np.full(n, self.depth),
            unseen=np.where(expanded[node], 1, 2),
            frontiers=tuple((size, np.full(n, passes)) for size, passes in sorted(sizes.items())),
        )


def fixed_tree(name: str, tree: RankTree, detail: str, arena: Arena) -> PositionRule:
    """The same tree in every round. Raises EnvelopeError for one outside the grid or the measured passes."""
    grid = arena.grid
    if tree.depth > grid.depth or len(tree.paths) > grid.max_nodes:
        raise EnvelopeError(
            f"depth <= {grid.depth} and nodes <= {grid.max_nodes} of the grid must hold, the tree has {tree.label()}"
        )
    row = arena.replay.register(tree.outcome(arena.replay.record), grid.verify_sizes)
    return PositionRule(name, detail, np.full(arena.replay.record.positions, row), arena)


def widest_frontier(arena: Arena) -> int:
    """Nodes of the largest measured frontier pass; 0 where none was measured."""
    return max(arena.replay.costs.table.sizes("frontier"), default=0)


def clipped(tree: RankTree, depth: int, nodes: int, ranks: int, frontier: int) -> RankTree:
    """What fits the limits: too deep and too high ranks go first, then in every level the children of the
    parents that come last, then the deepest nodes, last first."""
    kept: list[Path] = []
    parents: dict[int, set[Path]] = {}
    for path in sorted(tree.paths, key=lambda path: (len(path), path)):
        parent = path[:-1]
        if len(path) > depth or path[-1] >= ranks or (parent and parent not in kept):
            continue
        if parent:
            drafted = parents.setdefault(len(parent), set())
            if parent not in drafted and len(drafted) == frontier:
                continue
            drafted.add(parent)
        kept.append(path)
    return RankTree(tuple(kept[:nodes]))


def rank_tree(arena: Arena) -> PositionRule:
    """The 25-node tree; on a smaller grid what is left of it. Nothing is fitted."""
    grid, ranks = arena.grid, arena.replay.record.manifest.signal_logprobs
    whole = RankTree(EAGLE_PATHS)
    tree = clipped(whole, grid.depth, grid.max_nodes, ranks, widest_frontier(arena))
    detail = tree.label() if tree == whole else f"{tree.label()} (25 nodes clipped to the grid)"
    return fixed_tree(RANK_TREE, tree, detail, arena)
