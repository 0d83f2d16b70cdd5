"""The guard's state machine: armed, holding, probing. It counts rounds and tokens, so the same rounds give the same
decisions.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque

from profiles.guard import guard_by_costs
from profiles.measurement import CostTable
from profiles.policy import CompiledPolicy, Tier


def guarded(policy: CompiledPolicy, table: CostTable) -> CompiledPolicy:
    """The policy with a guard that is priced by a cost table. Raises BadInput when the table lacks a pass of it."""
    widths = [tier.width for tier in policy.tiers]
    return policy.model_copy(update={"guard": guard_by_costs(table, widths, policy.verify_sizes)})


def break_even(policy: CompiledPolicy, tier: int) -> float:
    """Acceptance length (bonus included) at which a whole round of a tier, by index, costs what plain steps cost; 1 for
    a plain step. Raises ValueError without a guard."""
    if policy.guard is None:
        raise ValueError("the policy carries no guard, so it has no prices")
    shape = policy.tiers[tier]
    if shape.depth == 0:
        return 1.0
    return policy.guard.price(tier, shape.depth, bisect_left(policy.verify_sizes, shape.nodes + 1))


class Guarding:
    """State of a guard. One per request by default; a server that passes its own to every request of a policy lets the
    window reach over requests.

    `guarded` counts the rounds it held back, `trips` how often it began to hold.
    """

    def __init__(self, policy: CompiledPolicy) -> None:
        if policy.guard is None:
            raise ValueError("the policy carries no guard")
        self.guarded = self.trips = 0
        self._guard, self._sizes = policy.guard, policy.verify_sizes
        self._index = {tier: i for i, tier in enumerate(policy.tiers)}
        self._held = self._probing = False
        self._pause_left = 0
        self._begin_window(policy.guard.window)

    def holds(self) -> bool:
        """Asked once per round, before its tier is taken: True when the safe tier must be used."""
        self._held = self._pause_left > 0
        if self._held:
            self._pause_left -= 1
            self.guarded += 1
        return self._held

    def observe(self, tier: Tier, accepted: int, levels: int, nodes: int) -> None:
        """Told after the round. Held rounds and plain steps say nothing about the draft."""
        if self._held or tier.depth == 0:
            return
        guard = self._guard
        price = guard.price(self._index[tier], levels, bisect_left(self._sizes, nodes + 1))
        self._balance.append(accepted + 1 - (1.0 - guard.margin) * price)
        if len(self._balance) < self._needed:
            return
        if math.fsum(self._balance) < 0.0:
            self.trips += not self._probing
            self._pause_left, self._probing = guard.pause, True
            self._begin_window(guard.probe)
        elif self._probing:
            self._probing = False
            self._begin_window(guard.window)

    def _begin_window(self, rounds: int) -> None:
        self._needed = rounds
        self._balance: deque[float] = deque(maxlen=rounds)
