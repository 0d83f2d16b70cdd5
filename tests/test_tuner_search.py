"""The study: baselines first, resumable, honest about failures; every searched field changes some output."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.trial import FixedTrial, TrialState

from profiles.config import GridConfig, SearchConfig
from profiles.growth import GrowthTree
from profiles.policy import HistorySpec, PolicySource, SignalSpec, Tier
from profiles.sage_paper import SagePaper
from tests.strategies import MAX_DEPTH, SPECIAL_RULES, WIDTHS
from tests.test_replay import costs, record
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.search import FAILED_REASON, Search
from tuner.timing import Budget
from tuner.yardsticks.base import Arena, compiled
from tuner.yardsticks.single import best_static, stopping_tiers

__all__ = ["record"]
GRID = GridConfig(
    depth=MAX_DEPTH,
    widths=WIDTHS,
    verify_sizes=(1, 2, 3, 4, 6, 8, 12, 16, 24),
    signal_logprobs=8,
    sage_paper=SagePaper(top_k=8),
)
SETTINGS = SearchConfig(trials=30, signals=("entropy", "one_minus_top1"), top_ks=(4, 8), max_bins=3)


@pytest.fixture
def replay(record: Record) -> Replay:
    return Replay(record, costs())


def search(tmp_path: Path, replay: Replay, settings: SearchConfig = SETTINGS) -> Search:
    return Search(tmp_path / "study.journal", GRID, settings, replay, {"trace": "x"})


def known_tiers(replay: Replay) -> list[Tier]:
    static = best_static(Arena(replay, GRID)).source.tiers[0]
    return [static, *stopping_tiers(static, (0.1, 0.3))]


def baselines(search: Search) -> list[dict[str, Any]]:
    return [search.space.single(tier) for tier in known_tiers(search._replay)]


def test_known_policies_are_the_first_trials(tmp_path: Path, replay: Replay) -> None:
    found = search(tmp_path, replay)
    known = known_tiers(replay)
    assert found.run(baselines(found), Budget(None)) == 30
    trials = found._study.get_trials()
    assert [found.source_of(t).tiers for t in trials[:3]] == [(tier,) for tier in known]
    best = max(t.value for t in trials if t.value is not None)
    assert best >= trials[0].values[0], "the search may not end below what it was given"


def test_an_interrupted_search_goes_on_where_it_stopped(tmp_path: Path, replay: Replay) -> None:
    first = search(tmp_path, replay, SETTINGS.model_copy(update={"trials": 12}))
    first.run(baselines(first), Budget(None))
    before = [t.params for t in first._study.get_trials()]
    again = search(tmp_path, replay)
    assert again.run(baselines(again), Budget(None)) == 30
    trials = again._study.get_trials()
    assert [t.params for t in trials[:12]] == before
    later = [repr(sorted(t.params.items())) for t in trials[12:]]
    assert len(set(later)) == len(later), "a resumed sampler must not repeat itself"
    assert again.run(baselines(again), Budget(None)) == 30, "nothing is left to do"


def test_another_space_is_another_study(tmp_path: Path, replay: Replay) -> None:
    found = search(tmp_path, replay, SETTINGS.model_copy(update={"trials": 8}))
    found.run(baselines(found), Budget(None))
    other = search(tmp_path, replay, SETTINGS.model_copy(update={"max_bins": 2}))
    assert not other._study.get_trials()


def test_a_spent_budget_ends_the_search_with_what_it_has(tmp_path: Path, replay: Replay) -> None:
    found = search(tmp_path, replay)
    assert found.run(baselines(found), Budget(0.0)) == 0


def test_impossible_trials_fail_with_a_reason(tmp_path: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))

    def speedup(self: Replay, policy: object, samples: object) -> float:
        return float("nan") if next(calls) % 3 == 0 else 1.5

    monkeypatch.setattr(Replay, "speedup", speedup)
    found = search(tmp_path, replay)
    found.run([], Budget(None))
    failed = found._study.get_trials(states=(TrialState.FAIL,))
    reasons = [t.user_attrs[FAILED_REASON] for t in failed]
    assert sum("nan" in reason for reason in reasons) >= 8 and all(reasons)
    assert all(c.speedup_tune == 1.5 for c in found.candidates(3))


def test_candidates_are_distinct_and_ordered(tmp_path: Path, replay: Replay) -> None:
    found = search(tmp_path, replay)
    found.run(baselines(found), Budget(None))
    candidates = found.candidates(4)
    assert len({c.source for c in candidates}) == len(candidates) > 1
    assert [c.speedup_choice for c in candidates] == sorted((c.speedup_choice for c in candidates), reverse=True)


def test_the_record_of_a_search_is_reproducible(tmp_path: Path, replay: Replay) -> None:
    """Same seed, same record, another journal: the same trials."""
    digests = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found = search(tmp_path / name, replay)
        found.run(baselines(found), Budget(None))
        digests.add(found.record().trial_log_digest)
    assert len(digests) == 1


def test_no_knob_turns_nothing(record: Record) -> None:
    """Each field of a policy, changed alone, changes some replayed round or its time."""
    low, mid, high = (float(q) for q in np.quantile(record.signal("entropy", 8), (0.35, 0.7, 0.85)))
    base = PolicySource(
        signal=SignalSpec(top_k=8),
        edges=(low, mid),
        tiers=(
            Tier(depth=5, width=1, nodes=5),
            Tier(depth=4, width=2, nodes=8),
            Tier(depth=2, width=3, nodes=7),
        ),
        history=HistorySpec(window=4, low=1.0, high=2.0, step=1, hysteresis=0.2, min_depth=1, max_depth=5),
        monotone=False,
    )
    tier = base.tiers[1]
    assert base.history is not None
    changes = {
        "signal.kind": {"signal": base.signal.model_copy(update={"kind": "one_minus_margin"})},
        "signal.lag": {"signal": base.signal.model_copy(update={"lag": 1})},
        "signal.top_k": {"signal": base.signal.model_copy(update={"top_k": 2})},
        "signal.smoothing": {"signal": base.signal.model_copy(update={"smoothing": 0.5})},
        "target's signal": {"signal": base.signal.model_copy(update={"kind": "target_entropy"})},
        "growth": {"growth": GrowthTree(leaves=(4,))},
        "edges": {"edges": (low, high)},
        "no history": {"history": None},
        "tier.rule": {"tiers": (*base.tiers[:2], base.tiers[2].model_copy(update={"rule": SPECIAL_RULES[0]}))},
        **{
            f"tier.{field}": {"tiers": (base.tiers[0], tier.model_copy(update={field: value}), base.tiers[2])}
            for field, value in {
                "depth": 3,
                "width": 3,
                "nodes": 5,
                "stop": 0.4,
                "stops": (0.0, 0.4, 0.0),
                "keep": (0.1, 0.1, 0.2, 0.3),
            }.items()
        },
        **{
            f"history.{field}": {"history": base.history.model_copy(update={field: value})}
            for field, value in {
                "window": 5,
                "low": 0.4,
                "high": 3.0,
                "step": 2,
                "hysteresis": 0.5,
                "min_depth": 4,
                "max_depth": 4,
            }.items()
        },
    }
    replay, everyone = Replay(record, costs()), np.arange(len(record.samples))

    def outcome(source: PolicySource) -> tuple[float, int]:
        walk = replay.walk(compiled(source, GRID, replay), everyone)
        return float(walk.time_ns.sum()), int((walk.at * walk.nodes).sum())

    expected = outcome(base)
    idle = [name for name, change in changes.items() if outcome(base.model_copy(update=change)) == expected]
    assert not idle, f"these fields change nothing: {idle}"


def test_suggestions_cover_bins_tiers_and_history(tmp_path: Path, replay: Replay) -> None:
    space = search(tmp_path, replay).space
    source = space.suggest(
        FixedTrial(
            {
                "signal": "one_minus_top1", "lag": 1, "smoothing": 0.5, "bins": 2, "size_0": 0.5, "size_1": 0.5,
                "depth_0": 5, "width_0": 0, "nodes_0": 0.99, "stop_0": 0.1,
                "drop_1": 2, "rise_1": 1, "nodes_1": 0.0, "stop_1": 0.0,
                "history": True, "history_low": 1.0, "history_gap": 1.0, "history_window": 4,
                "history_step": 1, "history_hysteresis": 0.1,
            }
        )
    )  # fmt: skip
    assert [t.depth for t in source.tiers] == [5, 3] and [t.width for t in source.tiers] == [1, 2]
    assert source.tiers[0].stop == 0.1 and source.history is not None and source.history.window == 4
    signal = replay.record.signal("one_minus_top1", 2)
    assert 0.3 < (signal < source.edges[0]).mean() < 0.7
