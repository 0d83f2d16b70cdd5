"""Lowering: the readable policy to the table that the runtime obeys, and the reference it must equal."""

from __future__ import annotations

from bisect import bisect_right

from profiles.policy import HISTORY_STATES, CompiledPolicy, HistorySpec, PolicySource, Tier, pool_size


def reference_tier(source: PolicySource, signal: float, state: int) -> Tier:
    """The tier that `source` means for a signal and a history state (index into HISTORY_STATES)."""
    tier = source.tiers[bisect_right(source.edges, signal)]
    if source.history is None or HISTORY_STATES[state] == "mid":
        return tier
    return shifted(tier, source.history, -1 if HISTORY_STATES[state] == "low" else 1)


def shifted(tier: Tier, history: HistorySpec, sign: int) -> Tier:
    """The tier with its depth moved by one history step and its nodes kept possible. Plain steps stay plain,
    and a clamp never moves a depth against the step."""
    if tier.depth == 0:
        return tier
    if sign < 0:
        depth = max(tier.depth - history.step, min(history.min_depth, tier.depth))
    else:
        depth = min(tier.depth + history.step, max(history.max_depth, tier.depth))
    nodes = min(max(tier.nodes, depth), pool_size(depth, tier.width))
    return tier.model_copy(
        update={
            "depth": depth,
            "nodes": nodes,
            "stops": _resized(tier.stops, depth - 1),
            "keep": _resized(tier.keep, depth),
        }
    )


def _resized(gates: tuple[float, ...], levels: int) -> tuple[float, ...]:
    """Gates for another depth: levels that are gone are dropped, new ones repeat the last."""
    return gates[:levels] + gates[-1:] * (levels - len(gates))


def compile_policy(source: PolicySource, verify_sizes: tuple[int, ...], context_max: int) -> CompiledPolicy:
    """Integer table, distinct tiers and buffer caps of a policy.

    Raises ValueError (through the model) when a tier needs more than the largest verify size.
    """
    tiers: dict[Tier, int] = {}

    def index(tier: Tier) -> int:
        return tiers.setdefault(tier, len(tiers))

    representatives = (-1.0, *source.edges)
    table = tuple(
        (
            index(reference_tier(source, signal, 0)),
            index(reference_tier(source, signal, 1)),
            index(reference_tier(source, signal, 2)),
        )
        for signal in representatives
    )
    safe = index(source.safe)
    return CompiledPolicy(
        signal=source.signal,
        edges=source.edges,
        table=table,
        tiers=tuple(tiers),
        safe=safe,
        history=source.history,
        verify_sizes=verify_sizes,
        max_depth=max(tier.depth for tier in tiers),
        max_width=max(tier.width for tier in tiers),
        max_nodes=max(tier.nodes for tier in tiers),
        context_max=context_max,
        growth=source.growth,
        pruning=source.pruning,
    )
