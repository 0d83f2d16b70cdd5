"""Policies computed from the record: calibrated gates and growth trees find planted structure, and are legal."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from optuna.trial import FixedTrial

from benchmarks.policies import made_up_costs
from benchmarks.replay_speed import GRID, synthetic_record
from profiles.config import SearchConfig
from profiles.growth import MAX_LEAVES
from profiles.policy import Tier
from tests.test_replay import costs, record
from tests.test_tuner_search import GRID as SMALL_GRID
from tuner.calibrated import acceptance_calibration, calibrated, first_at_least
from tuner.growth_fit import fit_policy, fits, growth_policies, stops_of
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.space import MAX_DROP, MAX_RISE, SearchSpace
from tuner.warm_start import best_cells, first_trials
from tuner.yardsticks.base import Arena
from tuner.yardsticks.sage_paper import sage_paper
from tuner.yardsticks.single import best_chain, best_single, best_static, grid_tiers

__all__ = ["record"]


@pytest.fixture(scope="module")
def arena() -> Arena:
    """A synthetic record: acceptance falls with the signal, and the scores within a draft say nothing."""
    record = synthetic_record(samples=40, length=61)
    return Arena(Replay(record, made_up_costs(GRID, (100, 300))), GRID)


def test_calibration_recovers_a_planted_curve() -> None:
    rng = np.random.default_rng(0)
    scores = -rng.exponential(2.0, 40_000)
    truth = np.exp(1.5 * scores)  # the draft is overconfident by a power
    known, fitted = acceptance_calibration(scores, rng.random(len(scores)) < truth)
    at = np.array([-0.2, -0.5, -1.0, -2.0])
    estimate = fitted[np.searchsorted(known, at)]
    assert np.abs(estimate - np.exp(1.5 * at)).max() < 0.05
    assert first_at_least(known, fitted, 0.5) == pytest.approx(np.log(0.5) / 1.5, abs=0.08)
    assert first_at_least(known, fitted, 2.0) == np.inf


def test_gates_beat_the_fixed_tree_where_scores_tell(record: Record) -> None:
    """On a pair whose draft knows when it is right."""
    arena = Arena(Replay(record, costs()), SMALL_GRID)
    found = calibrated(arena, width=2, bins=1)
    tier = found.source.tiers[0]
    assert len(tier.stops) == tier.depth - 1 and len(tier.keep) == tier.depth
    fixed = best_single("fixed", [t for t in grid_tiers(SMALL_GRID) if t.width == 2], arena)
    assert arena.speedup(found.walk(arena.tune), arena.tune) > arena.speedup(fixed.walk(arena.tune), arena.tune)


def test_a_growth_tree_is_small_legal_and_at_least_a_chain(arena: Arena) -> None:
    stops = stops_of(arena, 1)
    policy = fit_policy(arena, stops, 8)
    tree = policy.source.growth
    assert tree is not None and len(tree.leaves) <= 8
    chain = best_chain(arena)
    assert chain is not None
    # ending every round after the best number of levels is one of the trees
    assert arena.speedup(policy.walk(arena.tune), arena.tune) >= 0.99 * arena.speedup(
        chain.walk(arena.tune), arena.tune
    )


def test_all_fits_are_announced(arena: Arena) -> None:
    small = Arena(arena.replay, GRID.model_copy(update={"widths": (1, 2)}))
    count = 0

    def on_fit() -> None:
        nonlocal count
        count += 1

    found = growth_policies(small, on_fit)
    speedups = [small.speedup(policy.walk(small.tune), small.tune) for policy in found]
    assert count == fits(small.grid) == len(found)
    assert min(speedups) > 1.0
    assert all(len(policy.source.growth.leaves) <= MAX_LEAVES for policy in found if policy.source.growth)


def test_first_trials_are_policies_of_the_space(arena: Arena) -> None:
    search = SearchConfig(max_bins=3)
    space = SearchSpace(GRID, search, arena.replay.record)
    trials = first_trials(arena, space, search)
    assert len(trials) == len({repr(sorted(trial.items())) for trial in trials})
    sources = [space.suggest(FixedTrial(trial)) for trial in trials]
    static = best_static(arena).source.tiers
    assert static in [source.tiers for source in sources]
    assert {len(source.tiers) for source in sources} >= {1, 2, 3}
    for source in sources:
        assert arena.compiled(source).verdict() != "off"


def test_cells_keep_to_the_rules_of_the_space(arena: Arena) -> None:
    """With costs that want the tree to grow with the signal, the best monotone answer is not the cells' own best."""
    space = SearchSpace(GRID, SearchConfig(), arena.replay.record)
    tiers = [Tier(depth=d, width=w, nodes=d) for w in (1, 2, 3, 4) for d in range(1, 9)]
    rng = np.random.default_rng(1)
    for _ in range(20):
        costs = rng.normal(size=(4, len(tiers)))
        chosen = best_cells(costs, tiers, space)
        drops = [a.depth - b.depth for a, b in itertools.pairwise(chosen)]
        rises = [b.width - a.width for a, b in itertools.pairwise(chosen)]
        assert all(0 <= drop <= MAX_DROP for drop in drops) and all(0 <= rise <= MAX_RISE for rise in rises)
        total = sum(costs[i, tiers.index(tier)] for i, tier in enumerate(chosen))
        assert total <= costs.sum(axis=0).min() + 1e-9, "one tier for all cells is a monotone policy too"


def test_a_fitted_tree_asks_no_entropy_that_was_not_recorded(record: Record) -> None:
    """Eight log-probabilities are on record, fewer than the default k."""
    arena = Arena(Replay(record, costs()), SMALL_GRID)
    tree = fit_policy(arena, stops_of(arena, 2), 8).source.growth
    assert tree is not None and tree.top_k == record.manifest.signal_logprobs == 8


def test_the_papers_policy_is_left_out_where_its_rule_is_not_on_record(record: Record) -> None:
    """Its own-probability floor depends on the depth, which a grid that ran out of memory no longer has."""
    paper = SMALL_GRID.sage_paper.model_copy(update={"threshold_on": "own"})
    arena = Arena(Replay(record, costs()), SMALL_GRID.model_copy(update={"sage_paper": paper}))
    assert sage_paper(arena) is None
