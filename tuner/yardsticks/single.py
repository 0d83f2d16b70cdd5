"""The simplest yardsticks: plain decoding, the best chain, the best fixed tree.

Plain decoding is the unit of every speedup. A chain is classic speculative decoding (Leviathan et al. 2023,
arXiv 2211.17192). The best single tier is EAGLE-2's dynamic tree (arXiv 2406.16858): candidates ranked by the
product of draft confidences, expanded by a beam, the best kept; its depth, width and size are chosen on the
tuning prompts.
"""

from __future__ import annotations

from collections.abc import Iterable

from profiles.config import GridConfig
from profiles.policy import PolicySource, Tier
from runtime.decode import OFF
from tuner.yardsticks.base import Arena, TablePolicy

PLAIN, CHAIN, STATIC = "plain", "best chain", "best static"


def static_policy(name: str, tier: Tier) -> PolicySource:
    """One tier for every round."""
    return PolicySource(name=name, tiers=(tier,))


def plain(arena: Arena) -> TablePolicy:
    """Autoregressive decoding."""
    return TablePolicy(PLAIN, static_policy(PLAIN, OFF), arena)


def best_chain(arena: Arena) -> TablePolicy | None:
    """The fastest linear draft; None when the grid records no chains."""
    chains = chain_tiers(arena.grid)
    return best_single(CHAIN, chains, arena) if chains else None


def best_static(arena: Arena) -> TablePolicy:
    """The fastest fixed shape: what an adaptive policy has to beat."""
    return best_single(STATIC, grid_tiers(arena.grid), arena)


def grid_tiers(grid: GridConfig) -> list[Tier]:
    """Every fixed shape of the grid that leaves no verify slot idle."""
    return [
        Tier(depth=depth, width=width, nodes=nodes)
        for width in grid.widths
        for depth in range(1, grid.depth + 1)
        for nodes in grid.node_counts(depth, width)
    ]


def chain_tiers(grid: GridConfig) -> list[Tier]:
    """Linear drafts of every length."""
    if 1 not in grid.widths:
        return []
    return [Tier(depth=d, width=1, nodes=d) for d in range(1, grid.depth + 1) if d + 1 <= grid.verify_sizes[-1]]


def stopping_tiers(tier: Tier, stops: Iterable[float]) -> list[Tier]:
    """The same shape with every early stop of the search space."""
    return [tier.model_copy(update={"stop": stop}) for stop in stops if stop > 0]


def best_single(name: str, tiers: list[Tier], arena: Arena) -> TablePolicy:
    """The fastest of `tiers` on the tuning prompts."""
    policies = [TablePolicy(name, static_policy(name, tier), arena) for tier in tiers]
    return max(policies, key=lambda policy: arena.speedup(policy.walk(arena.tune), arena.tune))
