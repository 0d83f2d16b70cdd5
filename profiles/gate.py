"""What a profile carries so that `sage_tune check` can hold a machine against it: thresholds, counters, times, bills.

A policy's rounds on given outputs do not depend on what a pass costs. Their passes, counted by kind, size and context,
therefore replay the policy exactly under any later cost table, without the record (`tuner.bills`).
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from profiles.frozen import Frozen
from profiles.measurement import PassKind


class GateLimits(Frozen):
    """Thresholds of `sage_tune check`."""

    slower: Annotated[
        float, Field(gt=0, lt=0.5, description="loss of speedup, as a share, that is found and called a regression")
    ] = 0.03
    error: Annotated[
        float, Field(gt=0, lt=0.5, description="chance of a false `regress`, and of a false `pass` at that loss")
    ] = 0.05
    regret: Annotated[
        float,
        Field(gt=0, lt=1, description="share of its time that another tier must save, beyond what it did, for re-tune"),
    ] = 0.05
    acceptance: Annotated[
        float, Field(ge=0, lt=1, description="without float32: how far the tokens per round may move, as a share")
    ] = 0.02
    half_margin: Annotated[
        float,
        Field(ge=0, description="without float32: lead in nats under which a choice may fall either way"),
    ] = 0.25
    disturbed: Annotated[
        float, Field(gt=0, lt=1, description="share of the time hit by foreign load that makes a run invalid")
    ] = 0.15


class PromptCounters(Frozen):
    """What the shipped policy does on one prompt."""

    id: str
    output_digest: str
    """Digest of the token ids of the output."""
    output_tokens: Annotated[int, Field(ge=1)]
    accepted: tuple[Annotated[int, Field(ge=0)], ...]
    """Draft tokens accepted in every round, bonus excluded."""


class PromptTime(Frozen):
    """Decode times of one prompt in the confirmation that froze the profile, foreign load left out."""

    id: str
    plain_ns: Annotated[float, Field(gt=0)]
    policy_ns: Annotated[float, Field(gt=0)]


class PassCount(Frozen):
    """How many passes of one kind and size a policy makes, by context of the cost table: a pass between two contexts
    counts for both, in proportion, as a cost table interpolates."""

    kind: PassKind
    n: Annotated[int, Field(ge=1)]
    at: tuple[Annotated[float, Field(ge=0)], ...]


class PassBill(Frozen):
    """Everything that the rounds of a policy on the record are charged for."""

    name: str
    """`plain`, `shipped`, or the label of a tier of the grid."""
    plain_rounds: Annotated[int, Field(ge=0)]
    """Rounds of plain decoding."""
    draft_rounds: Annotated[int, Field(ge=0)]
    levels: Annotated[int, Field(ge=0)]
    """Draft passes."""
    cold: tuple[Annotated[int, Field(ge=0)], ...]
    """How many outputs have a first round, a second one, ..."""
    passes: tuple[PassCount, ...]


PLAIN_BILL, SHIPPED_BILL = "plain", "shipped"


class Gate(Frozen):
    """What `check` compares with."""

    limits: GateLimits = GateLimits()
    data: dict[str, Any] = Field(default_factory=dict)
    """`data` of the configuration, where it differs from the defaults: where the prompts come from."""
    data_digest: str
    """Digest of the prompts of `counters` and `times`."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the record's noise; every prompt has one of its own, derived from it."""
    counters: Annotated[tuple[PromptCounters, ...], Field(min_length=1)]
    times: Annotated[tuple[PromptTime, ...], Field(min_length=1)]
    bills: tuple[PassBill, ...]
    """Of plain decoding, the shipped policy and every tier of the grid, at the contexts of the profile's cost table."""

    def prompt_ids(self) -> list[str]:
        """Ids of all prompts, each once, those with counters first."""
        return list(dict.fromkeys([p.id for p in self.counters] + [t.id for t in self.times]))
