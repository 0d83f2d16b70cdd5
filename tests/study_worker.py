"""Workers of one study as processes that can be killed: a small synthetic record, the real search."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from benchmarks.policies import made_up_costs
from benchmarks.replay_speed import GRID, synthetic_record
from profiles.config import SearchConfig
from profiles.policy import Tier
from tuner.replay import Replay
from tuner.search import Search
from tuner.timing import Budget

BASELINES = [Tier(depth=d, width=1, nodes=d) for d in (1, 2, 3, 4)] + [Tier(depth=4, width=1, nodes=4, stop=0.2)]


def small_replay() -> Replay:
    return Replay(synthetic_record(samples=12, length=21), made_up_costs(GRID, (100, 300)))


def worker(place: str | Path, settings: SearchConfig, costs: str = "one", replay: Replay | None = None) -> Search:
    return Search(place, GRID, settings, replay or small_replay(), {"costs": costs})


def baselines(search: Search) -> list[dict[str, Any]]:
    """First trials: `BASELINES` as parameters of the search's space."""
    return [search.space.single(tier) for tier in BASELINES]


def contribute(search: Search) -> int:
    """Run a worker to the end of its study; whoever gives the only reference away lets it die with this call."""
    return search.run(baselines(search), Budget(None))


def run_worker(place: str, settings: SearchConfig) -> None:
    """What a process does: contribute trials until the study is complete."""
    found = worker(place, settings)
    found.run(baselines(found), Budget(None))


def processes() -> ForkServerContext:
    """Processes that start fast and share nothing with the tests: their server imports everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.study_worker"])
    return context
