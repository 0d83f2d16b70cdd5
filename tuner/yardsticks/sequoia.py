"""Sequoia (arXiv 2402.12374): the static tree of most accepted tokens per time, from measured acceptance by rank.

The paper's recursion for a tree of n nodes, root counted, and at most d levels is

    c(n, d) = 1 + max over a_1 + a_2 + ... = n - 1 of sum_b p_b c(a_b, d - 1)

with p_b the share of positions where the output's token is the draft's choice of rank b, as if ranks were drawn
independently along a path. A node then counts with the product of p along its path, and the maximum is reached by
the n - 1 largest products: nodes are taken best first instead (tests compare with the recursion). That allows one
limit more, on the nodes of a draft pass, since only measured passes have a price. The size is chosen as in the
paper's code, by least round time over c(n, d), with the cost table at the contexts of the tuning prompts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from tuner.cost_model import Floats
from tuner.replay import Replay
from tuner.yardsticks.base import Arena, PositionRule
from tuner.yardsticks.rank_tree import Path, RankTree, fixed_tree, widest_frontier

SEQUOIA = "Sequoia"


def rank_acceptance(arena: Arena) -> Floats:
    """[K] share of tuning positions whose next token has rank 0, 1, ... in the draft's distribution."""
    record = arena.replay.record
    rank = record.column("true_rank")[np.isin(record.sample_of, arena.tune)]
    counts = np.bincount(rank[rank >= 0], minlength=record.manifest.signal_logprobs)
    shares: Floats = counts[: record.manifest.signal_logprobs] / len(rank)
    return shares


def best_first(acceptance: Sequence[float], nodes: int, depth: int, frontier: int) -> list[tuple[float, Path]]:
    """Up to `nodes` (product of acceptance, path) of the largest products, best first, root left out; at most
    `depth` levels, and at most `frontier` nodes with children on each. Every start of the list is the best tree
    of its size."""
    ranks = [(p, rank) for rank, p in enumerate(acceptance) if p > 0.0]
    heap: list[tuple[float, Path]] = [(-p, (rank,)) for p, rank in ranks]
    heapq.heapify(heap)
    chosen: list[tuple[float, Path]] = []
    parents: dict[int, set[Path]] = {}
    while heap and len(chosen) < nodes:
        negative, path = heapq.heappop(heap)
        drafted = parents.setdefault(len(path) - 1, set())
        # the root's children need no draft pass beyond the first
        if len(path) > 1 and path[:-1] not in drafted and len(drafted) == frontier:
            continue
        drafted.add(path[:-1])
        chosen.append((-negative, path))
        if len(path) < depth:
            for p, rank in ranks:
                heapq.heappush(heap, (negative * p, (*path, rank)))
    return chosen


class MeanCosts:
    """Times of passes averaged over the tuning positions."""

    def __init__(self, arena: Arena) -> None:
        replay: Replay = arena.replay
        record, grid = replay.record, arena.grid
        tuned = np.isin(record.sample_of, arena.tune)
        context, drafted_over = record.context[tuned], record.draft_context[tuned]
        self._host, self._costs, self._sizes = replay.host, replay.costs, grid.verify_sizes
        self._catch_up_ns = float(replay.costs.pass_ns("catch_up", 1, drafted_over).mean())
        self._verify_ns = {n: float(replay.costs.pass_ns("verify", n, context).mean()) for n in grid.verify_sizes}
        sizes = replay.costs.table.sizes("frontier")
        self._frontier_ns = {n: float(replay.costs.pass_ns("frontier", n, drafted_over).mean()) for n in sizes}

    def round_ns(self, tree: RankTree) -> float:
        """A round with one token to catch up on."""
        size = next(size for size in self._sizes if size > len(tree.paths))
        passes = [self._frontier_ns[self._costs.measured_size("frontier", rows)] for rows in tree.frontiers]
        host_ns = self._host.round_ns + self._host.level_ns * tree.depth
        return host_ns + self._catch_up_ns + sum(passes) + self._verify_ns[size]


def sequoia(arena: Arena) -> PositionRule | None:
    """None when the draft never proposes the output's token."""
    acceptance, costs, grid = rank_acceptance(arena), MeanCosts(arena), arena.grid
    best: tuple[float, float, RankTree] | None = None
    for depth in range(1, grid.depth + 1):
        for frontier in range(1, widest_frontier(arena) + 1) if depth > 1 else (0,):
            chosen = best_first(acceptance.tolist(), grid.max_nodes, depth, frontier)
            for nodes in {min(size - 1, len(chosen)) for size in grid.verify_sizes[1:]} - {0}:
                tree = RankTree(tuple(path for _, path in chosen[:nodes]))
                expected = 1.0 + sum(product for product, _ in chosen[:nodes])
                price = costs.round_ns(tree) / expected
                if best is None or price < best[0]:
                    best = price, expected, tree
    if best is None:
        return None
    _, expected, tree = best
    return fixed_tree(SEQUOIA, tree, f"{tree.label()}, c = {expected:.2f}", arena)
