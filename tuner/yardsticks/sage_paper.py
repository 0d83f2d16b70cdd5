"""SAGE as its paper states it (arXiv 2602.00523): the preset `sage-paper` on the grid, nothing fitted."""

from __future__ import annotations

from tuner.yardsticks.base import Arena, TablePolicy

SAGE_PAPER = "sage-paper"


def sage_paper(arena: Arena) -> TablePolicy | None:
    """None when it is not wanted, or when a drafting rule of it is not on record (it was that of a larger grid)."""
    grid, recorded = arena.grid, arena.replay.record.manifest.rules
    source = grid.sage_paper.source(grid.depth, grid.widths, grid.max_nodes)
    if not grid.sage_paper.record or any(tier.draft_rule not in recorded for tier in source.tiers):
        return None
    return TablePolicy(SAGE_PAPER, source, arena)
