"""OPT-Tree (arXiv 2406.17276): the tree of most expected accepted tokens, layer by layer, until a layer adds little.

After every layer the n nodes with the largest products of draft probabilities form the tree; its expected number of
accepted tokens E is the sum of these products. Drafting ends when a layer raises E by no more than delta. The paper
drafts n nodes per layer; here a layer's frontier is a recorded beam, so that the budget is everybody's. Width, n and
delta are chosen on the tuning prompts. (The authors' code leaves the newest layer out of E; the paper does not.)
"""

from __future__ import annotations

import numpy as np

from profiles.config import GridConfig
from profiles.policy import DraftRule, Tier, pool_size
from tuner.cost_model import Floats
from tuner.drafts import Ints, RuleRecord
from tuner.yardsticks.base import Arena, Contestant, PositionRule, best_of

OPT_TREE = "OPT-Tree"
DELTAS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)


def expected_accepted(draft: RuleRecord, nodes: list[int]) -> Floats:
    """[len(nodes), N, D] sum of the path products of the n best candidates of levels 1..d."""
    flat = np.exp(draft.scores.astype(np.float64)).reshape(draft.positions, -1)
    per_level = draft.scores.shape[2]
    expected = np.empty((len(nodes), draft.positions, draft.depth))
    best = np.zeros((draft.positions, 0))
    for level in range(draft.depth):
        best = np.concatenate([best, flat[:, level * per_level : (level + 1) * per_level]], axis=1)
        best = -np.sort(-best, axis=1)[:, : max(nodes)]
        sums = best.cumsum(axis=1)
        for i, n in enumerate(nodes):
            expected[i, :, level] = sums[:, min(n, sums.shape[1]) - 1]
    return expected


def levels_until(gain: Floats, delta: float, deepest: int) -> Ints:
    """[N] levels drafted: the first whose gain [N, D] is not above delta, at most `deepest`."""
    ends = gain[:, :deepest] <= delta
    ends[:, -1] = True
    levels: Ints = ends.argmax(axis=1) + 1
    return levels


def node_counts(grid: GridConfig, width: int) -> list[int]:
    """Budgets that fill a verify slot, up to the deepest pool of this width."""
    return [size - 1 for size in grid.verify_sizes[1:] if size - 1 <= pool_size(grid.depth, width)]


def opt_tree(arena: Arena) -> Contestant:
    grid, replay = arena.grid, arena.replay
    rules: list[Contestant] = []
    for width in grid.widths:
        draft = replay.record.draft(DraftRule(width=width))
        counts = node_counts(grid, width)
        for n, expected in zip(counts, expected_accepted(draft, counts), strict=True):
            gain = np.diff(expected, axis=1, prepend=0.0)
            deepest = min(n, grid.depth)  # a path of n nodes leaves no room for another level
            tiers = [Tier(depth=d, width=width, nodes=min(n, pool_size(d, width))) for d in range(1, deepest + 1)]
            rows = np.array([replay.row_of(tier, grid.verify_sizes) for tier in tiers])
            for delta in DELTAS:
                levels = levels_until(gain, delta, deepest)
                detail = f"width {width}, {n} nodes, delta = {delta:g}"
                rules.append(PositionRule(OPT_TREE, detail, rows[levels - 1], arena))
    return best_of(rules, arena)
