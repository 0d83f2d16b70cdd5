"""What decoding leaves behind: one `StepRecord` per round and the `Generation` that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from profiles.measurement import PassKind
from profiles.policy import Tier
from runtime.policy.tree import padded_size

Finished = Literal["eos", "length", "stop"]


COLD_ROUNDS = 4
"""First rounds of an output, whose caches the prefill left cold."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One round. `accepted` counts draft tokens that were emitted; `emitted` includes the bonus."""

    position: int
    """Index of the root token in the output."""
    context: int
    """Committed tokens before the round, prompt included."""
    draft_context: int
    """The same without the visual tokens that the draft does without."""
    tier: Tier
    signal: float
    """The policy's signal, NaN when no draft pass was made."""
    caught_up: int
    """Committed tokens that the catch-up pass fed to the draft, 0 when no draft pass was made."""
    nodes: int
    """Nodes verified, root and padding excluded."""
    accepted: int
    emitted: int
    draft_passes_ns: tuple[int, ...]
    """Time of every draft pass: the catch-up pass, then one per expanded frontier."""
    verify_ns: int
    """Time inside the target pass."""
    round_ns: int
    """Time of the whole round; the rest is host time."""

    @property
    def levels(self) -> int:
        """Draft passes made, the catch-up pass included."""
        return len(self.draft_passes_ns)

    def passes(self, verify_sizes: tuple[int, ...]) -> Iterator[tuple[PassKind, int, int, int]]:
        """Every pass as (kind, size, cached rows before it, ns), each model's rows by its own context; a verification
        counts by its padded size."""
        if not self.draft_passes_ns:
            yield "plain", 1, self.context - 1, self.verify_ns
            return
        yield "catch_up", self.caught_up, self.draft_context - 1, self.draft_passes_ns[0]
        for time_ns in self.draft_passes_ns[1:]:
            yield "frontier", self.tier.width, self.draft_context - 1, time_ns
        yield "verify", padded_size(self.nodes, verify_sizes), self.context - 1, self.verify_ns

    @property
    def draft_ns(self) -> int:
        return sum(self.draft_passes_ns)

    @property
    def host_ns(self) -> int:
        return self.round_ns - self.draft_ns - self.verify_ns


@dataclass
class Generation:
    """Output of one request. Times are wall-clock nanoseconds."""

    tokens: list[int]
    text: str
    finished: Finished
    prompt_tokens: int
    target_prefill_ns: int
    draft_prefill_ns: int
    rounds: list[StepRecord] = field(default_factory=list)
    outside_hull: int = 0
    guarded: int = 0
    """Rounds that the guard held back."""
    guard_trips: int = 0

    @property
    def decode_ns(self) -> int:
        """Time of all rounds. The first token comes from the prefill and is not part of it."""
        return sum(record.round_ns for record in self.rounds)

    @property
    def request_ns(self) -> int:
        """Time of the whole request: both prefills and all rounds."""
        return self.target_prefill_ns + self.draft_prefill_ns + self.decode_ns

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, bonus included; 1.0 when no round was needed."""
        return (len(self.tokens) - 1) / len(self.rounds) if self.rounds else 1.0

    def tier_rounds(self) -> dict[str, int]:
        """Rounds per tier label, most used first."""
        counts: dict[str, int] = {}
        for record in self.rounds:
            counts[record.tier.label()] = counts.get(record.tier.label(), 0) + 1
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def document(self) -> dict[str, object]:
        """The numbers of this output for a script."""
        return {
            "text": self.text,
            "tokens": len(self.tokens),
            "finished": self.finished,
            "rounds": len(self.rounds),
            "acceptance_length": self.acceptance_length,
            "decode_ns": self.decode_ns,
            "tier_rounds": self.tier_rounds(),
            "outside_hull": self.outside_hull,
            "guarded": self.guarded,
            "guard_trips": self.guard_trips,
        }
