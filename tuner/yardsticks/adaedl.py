"""AdaEDL (arXiv 2410.18351): a linear draft that ends when a bound on the acceptance probability falls too low.

The bound is 1 - sqrt(gamma * H) with H the draft's entropy, and drafting ends when it is below lambda, which
follows the observed acceptance rate. Neither could be compared with the paper. The update is the one of Draft &
Verify (arXiv 2309.08168), read in public copies of its code: after every round, with r = accepted / drafted,

    rate <- b1 * rate + (1 - b1) * r
    next = lambda + eps if rate < target, lambda if the draft was as long as allowed, else lambda - eps
    lambda <- b2 * lambda + (1 - b2) * next

gamma, the target and the first lambda are chosen on the tuning prompts.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from tuner.yardsticks.base import Arena, Contestant, LearningRule, best_of
from tuner.yardsticks.chains import Chains, chains

ADAEDL = "AdaEDL"
GAMMAS = (0.05, 0.1, 0.2, 0.4)
TARGETS = (0.5, 0.7, 0.9)
FIRST = (0.2, 0.4, 0.6)
RATE_MEMORY, STEP, MEMORY = 0.5, 0.01, 0.9
"""b1, eps and b2 of Draft & Verify."""


class AdaEdlAgent:
    """Its state lasts over outputs, as a server's would."""

    def __init__(self, found: Chains, bounds: list[list[float]], target: float, first: float) -> None:
        """`bounds` [N][L] on the acceptance probability of each level."""
        self._rows: list[int] = found.rows.tolist()
        self._bounds = bounds
        self._target, self._lambda, self._rate = target, first, target
        self._drafted = 1

    def begin(self) -> None:
        pass

    def choose(self, at: int) -> int:
        bounds, floor = self._bounds[at], self._lambda
        self._drafted = next((i for i, bound in enumerate(bounds, start=1) if bound < floor), len(bounds))
        return self._rows[self._drafted - 1]

    def observe(self, row: int, accepted: int, time_ns: float) -> None:
        self._rate = RATE_MEMORY * self._rate + (1.0 - RATE_MEMORY) * accepted / self._drafted
        step = 0.0
        if self._rate < self._target:
            step = STEP
        elif self._drafted < len(self._rows):
            step = -STEP
        self._lambda += (1.0 - MEMORY) * step


def adaedl(arena: Arena) -> Contestant | None:
    """None when the grid records no chains."""
    found = chains(arena)
    if found is None:
        return None
    rules: list[Contestant] = []
    for gamma in GAMMAS:
        bounds = (1.0 - np.sqrt(gamma * found.entropy)).tolist()
        for target, first in product(TARGETS, FIRST):
            agent = partial(AdaEdlAgent, found, bounds, target, first)
            detail = f"gamma = {gamma:g}, target {target:g}, lambda from {first:g}"
            rules.append(LearningRule(ADAEDL, detail, agent, arena))
    return best_of(rules, arena)
