"""SGLang's adaptive number of steps, generalised from chains to tiers.

An exponential mean of the accepted tokens chooses among rungs of growing depth s_1 < s_2 < ...: every `INTERVAL`
rounds, after `WARM_UP`, the rung falls while mean <= s_(i-1) - 0.5 + down, and if it did not fall it rises while
mean > s_i - 0.5 + up. So it drafts a little deeper than what was accepted of late. Rule, constants and start (the
middle rung, the mean at its depth less one) are those of `AdaptiveStepSlot` in SGLang's
speculative/adaptive_spec_params.py, where a rung is a number of steps of a chain; here it is a tier. Chosen on the
tuning prompts: the ladder (SGLang's steps for one request, or tiers of the grid), the weight of a new value, and
how far both hystereses are lowered, which drafts deeper. SGLang's own values are among them.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from tuner.yardsticks.base import Arena, Contestant, LearningRule, best_of
from tuner.yardsticks.ladder import Rung, fastest_by_depth, ladders, span
from tuner.yardsticks.single import chain_tiers

ACCEPTANCE_EMA = "acceptance EMA"
WARM_UP, INTERVAL = 10, 5
STEPS = (1, 3, 5, 7)
WEIGHTS = (0.2, 0.05)
DOWN, UP, LOWERED = -0.25, 0.0, (0.0, 1.0, 2.0, 3.0)


class EmaAgent:
    """Its state lasts over outputs, as the server's does."""

    def __init__(self, ladder: list[Rung], weight: float, down: float, up: float) -> None:
        self._rows = [rung.row for rung in ladder]
        self._depths = [rung.tier.depth for rung in ladder]
        self._weight, self._down, self._up = weight, down, up
        self._at = len(ladder) // 2
        self._mean = self._depths[self._at] - 1.0
        self._rounds = 0

    def begin(self) -> None:
        pass

    def choose(self, at: int) -> int:
        return self._rows[self._at]

    def observe(self, row: int, accepted: int, time_ns: float) -> None:
        self._mean += self._weight * (accepted - self._mean)
        self._rounds += 1
        if self._rounds > WARM_UP and (self._rounds - WARM_UP) % INTERVAL == 0:
            self._move()

    def _move(self) -> None:
        before, depths = self._at, self._depths
        while self._at > 0 and self._mean <= depths[self._at - 1] - 0.5 + self._down:
            self._at -= 1
        if self._at < before:
            return
        while self._at < len(depths) - 1 and self._mean > depths[self._at] - 0.5 + self._up:
            self._at += 1


def acceptance_ema(arena: Arena) -> Contestant:
    steps = [tier for tier in chain_tiers(arena.grid) if tier.depth in STEPS]
    rules: list[Contestant] = []
    for ladder in [*([fastest_by_depth(arena, steps)] if steps else []), *ladders(arena)]:
        rungs = span(ladder)
        for weight, lowered in product(WEIGHTS, LOWERED):
            agent = partial(EmaAgent, ladder, weight, DOWN - lowered, UP - lowered)
            detail = f"{rungs}; weight {weight:g}, hystereses lowered by {lowered:g}"
            rules.append(LearningRule(ACCEPTANCE_EMA, detail, agent, arena))
    return best_of(rules, arena)
