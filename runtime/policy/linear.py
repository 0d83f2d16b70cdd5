"""A policy as chains: what is left of it where an engine takes one token after another and no tree.

Depth still follows signal and history; gates still end a draft early. Width, drafting rule and the number of nodes
have no meaning in a chain, and a growth tree asks for siblings that a chain does not have.
"""

from __future__ import annotations

from profiles.policy import CompiledPolicy, PolicySource, Tier
from runtime.policy.compile import compile_policy


def chain_of(tier: Tier) -> Tier:
    """The tier's best path: the same depth and stops, one node per level."""
    if tier.depth == 0:
        return tier
    return Tier(depth=tier.depth, width=1, nodes=tier.depth, stop=tier.stop, stops=tier.stops)


def linear_source(source: PolicySource) -> PolicySource:
    """The policy with every tier as its chain, and without its growth tree."""
    return source.model_copy(
        update={
            "name": f"{source.name} as chains",
            "tiers": tuple(chain_of(tier) for tier in source.tiers),
            "safe": chain_of(source.safe),
            "growth": None,
        }
    )


def linear_policy(source: PolicySource, context_max: int) -> CompiledPolicy:
    """Compiled for verification passes of every size: chains leave no slot idle."""
    linear = linear_source(source)
    deepest = max(tier.depth for tier in (*linear.tiers, linear.safe))
    if linear.history is not None:
        deepest = max(deepest, max(tier.depth for tier in linear.tiers) + linear.history.step)
    return compile_policy(linear, tuple(range(1, deepest + 2)), context_max)
