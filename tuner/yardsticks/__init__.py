"""Yardsticks: rules that everybody knows, fitted on the same record and the same grid of tiers as our own policies.

Each has a file of its own with its source. They are fitted on the tuning prompts; the prompts that results are
reported on take no part in any choice. None looks at anything that a live implementation could not know at that
moment. `ALL` is the order of tables; the oracle stands apart, since nothing can run it.
"""

from __future__ import annotations

from typing import Final

from tuner.yardsticks.acceptance_ema import acceptance_ema
from tuner.yardsticks.adaedl import adaedl
from tuner.yardsticks.bandit import bandit
from tuner.yardsticks.base import Arena, Contestant, Fit, best_of
from tuner.yardsticks.opt_tree import opt_tree
from tuner.yardsticks.rank_tree import rank_tree
from tuner.yardsticks.sage_paper import sage_paper
from tuner.yardsticks.sequoia import sequoia
from tuner.yardsticks.single import best_chain, best_static, plain
from tuner.yardsticks.smart import smart
from tuner.yardsticks.svip import svip
from tuner.yardsticks.talon import talon

ALL: Final[tuple[Fit, ...]] = (
    plain,
    best_chain,
    rank_tree,
    sequoia,
    best_static,
    opt_tree,
    svip,
    adaedl,
    smart,
    talon,
    sage_paper,
    acceptance_ema,
    bandit,
)
"""Every yardstick, in table order."""


def fit_all(arena: Arena) -> list[Contestant]:
    """Those that the grid has room for, fitted."""
    return [found for fit in ALL if (found := fitted(fit, arena)) is not None]


def fitted(fit: Fit, arena: Arena) -> Contestant | None:
    """A yardstick under the pruning that suits it best: it has the choice that our own policies have."""
    if len(arena.prunings) == 1:
        return fit(arena)
    found = [contestant for pruning in arena.prunings if (contestant := fit(arena.under(pruning))) is not None]
    return best_of(found, arena) if found else None
