"""The ladder: fixed tiers worth switching between, chosen on the tuning prompts. Arms of the rules that learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.policy import Tier
from tuner.yardsticks.base import Arena
from tuner.yardsticks.single import STATIC, best_single, grid_tiers


@dataclass(frozen=True)
class Rung:
    """One tier and what it did alone on the tuning prompts."""

    tier: Tier
    row: int
    """Its registered kind of round."""
    accepted: float
    """Draft tokens per round, bonus excluded."""
    round_ns: float


def fastest_by_depth(arena: Arena, tiers: list[Tier]) -> list[Rung]:
    """The fastest of `tiers` of every depth, shallow first."""
    replay = arena.replay
    rungs: list[Rung] = []
    for depth in sorted({tier.depth for tier in tiers}):
        best = best_single(STATIC, [tier for tier in tiers if tier.depth == depth], arena)
        tier, walk = best.source.tiers[0], best.walk(arena.tune)
        row = replay.row_of(tier, arena.grid.verify_sizes)
        rungs.append(Rung(tier, row, float(walk.accepted.mean()), float(walk.time_ns.mean())))
    return rungs


def ladders(arena: Arena) -> list[list[Rung]]:
    """One of chains and one of trees of any width, as far as the grid has them; depths that accept less than a
    cheaper one are left out."""
    every = grid_tiers(arena.grid)
    kinds = ([tier for tier in every if tier.width == 1], every)
    rungs = [fastest_by_depth(arena, tiers) for tiers in kinds if tiers]
    found = [[rung for rung in ladder if not any(_beats(other, rung) for other in ladder)] for ladder in rungs]
    return [ladder for i, ladder in enumerate(found) if ladder not in found[:i]]


def _beats(other: Rung, rung: Rung) -> bool:
    """Accepts no less in no more time, and is not its equal in both."""
    mine, theirs = (rung.accepted, -rung.round_ns), (other.accepted, -other.round_ns)
    return mine != theirs and theirs[0] >= mine[0] and theirs[1] >= mine[1]


def span(ladder: Sequence[Rung]) -> str:
    """A ladder in a few words: its first and last tier."""
    return f"{len(ladder)} tiers {ladder[0].tier.label()} to {ladder[-1].tier.label()}"
