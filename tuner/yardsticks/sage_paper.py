"""SAGE as its paper states it (arXiv 2602.00523): the preset `sage-paper` on the grid, nothing fitted."""

from __future__ import annotations

from tuner.yardsticks.base import Arena, TablePolicy

SAGE_PAPER = "sage-paper"


def sage_paper(arena: Arena) -> TablePolicy | None:
    """None when its drafting rule is not recorded."""
    grid = arena.grid
    if not grid.sage_paper.record:
        return None
    return TablePolicy(SAGE_PAPER, grid.sage_paper.source(grid.depth, grid.widths, grid.max_nodes), arena)
