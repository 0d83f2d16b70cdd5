"""What becomes of a policy in another engine: the form that the engine can run, what it drops, and what that costs.

`LoweringReport` is the `lowering.json` of every export. Its digests say which profile it was made from and which
decisions the engine was given, so that a running engine can be held to them (`sage_tune verify-applied`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from profiles.frozen import Frozen
from profiles.measurement import Interval
from profiles.policy import PolicySource, Tier
from profiles.provenance import digest

REPORT_NAME: Final = "lowering.json"
REPORT_VERSION: Final = 1

TreeRoom = Literal["chain", "rows", "pool"]
"""Nodes that an engine verifies besides the root: those of a chain, at most `width` for every level, or any number
that is drafted."""
Confidence = Literal["none", "capped", "uncapped"]
"""Whether drafting may end after a token whose own probability is below a threshold: never, together with a cap on
the length, or instead of one."""
Batches = Literal["one", "schedule", "same"]
"""What happens when several requests run at once: they never do, the draft has a length by batch size, or the same
shape is drafted for all."""
ROOM: Final[dict[TreeRoom, str]] = {
    "chain": "a chain",
    "rows": "a tree of at most width * depth nodes",
    "pool": "a tree",
}


class Abilities(Frozen):
    """What an engine can be told about one round. It is told once: no engine here changes its tree by a signal."""

    room: TreeRoom
    confidence: Confidence = "none"
    batches: Batches = "same"

    def holds(self, tier: Tier) -> bool:
        """True when the engine can run this shape in every round."""
        if tier.reacts:
            return False
        if tier.width == 1:
            return tier.nodes == tier.depth
        limit = {"chain": 0, "rows": tier.width * tier.depth, "pool": tier.nodes}[self.room]
        return tier.nodes <= limit


class Lowered(Frozen):
    """A policy as an engine runs it: one tier for every round, and where the engine has it a stop by confidence."""

    source: PolicySource
    confidence: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Drafting ends after the first token whose own probability is below this; 0 never. The gates of a tier are on
    probabilities of whole paths and are another rule."""
    capped: bool = True
    """False when the confidence alone ends a draft. The tier's depth then only says how deep the record goes."""

    @model_validator(mode="after")
    def _one_tier(self) -> Self:
        tiers = self.source.tiers
        if len(tiers) != 1 or self.source.history is not None or self.source.growth is not None or tiers[0].reacts:
            raise ValueError(f"a lowered policy is one fixed tier, got {self.source!r}")
        if self.confidence and tiers[0].width != 1:
            raise ValueError(f"a confidence belongs to a chain, got {self.confidence} with tier {tiers[0].label()}")
        if not (self.capped or self.confidence):
            raise ValueError("a draft that nothing ends: either a length or a confidence must")
        return self

    @property
    def tier(self) -> Tier:
        return self.source.tiers[0]

    def label(self) -> str:
        """`5,2,7`, or `4,1,4, confidence 0.4`; `confidence 0.4, no limit` where no length is given."""
        if not self.capped:
            return f"confidence {self.confidence:g}, no limit"
        return self.tier.label() + (f", confidence {self.confidence:g}" if self.confidence else "")

    def digest(self) -> str:
        """Of the decisions; the name is not one."""
        return digest(
            {
                "tier": self.tier.model_dump(mode="json", exclude_defaults=True),
                "safe": self.source.safe.model_dump(mode="json", exclude_defaults=True),
                "confidence": self.confidence,
                "capped": self.capped,
            }
        )


def fixed(tier: Tier, safe: Tier, confidence: float = 0.0, capped: bool = True) -> Lowered:
    """The lowered policy of one tier; `safe` is used outside the hull that the profile was tuned in."""
    return Lowered(source=PolicySource(name="lowered", tiers=(tier,), safe=safe), confidence=confidence, capped=capped)


class Lost(Frozen):
    """One part of a policy that an engine has no place for."""

    field: str
    value: str
    reason: str


class Replayed(Frozen):
    """A policy replayed on the record's report prompts. Intervals are over prompts."""

    label: str
    speedup: Interval
    """Over plain decoding, with the profile's own cost table."""
    acceptance_length: Interval
    """Tokens per round, bonus included."""
    rounds: Annotated[int, Field(ge=1)]


class PositionRate(Frozen):
    """Share of rounds that accept a level or more, 95 % by prompts."""

    rate: float
    low: float
    high: float


class LoweringNumbers(Frozen):
    """What the search for the best lowering found on a record."""

    full: Replayed
    lowered: Replayed
    truncated: Replayed
    """The same policy with what the engine cannot express simply left out: what a search has to beat."""
    loss: Interval
    """Share of the full policy's speed that is lost: 1 - time of the full policy / time of the lowered one."""
    positions: tuple[PositionRate, ...]
    """Acceptance of the lowered policy by level, first level first."""
    tried: Annotated[int, Field(ge=1)]
    """Candidates that were replayed on the tuning prompts."""
    trace_digest: str


class FromProfile(Frozen):
    """Rows of a profile that speak of the lowered policy, where no record is at hand."""

    row: str
    acceptance_length: float
    rounds: int
    speedup: float
    """Replayed when the profile was made."""
    speedup_interval: Interval | None
    full_speedup: float | None
    """The same of the shipped policy, on the same prompts; a paired interval of the loss needs the record."""


class LoweringReport(Frozen):
    """`lowering.json`."""

    version: Literal[1] = REPORT_VERSION
    engine: str
    engine_version: str
    method: str
    profile: str
    profile_digest: str
    lowered: Lowered
    lowered_digest: str
    lost: tuple[Lost, ...]
    numbers: LoweringNumbers | None
    """None when the export was made without a record."""
    from_profile: FromProfile | None = None
    notes: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of every artefact by name."""

    @model_validator(mode="after")
    def _digest_of_the_decisions(self) -> Self:
        if self.lowered_digest != self.lowered.digest():
            raise ValueError(
                f"lowered_digest is {self.lowered_digest[:12]}, the lowered policy gives {self.lowered.digest()[:12]}"
            )
        return self
