"""Yardsticks: policies that everybody knows, found on the same record and the same grid of tiers.

`best` always means: fastest by replay on the tuning split. The prompts that results are reported on take no
part in any choice.
"""

from __future__ import annotations

from collections.abc import Iterable

from profiles.config import GridConfig
from profiles.policy import CompiledPolicy, PolicySource, Tier
from runtime.decode import OFF
from runtime.policy.compile import compile_policy
from tuner.drafts import Ints
from tuner.replay import Replay


def static_policy(name: str, tier: Tier) -> PolicySource:
    """One tier for every round."""
    return PolicySource(name=name, tiers=(tier,))


def plain() -> PolicySource:
    """Autoregressive decoding."""
    return static_policy("plain", OFF)


def chain_tiers(grid: GridConfig) -> list[Tier]:
    """Linear drafts of every length: the classic draft-and-verify of one guess per step."""
    if 1 not in grid.widths:
        return []
    return [Tier(depth=d, width=1, nodes=d) for d in range(1, grid.depth + 1) if d + 1 <= grid.verify_sizes[-1]]


def static_tiers(grid: GridConfig) -> list[Tier]:
    """Every fixed shape of the grid that leaves no verify slot idle (EAGLE-2 style single tiers)."""
    return [
        Tier(depth=depth, width=width, nodes=nodes)
        for width in grid.widths
        for depth in range(1, grid.depth + 1)
        for nodes in grid.node_counts(depth, width)
    ]


def stopping_tiers(tier: Tier, stops: Iterable[float]) -> list[Tier]:
    """The same shape with every early stop of the search space."""
    return [tier.model_copy(update={"stop": stop}) for stop in stops if stop > 0]


def best_single(
    name: str, tiers: list[Tier], replay: Replay, samples: Ints, grid: GridConfig
) -> tuple[PolicySource, float]:
    """The fastest of `tiers` as a policy, with its replayed speedup over plain decoding."""
    scored = [(replay.speedup(compiled(static_policy(name, tier), grid, replay), samples), tier) for tier in tiers]
    speedup, tier = max(scored, key=lambda pair: pair[0])
    return static_policy(name, tier), speedup


def compiled(source: PolicySource, grid: GridConfig, replay: Replay) -> CompiledPolicy:
    """Compile for the grid's verify sizes and the record's contexts."""
    return compile_policy(source, grid.verify_sizes, replay.record.context_max)
