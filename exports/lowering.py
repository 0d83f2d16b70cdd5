"""Lowering: every part of a policy that an engine cannot express, by name and reason, and what is left without them.

`lost` goes through all fields of a policy, so one that is added later is reported as lost and never dropped in
silence. Which fixed form is best for the engine is searched by replay (`tuner.lowering_search`); `truncated` is what
one gets without a search.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from profiles.lowering import ROOM, Abilities, FromProfile, Lost, Lowered, fixed
from profiles.measurement import PolicyResult
from profiles.policy import PolicySource, Tier, pool_size
from profiles.policy_profile import PolicyProfile
from runtime.policy.linear import chain_of

CHAIN_ROWS: Final = ("best chain",)
STATIC_ROWS: Final = ("best static", "best static tier")
"""Names of the fixed tiers in a profile's table, over all releases."""

ONCE = "the shape of a draft is set once, when the engine starts"
OWN_PROBABILITY = "it can only ask for a token's own probability, this gate is on the probability of the whole path"
NO_GATE = "it cannot end a draft by what the draft says"


def lost(profile: PolicyProfile, abilities: Abilities) -> tuple[Lost, ...]:
    """What an engine with these abilities drops from a profile's policy."""
    source = profile.source
    parts = [_signal(source), _history(source), *_tiers(source.tiers, abilities), _growth(source), _pruning(source)]
    parts += [_hull(profile), _batch(profile, abilities), _sampling(profile)]
    return tuple(part for part in parts if part is not None) + _unknown(source)


def _signal(source: PolicySource) -> Lost | None:
    if not source.edges:
        return None
    signal = source.signal
    details = [f"k {signal.top_k}"] if "entropy" in signal.kind else []
    details += ["of the round before"] if signal.lag else []
    details += [f"smoothing {signal.smoothing:g}"] if signal.smoothing else []
    reason = f"{ONCE}, no signal chooses among tiers"
    if signal.kind == "target_entropy":
        reason += "; what drafts there does not see the target's distribution"
    edges = ", ".join(f"{edge:g}" for edge in source.edges)
    return Lost(field="signal", value=f"{signal.kind} ({'; '.join([*details, 'edges ' + edges])})", reason=reason)


def _history(source: PolicySource) -> Lost | None:
    if source.history is None:
        return None
    found = source.history
    return Lost(
        field="history",
        value=f"window {found.window}, thresholds {found.low:g} and {found.high:g}, step {found.step}",
        reason="it has no window over what a request accepted of late",
    )


def _tiers(tiers: tuple[Tier, ...], abilities: Abilities) -> list[Lost | None]:
    stop = NO_GATE if abilities.confidence == "none" else OWN_PROBABILITY
    trees = abilities.room != "chain"
    rows: list[tuple[str, Callable[[Tier], str], str]] = [
        ("stop", lambda tier: f"{tier.stop:g}" if tier.stop else "", stop),
        ("stops", lambda tier: _gates(tier.stops), f"one gate per level: {stop}"),
        ("keep", lambda tier: _gates(tier.keep), "the number of nodes to verify is fixed"),
        (
            "rule",
            lambda tier: "" if tier.rule.kind == "beam" else tier.rule.stem(),
            "its trees grow by a beam" if trees else "it drafts chains, so there is no frontier to choose",
        ),
        ("width", lambda tier: str(tier.width) if tier.width > 1 and not trees else "", "it drafts chains"),
        (
            "nodes",
            lambda tier: (
                ""
                if tier.width == 1 or abilities.room != "rows" or tier.nodes <= tier.width * tier.depth
                else str(tier.nodes)
            ),
            "nodes <= width * depth must hold there",
        ),
    ]
    found: list[Lost | None] = []
    for field, value_of, reason in rows:
        values = list(dict.fromkeys(text for tier in tiers if (text := value_of(tier))))
        found.append(Lost(field=f"tiers.{field}", value=" | ".join(values), reason=reason) if values else None)
    return found


def _gates(gates: tuple[float, ...]) -> str:
    return ", ".join(f"{gate:.3g}" for gate in gates) if any(gates) else ""


def _growth(source: PolicySource) -> Lost | None:
    if source.growth is None:
        return None
    return Lost(
        field="growth",
        value=f"decision tree of {len(source.growth.leaves)} leaves",
        reason="nothing is asked between the levels of a draft",
    )


def _pruning(source: PolicySource) -> Lost | None:
    if not source.pruning.label():
        return None
    return Lost(
        field="pruning", value=source.pruning.label(), reason="its draft reads all of a prompt, or no pictures at all"
    )


def _hull(profile: PolicyProfile) -> Lost:
    return Lost(
        field="context_max",
        value=f"{profile.regime.context_max} tokens, then {profile.source.safe.label()}",
        reason="it has no tree by context length; longer requests run the same one, untuned",
    )


def _batch(profile: PolicyProfile, abilities: Abilities) -> Lost | None:
    if abilities.batches != "same":
        return None
    return Lost(
        field="batch",
        value=f"{profile.regime.batch}, then {profile.source.safe.label()}",
        reason="it has no tree by batch size; several requests at once run the same one, untuned",
    )


def _sampling(profile: PolicyProfile) -> Lost | None:
    sampling = profile.regime.sampling
    if not sampling.sampled:
        return None
    return Lost(
        field="sampling",
        value=sampling.label(),
        reason="it verifies samples by a rule of its own, not by noise that target and draft share: acceptance "
        "differs from replay, and the tokens from those of one seed",
    )


HANDLED: Final = {"name", "signal", "edges", "tiers", "history", "safe", "monotone", "growth", "pruning"}


def _unknown(source: PolicySource) -> tuple[Lost, ...]:
    """Fields that this file does not know, where they say something."""
    found = []
    for name, field in type(source).model_fields.items():
        value: Any = getattr(source, name)
        if name not in HANDLED and value != field.get_default(call_default_factory=True):
            found.append(Lost(field=name, value=str(value), reason="no exporter knows this field"))
    return tuple(found)


def truncated(source: PolicySource, abilities: Abilities) -> Lowered:
    """The deepest tier with everything left out that the engine cannot express; no search."""
    deepest = max(source.tiers, key=lambda tier: (tier.depth, tier.nodes))
    return fixed(_plain_shape(deepest, abilities), _plain_shape(source.safe, abilities))


def _plain_shape(tier: Tier, abilities: Abilities) -> Tier:
    if tier.depth == 0:
        return tier
    if abilities.room == "chain":
        return chain_of(tier).model_copy(update={"stop": 0.0, "stops": ()})
    most = pool_size(tier.depth, tier.width) if abilities.room == "pool" else tier.width * tier.depth
    return Tier(depth=tier.depth, width=tier.width, nodes=min(tier.nodes, most))


def by_profile(profile: PolicyProfile, abilities: Abilities) -> tuple[Lowered, FromProfile | None]:
    """The best lowering that a profile's own table knows of, and its row; the truncation, without numbers, where the
    table has no fixed tier that the engine can run."""
    results = profile.evidence.results
    shipped = next((row for row in results if row.name == profile.evidence.shipped_name), None)
    for names in (STATIC_ROWS, CHAIN_ROWS):
        row = next((row for row in results if row.name in names), None)
        tier = None if row is None else _tier_of(row)
        if row is None or tier is None or not abilities.holds(tier):
            continue
        return fixed(tier, _plain_shape(profile.source.safe, abilities)), FromProfile(
            row=row.name,
            acceptance_length=row.acceptance_length,
            rounds=row.rounds,
            speedup=row.speedup_replayed,
            speedup_interval=row.speedup_interval,
            full_speedup=None if shipped is None else shipped.speedup_replayed,
        )
    return truncated(profile.source, abilities), None


def _tier_of(row: PolicyResult) -> Tier | None:
    """The fixed tier of a row, from its label `depth,width,nodes`."""
    parts = row.tiers[0].split(",")
    if len(row.tiers) != 1 or len(parts) != 3 or not all(part.isdigit() for part in parts):
        return None
    depth, width, nodes = (int(part) for part in parts)
    return Tier(depth=depth, width=width, nodes=nodes)


def shape_in_words(abilities: Abilities) -> str:
    """What the engine can be told, for people."""
    ends = {
        "none": "",
        "capped": ", ended early by a token's own probability",
        "uncapped": ", or ended by a token's own probability instead of a length",
    }
    return f"{ROOM[abilities.room]} of one shape{ends[abilities.confidence]}"
