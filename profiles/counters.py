"""What production writes down about its rounds: counters per request, and what they looked like when tuned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from pydantic import Field

from profiles.frozen import Frozen
from profiles.measurement import Interval, PassKind

SIGNAL_BINS: Final = 20
"""Equal bins of the signal histogram over [0, 1]."""
Count = Annotated[int, Field(ge=0)]
Time = Annotated[int, Field(ge=0)]


class PassTotal(Frozen):
    """All warm passes of one kind and size."""

    kind: PassKind
    n: Annotated[int, Field(ge=1)]
    count: Count
    time_ns: Time
    context: Count
    """Sum of the cached tokens before each pass: a cost table is linear in it, so their mean is enough."""


class Counters(Frozen):
    """Sums over the rounds of one or more requests. Draft tokens exclude the bonus."""

    requests: Count = 0
    tokens: Count = 0
    """Tokens that the rounds emitted, bonus included; the first token of a request comes from its prefill."""
    rounds: Count = 0
    drafts: Count = 0
    """Rounds that verified at least one draft token."""
    proposed: Count = 0
    """Draft tokens verified: nodes of trees, padding excluded."""
    accepted: Count = 0
    reached: tuple[Count, ...] = ()
    """By depth position: drafts that had candidates at this depth."""
    accepted_at: tuple[Count, ...] = ()
    """By depth position: drafts whose token at this depth was accepted."""
    tier_rounds: tuple[Count, ...] = ()
    """Rounds of every tier, in the order of the policy's tiers."""
    signal_counts: tuple[Count, ...] = (0,) * SIGNAL_BINS
    signal_sum: float = 0.0
    outside_hull: Count = 0
    """Rounds that got the safe tier because their context was never tuned."""
    guarded: Count = 0
    """Rounds that got the safe tier because the guard held the policy back."""
    guard_trips: Count = 0
    draft_ns: Time = 0
    verify_ns: Time = 0
    host_ns: int = 0
    """Time of rounds outside their passes; clocks of two layers may disagree by a little."""
    passes: tuple[PassTotal, ...] = ()
    """Passes of warm rounds: the first ones after a prefill are left out, as in a cost table."""
    warm_host_ns: int = 0

    @property
    def acceptance_length(self) -> float:
        """Tokens per round, bonus included; 1 without rounds."""
        return self.tokens / self.rounds if self.rounds else 1.0


class CounterLine(Frozen):
    """One line of a counter log."""

    version: Literal[1] = 1
    digest: str
    """The profile's digest of decisions."""
    tiers: tuple[str, ...]
    """Labels of the policy's tiers, so that a log can be read without the profile."""
    unix_s: float | None = None
    """When the request ended."""
    counters: Counters


class Snapshot(Frozen):
    """What the counters of many requests show, with intervals over requests. None where there is nothing to say."""

    counters: Counters
    acceptance: Interval | None = None
    """Draft tokens accepted per draft."""
    accepted_at: tuple[Interval, ...] = ()
    """By depth position: share of the drafts that reached it whose token was accepted."""
    signal: Interval | None = None
    """Mean signal."""
    outside_hull: Interval | None = None
    """Share of rounds."""
    target_cost: Interval | None = None
    """Time of the target's passes over what the cost table charges for them."""
    draft_cost: Interval | None = None
    round_cost: Interval | None = None
    """The same for all passes and the host together."""


def summed(counters: Sequence[Counters]) -> Counters:
    """One for all. Tuples are as long as the longest."""
    totals: dict[tuple[PassKind, int], list[int]] = {}
    for c in counters:
        for p in c.passes:
            total = totals.setdefault((p.kind, p.n), [0, 0, 0])
            for i, value in enumerate((p.count, p.time_ns, p.context)):
                total[i] += value
    plain = {
        name: sum(getattr(c, name) for c in counters)
        for name in Counters.model_fields
        if name not in (*_BY_PLACE, "passes")
    }
    by_place = {name: _added([getattr(c, name) for c in counters]) for name in _BY_PLACE}
    passes = tuple(
        PassTotal(kind=kind, n=n, count=count, time_ns=time_ns, context=context)
        for (kind, n), (count, time_ns, context) in sorted(totals.items())
    )
    return Counters.model_validate({**plain, **by_place, "passes": passes})


_BY_PLACE = ("reached", "accepted_at", "tier_rounds", "signal_counts")


def _added(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    longest = max((len(row) for row in rows), default=0)
    return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(longest))
