"""The study: Optuna over the space, replay as the objective, known policies enqueued first.

The journal in the run folder is the study's only state: an interrupted search goes on where it stopped. A
changed space, record or cost table is another study.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FixedTrial, FrozenTrial, TrialState

from profiles.config import GridConfig, SearchConfig
from profiles.policy import PolicySource, Tier
from profiles.policy_profile import SearchRecord
from profiles.provenance import digest
from tuner.replay import Replay
from tuner.space import SearchSpace
from tuner.timing import Budget
from tuner.yardsticks.base import compiled

SAMPLER_SETTINGS: dict[str, Any] = {
    "multivariate": True,
    "group": True,
    "n_startup_trials": 40,
    "n_ei_candidates": 24,
    "constant_liar": False,
}
"""Written out in full: a sampler's defaults change between releases."""
FAILED_REASON = "reason"


@dataclass(frozen=True)
class Candidate:
    """A policy that the search proposes, best first by the prompts that choices may see."""

    source: PolicySource
    speedup_tune: float
    speedup_choice: float
    """Replayed speedup over the tuning and selection prompts together."""


class Search:
    """One study in one journal file."""

    def __init__(
        self, journal: Path, grid: GridConfig, search: SearchConfig, replay: Replay, key: dict[str, str]
    ) -> None:
        """`key` names everything else that the objective depends on (trace and cost digests)."""
        self._grid, self._search, self._replay = grid, search, replay
        self._tune = replay.record.split_samples("tune")
        self.space = SearchSpace(grid, search, replay.record)
        self.space_digest = digest([grid.model_dump(), search.model_dump(exclude={"trials", "seed"}), key])
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        name = f"sage-{self.space_digest[:16]}"
        known = [s.study_name for s in storage.get_all_studies()]
        done = len(storage.get_all_trials(storage.get_study_id_from_name(name))) if name in known else 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # `group` is what conditional spaces need
            sampler = TPESampler(seed=search.seed + done, **SAMPLER_SETTINGS)
        self._study = optuna.create_study(
            study_name=name, storage=storage, sampler=sampler, direction="maximize", load_if_exists=True
        )

    def run(
        self,
        baselines: list[Tier],
        budget: Budget,
        on_trial: Callable[[int, float], None] = lambda done, best: None,
    ) -> int:
        """Run up to the configured number of trials; returns how many are on record. Baselines go first."""
        if not self._study.get_trials(deepcopy=False):
            for tier in baselines:
                self._study.enqueue_trial(self.space.single(tier))
        done = len(self._finished(TrialState.COMPLETE, TrialState.FAIL))
        best = max((t.values[0] for t in self._finished(TrialState.COMPLETE)), default=0.0)
        while done < self._search.trials and not budget.expired:
            trial = self._study.ask()
            try:
                value = self._objective(self.space.suggest(trial))
            except ValueError as error:
                # an impossible combination says nothing about its neighbours: failed, not scored
                trial.set_user_attr(FAILED_REASON, str(error).splitlines()[0])
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, value)
                best = max(best, value)
            done += 1
            on_trial(done, best)
        return done

    def candidates(self, count: int) -> list[Candidate]:
        """The `count` best distinct policies of the study. More are compared on the selection split than are
        returned, so that one lucky fit to the tuning prompts does not crowd out the rest."""
        ranked = sorted(self._finished(TrialState.COMPLETE), key=lambda t: (-t.values[0], t.number))
        choice = np.concatenate([self._tune, self._replay.record.split_samples("select")])
        found: dict[PolicySource, Candidate] = {}
        for trial in ranked:
            source = self.source_of(trial)
            if source not in found:
                policy = compiled(source, self._grid, self._replay)
                found[source] = Candidate(source, trial.values[0], self._replay.speedup(policy, choice))
            if len(found) >= 10 * count:
                break
        return sorted(found.values(), key=lambda c: -c.speedup_choice)[:count]

    def source_of(self, trial: FrozenTrial) -> PolicySource:
        """The policy that a recorded trial stood for."""
        return self.space.suggest(FixedTrial(trial.params))

    def record(self) -> SearchRecord:
        """How this search ran, for the profile. The log digest covers parameters and values of every trial."""
        trials = self._finished(TrialState.COMPLETE, TrialState.FAIL)
        log = [[t.number, t.params, t.values, t.state.name] for t in trials]
        return SearchRecord(
            sampler="optuna.TPESampler",
            sampler_settings=SAMPLER_SETTINGS,
            seed=self._search.seed,
            trials=len(trials),
            trial_log_digest=digest(log),
            space_digest=self.space_digest,
        )

    def _objective(self, source: PolicySource) -> float:
        value = self._replay.speedup(compiled(source, self._grid, self._replay), self._tune)
        if not np.isfinite(value):
            raise ValueError(f"the replayed speedup is {value}")
        return value

    def _finished(self, *states: TrialState) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False, states=states)
