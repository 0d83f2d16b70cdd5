"""The search step of `tune`: yardsticks first, then the study. It can also run on its own, on any machine.

It needs the record and the cost table, no model and no device. So workers anywhere can add trials to one study.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from profiles.config import TuneConfig
from profiles.locations import redacted
from profiles.measurement import CostTable
from tuner.progress import Progress
from tuner.run_folder import RunFolder
from tuner.search import Search
from tuner.timing import Budget
from tuner.trace_store import load_record, trace_digest
from tuner.warm_start import first_trials
from tuner.yardsticks.base import Arena
from tuner.yardsticks.single import best_single, grid_tiers

BYTES_PER_TRIAL = 8_000
"""Size of a trial in a journal, at most."""


def search_share(budget: Budget) -> Budget:
    """What the search may take of a command that still has to confirm."""
    return Budget(budget.left_s / 2)


def search_policies(
    config: TuneConfig, place: str | Path, trace: str | Path, arena: Arena, budget: Budget, progress: Progress
) -> tuple[Search, int]:
    """The study and its number of finished trials.

    `place` is where the study lives; other workers may run trials of it too.
    """
    key = {"trace": trace_digest(trace), "costs": arena.replay.costs.table.model_dump_json()}
    search = Search(place, arena.grid, config.search, arena.replay, key)
    with progress.task("placing first trials", 1) as advance:
        first = first_trials(arena, search.space, config.search)
        advance(1)
    with progress.task("searching policies", config.search.trials) as advance:
        shown = 0

        def on_trial(done: int, best: float) -> None:
            nonlocal shown
            advance(done - shown)
            shown = done

        trials = search.run(first, budget, on_trial)
    if search.imported.summary():
        progress.console.print(search.imported.summary())
    return search, trials


@dataclass(frozen=True)
class Contribution:
    """What a search-only worker leaves: a study that has grown."""

    study: str
    trials: int
    """Finished trials of the study, whoever ran them."""
    wanted: int
    ran: int
    """Trials that this worker ran."""
    best: float
    """Best replayed speedup so far; 0 without a scored trial."""

    def summary(self) -> str:
        """One line for a person."""
        return (
            f"{self.trials} of {self.wanted} trials of study {self.study} are finished, {self.ran} by this worker; "
            f"best replayed speedup {self.best:.2f}"
        )

    def document(self) -> dict[str, Any]:
        """The same for a script."""
        return asdict(self)


def search_only(
    config: TuneConfig, place: str | Path, trace: str | Path, table: CostTable, budget: Budget, progress: Progress
) -> Contribution:
    """Run trials of the study and nothing else: needs the record and the cost table, no model and no device."""
    arena = Arena.measured(load_record(trace), table, config.grid)
    search, trials = search_policies(config, place, trace, arena, budget, progress)
    best = max((candidate.speedup_tune for candidate in search.candidates(1)), default=0.0)
    return Contribution(search.name, trials, config.search.trials, search.ran, best)


def plan(config: TuneConfig, run: RunFolder) -> str:
    """The plan of a `tune` run, with times from the cost table and from replaying the fixed tiers."""
    record = load_record(run.trace)
    arena = Arena.measured(record, run.costs(), config.grid)
    replay, tiers = arena.replay, grid_tiers(arena.grid)
    start = time.monotonic()
    best_single("", tiers, arena)
    replay_s = (time.monotonic() - start) / len(tiers)
    limits, search = config.confirm, config.search
    choosing = record.split_samples("select")[: limits.select_prompts]
    reporting = record.split_samples("report")[: limits.report_prompts]
    plain_ns = (2 + limits.finalists) * replay.plain_time_ns(choosing).sum() + 4 * replay.plain_time_ns(reporting).sum()
    return "\n".join(
        [
            f"plan: tune {run.path}, {len(record.samples)} prompts and {record.positions} positions on record",
            f"  study of {search.trials} trials ({search.sampler}) in {redacted(str(run.study_place(config)))}",
            f"  choose among {limits.finalists} finalists on {len(choosing)} prompts, report on {len(reporting)}",
            f"estimated: {replay_s * search.trials:.0f} s of replay and the sampler's time, at most "
            f"{2 * limits.repeats * plain_ns / 60e9:.1f} min of decoding without prefills, "
            f"{BYTES_PER_TRIAL * search.trials / 1e6:.0f} MB",
        ]
    )
