"""TALON (arXiv 2601.07353): a level's frontier keeps the candidates whose cumulative probability is at least mu times
the level's best, so that trees are deep where the draft is sure and wide where it is not.

Its drafting rule is recorded at one width and one mu (`grid.margin`); the formula could not be compared with the
paper's text. The paper spends a fixed number of nodes without a limit on depth; here levels and nodes are those of
the grid, chosen on the tuning prompts.
"""

from __future__ import annotations

from profiles.policy import BEAM, Tier
from tuner.yardsticks.base import Arena, TablePolicy
from tuner.yardsticks.single import best_single

TALON = "TALON"


def talon(arena: Arena) -> TablePolicy | None:
    """None when the margin rule is not recorded."""
    grid, rule = arena.grid, arena.grid.margin_rule
    if rule is None:
        return None
    margin = BEAM.model_copy(update={"kind": rule.kind, "mu": rule.mu})
    tiers = [
        Tier(depth=depth, width=rule.width, nodes=nodes, rule=margin)
        for depth in range(1, grid.depth + 1)
        for nodes in grid.node_counts(depth, rule.width)
    ]
    return best_single(TALON, tiers, arena)
