"""The guard: when a policy accepts so little that plain decoding would be faster, it falls back to the safe tier and
tries again later. Off unless a policy carries one. Tokens never change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from profiles.errors import BadInput
from profiles.frozen import Frozen
from profiles.measurement import CostTable, PassKind

Tokens = Annotated[float, Field(gt=0)]


class Guard(Frozen):
    """Prices are in plain steps: a round pays when it emits more tokens than its price.

    Over the last `window` drafting rounds, tokens below `1 - margin` times the price make the guard hold: `pause`
    rounds of the safe tier, then `probe` rounds of the policy, which re-arm it or begin the next pause. While it holds,
    the draft still reads every token, so that it can propose again at once.
    """

    window: Annotated[int, Field(ge=4, le=4096)] = 32
    pause: Annotated[int, Field(ge=1, le=65536)] = 64
    probe: Annotated[int, Field(ge=1, le=4096)] = 8
    margin: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    round_price: Tokens
    """Catch-up pass and host time of a round."""
    level_price: Annotated[tuple[Tokens, ...], Field(min_length=1)]
    """By tier of the policy: one frontier pass and the host time of a level."""
    verify_price: Annotated[tuple[Tokens, ...], Field(min_length=1)]
    """By verify size of the policy."""

    def price(self, tier: int, levels: int, size: int) -> float:
        """Price of a round of tier `tier` that drafted `levels` levels and verified the size with index `size`."""
        return self.round_price + self.level_price[tier] * (levels - 1) + self.verify_price[size]


def guard_by_costs(table: CostTable, widths: Sequence[int], verify_sizes: Sequence[int]) -> Guard:
    """The guard of a policy on a machine: prices by the cost table, means over contexts. `widths` are those of the
    policy's tiers. A frontier or verification between two timed sizes is charged for the larger.

    Raises BadInput when the table has no pass as large as one that the policy makes.
    """
    host = table.host
    plain_ns = table.mean_ns("plain", 1) + host.plain_ns

    def pass_ns(kind: PassKind, n: int) -> float:
        size = next((size for size in table.sizes(kind) if size >= n), None)
        if size is None:
            raise BadInput(f"a guard needs the time of {kind} passes of {n} tokens, timed are {table.sizes(kind)}")
        return table.mean_ns(kind, size)

    return Guard(
        round_price=(pass_ns("catch_up", 1) + host.round_ns + host.level_ns) / plain_ns,
        level_price=tuple((pass_ns("frontier", width) + host.level_ns) / plain_ns for width in widths),
        verify_price=tuple(pass_ns("verify", size) / plain_ns for size in verify_sizes),
    )
