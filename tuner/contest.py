"""The contest: everything that competes on one record, fitted on its tuning prompts.

Yardsticks, the policies that the search found, and those computed from the record. Who of our own goes on to the live
comparison is decided by replay on the tuning and selection prompts together; the report prompts are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tuner.calibrated import calibrated_policies, variants
from tuner.drafts import Ints
from tuner.growth_fit import fits, growth_policies
from tuner.progress import Progress
from tuner.search import Search
from tuner.yardsticks import ALL, fitted
from tuner.yardsticks.base import Arena, Contestant, TablePolicy
from tuner.yardsticks.oracle import oracle
from tuner.yardsticks.single import best_static

SEARCHED = "searched"


@dataclass(frozen=True)
class Contest:
    """Who competes. `searched` and `computed` hold adaptive policies, best first by the prompts of choices."""

    arena: Arena
    yardsticks: list[Contestant]
    searched: list[TablePolicy]
    computed: list[TablePolicy]

    def yardstick(self, name: str) -> TablePolicy | None:
        """A yardstick that can run live, by name."""
        return next((y for y in self.yardsticks if y.name == name and isinstance(y, TablePolicy)), None)

    def everyone(self) -> list[Contestant]:
        """The rows of the final table: yardsticks, the best of each of our own kinds, the oracle."""
        return [*self.yardsticks, *self.searched[:1], *self.computed, oracle(self.arena)]


def hold_contest(arena: Arena, search: Search, finalists: int, progress: Progress) -> Contest:
    """Fit everything. At most `finalists` policies of the search are taken on."""
    yardsticks = fitted_yardsticks(arena, progress)
    searched = [
        policy
        for candidate in search.candidates(4 * finalists)
        if (policy := TablePolicy(SEARCHED, candidate.source, arena)).policy.verdict() == "adaptive"
    ][:finalists]
    return Contest(arena, yardsticks, searched, computed_policies(arena, progress))


def fitted_yardsticks(arena: Arena, progress: Progress) -> list[Contestant]:
    """Every yardstick that the grid has room for, in table order."""
    found: list[Contestant] = []
    with progress.task("fitting yardsticks", len(ALL)) as advance:
        for fit in ALL:
            contestant = fitted(fit, arena)
            found += [contestant] if contestant is not None else []
            advance(1)
    return found


def computed_policies(arena: Arena, progress: Progress) -> list[TablePolicy]:
    """The best calibrated gates and the best growth tree, the better of the two first; both under the pruning that
    suits the best static tier, since fitting takes its time."""
    if len(arena.prunings) > 1:
        static = fitted(best_static, arena)
        assert isinstance(static, TablePolicy)
        arena = arena.under(static.source.pruning)
    with progress.task("computing policies", fits(arena.grid) + variants(arena.grid)) as advance:
        gates = calibrated_policies(arena, lambda: advance(1))
        trees = growth_policies(arena, lambda: advance(1))
    choice = choice_samples(arena)
    return by_speed([by_speed(gates, arena, choice)[0], by_speed(trees, arena, choice)[0]], arena, choice)


def choice_samples(arena: Arena) -> Ints:
    """Samples that choices may look at: the tuning and the selection prompts."""
    return np.concatenate([arena.tune, arena.replay.record.split_samples("select")])


def by_speed(policies: Sequence[TablePolicy], arena: Arena, samples: Ints) -> list[TablePolicy]:
    """Fastest first, by replay on `samples`."""
    return sorted(policies, key=lambda policy: -arena.speedup(policy.walk(samples), samples))
