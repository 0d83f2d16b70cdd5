"""UCB1 (Auer, Cesa-Bianchi, Fischer 2002) over the tiers of a ladder, its state kept over outputs.

The value of an arm is its speed so far over that of plain decoding, divided by the deepest arm's D + 1, so that it
lies in [0, 1] as long as no round is faster than a plain step:

    value = sum(accepted + 1) * plain_ns / sum(round time) / (D + 1),    index = value + c * sqrt(2 ln t / n)

over the arm's n rounds of t in all, with plain_ns the mean plain step of the tuning prompts. Sums come before the
quotient because total time is what counts: a mean of quotients would favour arms with a few lucky rounds. Every arm
is played once first. The ladder and c are chosen on the tuning prompts. Neighbours: BanditSpec (arXiv 2505.15141)
plays UCB and EXP3 over configurations; TapOut (arXiv 2511.02017) plays UCB1 over stop rules, its reward a blend of
accepted length and acceptance rate without any time in it; SP2ec (arXiv 2610.18735) joins one with layer skipping.
"""

from __future__ import annotations

import math
from functools import partial

from tuner.yardsticks.base import Arena, Contestant, LearningRule, best_of
from tuner.yardsticks.ladder import Rung, ladders, span

BANDIT = "UCB bandit"
EXPLORATIONS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


class UcbAgent:
    """One arm per rung."""

    def __init__(self, ladder: list[Rung], plain_ns: float, exploration: float) -> None:
        self._rows = [rung.row for rung in ladder]
        self._unit_ns = plain_ns / (max(rung.tier.depth for rung in ladder) + 1)
        self._exploration = exploration
        self._rounds = [0] * len(ladder)
        self._tokens = [0] * len(ladder)
        self._time_ns = [0.0] * len(ladder)
        self._played = self._arm = 0

    def begin(self) -> None:
        pass

    def choose(self, at: int) -> int:
        if 0 in self._rounds:
            self._arm = self._rounds.index(0)
        else:
            spread = self._exploration * math.sqrt(2.0 * math.log(self._played))
            self._arm = max(range(len(self._rows)), key=lambda arm: self._index(arm, spread))
        return self._rows[self._arm]

    def observe(self, row: int, accepted: int, time_ns: float) -> None:
        self._played += 1
        self._rounds[self._arm] += 1
        self._tokens[self._arm] += accepted + 1
        self._time_ns[self._arm] += time_ns

    def _index(self, arm: int, spread: float) -> float:
        value = self._tokens[arm] * self._unit_ns / self._time_ns[arm]
        return value + spread / math.sqrt(self._rounds[arm])


def bandit(arena: Arena) -> Contestant:
    plain = arena.replay.walk_plain(arena.tune)
    plain_ns = float(plain.time_ns.mean())
    rules: list[Contestant] = []
    for ladder in ladders(arena):
        arms = span(ladder)
        for exploration in EXPLORATIONS:
            agent = partial(UcbAgent, ladder, plain_ns, exploration)
            rules.append(LearningRule(BANDIT, f"{arms}; c = {exploration:g}", agent, arena))
    return best_of(rules, arena)
