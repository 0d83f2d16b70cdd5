"""The controller: what the runtime asks once per round. State is the history window and the last signal."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from profiles.policy import CompiledPolicy, HistorySpec, Tier
from runtime.policy.guard import Guarding

Value = TypeVar("Value", float, npt.NDArray[np.float64])
LOW, MID, HIGH = 0, 1, 2
FIRST_LAGGED_SIGNAL = 0.5
"""What a lagged policy assumes before the first round (SAGE starts at alpha = 0.5)."""


def next_state(history: HistorySpec, state: int, total: int, count: int) -> int:
    """History state after a round: mean = total / count of the window against the two thresholds."""
    mean = total / count
    if mean < history.low and state != LOW:
        return LOW
    if mean > history.high and state != HIGH:
        return HIGH
    if state == LOW and mean >= history.low + history.hysteresis:
        return MID
    if state == HIGH and mean <= history.high - history.hysteresis:
        return MID
    return state


def smoothed(mean: Value, value: Value, smoothing: float) -> Value:
    """The exponential mean after one more value."""
    return smoothing * mean + (1.0 - smoothing) * value


class Controller:
    """Chooses a tier per round from a compiled policy; one instance per generation.

    `tier_rounds` counts the rounds of every tier, `outside_hull` those that fell back to the safe tier. A policy with a
    guard gets one of its own, unless one is given that outlives this request.
    """

    def __init__(self, policy: CompiledPolicy, guard: Guarding | None = None) -> None:
        self.policy = policy
        self.guard = Guarding(policy) if guard is None and policy.guard is not None else guard
        self.drafts = policy.drafts()
        self.tier_rounds: Counter[Tier] = Counter()
        self.outside_hull = 0
        self._edges = list(policy.edges)
        self._rows = [[policy.tiers[cell] for cell in row] for row in policy.table]
        self._safe = policy.tiers[policy.safe]
        self._lag, self._smoothing = policy.signal.lag, policy.signal.smoothing
        self._mean: float | None = None
        self._previous_signal = FIRST_LAGGED_SIGNAL
        self._state = MID
        self._window: deque[int] = deque(maxlen=policy.history.window if policy.history else 1)
        self._total = 0

    def choose(self, signal: float, context: int) -> Tier:
        """The tier of this round. `context` counts the committed tokens, prompt included."""
        if self._smoothing:
            before = signal if self._mean is None else self._mean
            signal = self._mean = smoothed(before, signal, self._smoothing)
        if self._lag:
            signal, self._previous_signal = self._previous_signal, signal
        if context > self.policy.context_max:
            self.outside_hull += 1
            tier = self._safe
        elif self.guard is not None and self.guard.holds():
            tier = self._safe
        else:
            tier = self._rows[bisect_right(self._edges, signal)][self._state]
        self.tier_rounds[tier] += 1
        return tier

    def observe(self, tier: Tier, accepted: int, levels: int = 0, nodes: int = 0) -> None:
        """Tell history and guard what a round accepted (bonus excluded), the draft passes that it made and the nodes
        that it verified. Plain steps say nothing about the draft."""
        if self.guard is not None:
            self.guard.observe(tier, accepted, levels, nodes)
        history = self.policy.history
        if history is None or tier.depth == 0:
            return
        if len(self._window) == history.window:
            self._total -= self._window[0]
        self._window.append(accepted)
        self._total += accepted
        self._state = next_state(history, self._state, self._total, len(self._window))
