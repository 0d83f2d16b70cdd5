"""The study: Optuna over the space, replay as the objective, known policies first.

The storage is the study's only state. A trial belongs to the worker that runs it; when that worker dies, the next
one to come along finishes the same trial with the same parameters. So the trials are exactly those with the numbers
0 to N - 1, however often a search is killed and however many workers share it. Another space, sampler, record or
cost table is another study, which takes over what older ones in the same storage know.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FixedTrial, FrozenTrial, Trial, TrialState

from profiles.config import GridConfig, SearchConfig
from profiles.errors import EnvelopeError
from profiles.policy import PolicySource
from profiles.policy_profile import SearchRecord
from profiles.provenance import digest
from tuner.machine import versions
from tuner.replay import Replay
from tuner.sampling import NAMES, TrialSampler, sampler_settings
from tuner.space import SearchSpace
from tuner.study_import import IMPORTED_FROM, Imported, best_parameters, legal_trials, outline
from tuner.study_storage import open_study_storage
from tuner.timing import Budget
from tuner.yardsticks.base import compiled

FAILED_REASON = "reason"
REASON_LENGTH = 300
WORKER = "worker"
OBJECTIVE, LINEAGE, PLANNED, IMPORTED = "objective", "lineage", "planned", "imported"
"""Attributes of a study: what its values depend on, whose record that was, and how it began."""
POLL_S = 0.2


@dataclass(frozen=True)
class Candidate:
    """A policy that the search proposes, best first by the prompts that choices may see."""

    source: PolicySource
    speedup_tune: float
    speedup_choice: float
    """Replayed speedup over the tuning and selection prompts together."""


class Search:
    """One worker on one study. `ran` counts the trials that it ran itself."""

    def __init__(
        self, place: str | Path, grid: GridConfig, search: SearchConfig, replay: Replay, key: dict[str, str]
    ) -> None:
        """`place` is a journal file or a URL (`profiles.locations.study_location`). `key` names everything else
        that the objective depends on (trace and cost digests).

        Raises BadInput when the storage cannot be reached.
        """
        self._grid, self._search, self._replay = grid, search, replay
        self._tune = replay.record.split_samples("tune")
        self.space = SearchSpace(grid, search, replay.record)
        settings = {**sampler_settings(search.sampler), "seed": search.seed, "optuna": optuna.__version__}
        self._objective_digest = digest([grid.model_dump(), key, versions().get("sage_tune")])
        self.space_digest = digest(
            [
                self._objective_digest,
                search.model_dump(exclude={"trials", "storage"}),
                outline(self.space),
                settings,
            ]
        )
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.name = f"sage-{self.space_digest[:16]}"
        self.ran = 0
        self._trials: list[FrozenTrial] = []  # as they were when `run` ended: the storage may be gone by then
        self._storage = open_study_storage(place)
        with self._storage.explained():
            self._study = optuna.create_study(
                study_name=self.name, storage=self._storage.storage, direction="maximize", load_if_exists=True
            )
            self.imported = Imported(**self._study.user_attrs.get(IMPORTED, {}))

    def run(
        self,
        first: list[dict[str, Any]],
        budget: Budget,
        on_trial: Callable[[int, float], None] = lambda done, best: None,
    ) -> int:
        """Run trials until the configured number is on record, whoever ran them; returns how many are.

        `first` are the parameters of a new study's first trials. With other workers on the study this waits for
        their last trials, and finishes what they leave behind; a spent budget ends it earlier.
        """
        with self._storage.explained():
            self._begin(first)
            while not budget.expired:
                trial = self._claim()
                if trial is not None:
                    self._evaluate(trial)
                    self.ran += 1
                elif not self._own(TrialState.RUNNING):
                    break
                else:
                    time.sleep(POLL_S)
                self._trials = self._study.get_trials(deepcopy=False)
                on_trial(self.done, max((t.values[0] for t in self._trials if t.values), default=0.0))
            self._trials = self._study.get_trials(deepcopy=False)
            return self.done

    @property
    def done(self) -> int:
        """Finished trials of the study when `run` ended, whoever ran them; what was taken over is not counted."""
        return sum(t.state.is_finished() for t in self._trials[self.imported.trials :])

    def candidates(self, count: int) -> list[Candidate]:
        """The `count` best distinct policies of the study, after `run`. More are compared on the selection split
        than are returned, so that one lucky fit to the tuning prompts does not crowd out the rest."""
        complete = (t for t in self._trials if t.state == TrialState.COMPLETE)
        ranked = sorted(complete, key=lambda t: (-t.values[0], t.number))
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
        """How this search ran, for the profile. The log digest covers parameters and values of every trial, those
        that were taken over included."""
        log = [[t.number, t.params, t.values, t.state.name] for t in self._trials if t.state.is_finished()]
        return SearchRecord(
            sampler=NAMES[self._search.sampler],
            sampler_settings={
                **sampler_settings(self._search.sampler),
                "imported_trials": self.imported.trials,
                "imported_parameters": self.imported.parameters,
            },
            seed=self._search.seed,
            trials=self.done,
            trial_log_digest=digest(log),
            space_digest=self.space_digest,
        )

    def _begin(self, first: list[dict[str, Any]]) -> None:
        """Take over what older studies know and decide the first trials: once per study, by one worker.

        A worker killed in here is followed by another that goes on; the last attribute says that all is done.
        """
        with self._storage.exclusive(self.name):
            if IMPORTED not in self._study.user_attrs:
                self._take_over(first)
        attributes = self._study.user_attrs
        self.imported = Imported(**attributes[IMPORTED])
        planned = {self.imported.trials + i: parameters for i, parameters in enumerate(attributes[PLANNED])}
        self._study.sampler = TrialSampler(self._search.sampler, self._search.seed, self.name, planned)

    def _take_over(self, planned: list[dict[str, Any]]) -> None:
        lineage = self._replay.record.manifest.pair_digest
        self._study.set_user_attr(OBJECTIVE, self._objective_digest)
        self._study.set_user_attr(LINEAGE, lineage)
        alike: list[tuple[str, list[FrozenTrial]]] = []
        akin: list[tuple[str, list[FrozenTrial]]] = []
        storage = self._storage.storage
        for other in storage.get_all_studies():
            if other.study_name == self.name or other.user_attrs.get(LINEAGE) != lineage:
                continue
            trials = storage.get_all_trials(storage.get_study_id_from_name(other.study_name), deepcopy=False)
            same = other.user_attrs.get(OBJECTIVE) == self._objective_digest
            (alike if same else akin).append((other.study_name, trials))
        here = {t.user_attrs.get(IMPORTED_FROM) for t in self._study.get_trials(deepcopy=False)}
        imported = skipped = 0
        for trial in legal_trials(self.space, alike):
            if trial is None:
                skipped += 1
                continue
            imported += 1
            if trial.user_attrs[IMPORTED_FROM] not in here:
                self._study.add_trial(trial)
        again = best_parameters(self.space, akin, besides=planned)
        self._study.set_user_attr(PLANNED, planned + again)
        self._study.set_user_attr(IMPORTED, asdict(Imported(imported, skipped, len(again))))

    def _claim(self) -> Trial | None:
        """A trial for this worker: one that a dead worker left, else the next number; None when all are given out."""
        with self._storage.exclusive(self.name):
            given_out = self._own(*TrialState)
            trial = next((self._resumed(t.number) for t in given_out if self._orphaned(t)), None)
            if trial is None:
                if len(given_out) >= self._search.trials:
                    return None
                trial = self._study.ask()
            trial.set_user_attr(WORKER, self._storage.worker)
            return trial

    def _orphaned(self, trial: FrozenTrial) -> bool:
        """Begun, but nobody is on it: this worker asks only when it has no trial of its own."""
        if trial.state != TrialState.RUNNING:
            return False
        owner = trial.user_attrs.get(WORKER)
        return owner in (None, self._storage.worker) or not self._storage.alive(owner)

    def _resumed(self, number: int) -> Trial:
        storage = self._storage.storage
        study_id = storage.get_study_id_from_name(self.name)
        return Trial(self._study, storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def _evaluate(self, trial: Trial) -> None:
        try:
            try:
                value = self._objective(self.space.suggest(trial))
            except (ValueError, ArithmeticError, EnvelopeError) as error:
                # an impossible combination says nothing about its neighbours: failed, not scored
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                trial.set_user_attr(FAILED_REASON, reason[:REASON_LENGTH])
                self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            else:
                self._study.tell(trial, value, skip_if_finished=True)
        except UpdateFinishedTrialError:
            pass  # this worker was taken for dead and another one finished the trial: with the same value

    def _objective(self, source: PolicySource) -> float:
        value = self._replay.speedup(compiled(source, self._grid, self._replay), self._tune)
        if not np.isfinite(value):
            raise ValueError(f"the replayed speedup is {value}")
        return value

    def _own(self, *states: TrialState) -> list[FrozenTrial]:
        """Trials of these states that were not taken over: those come first."""
        own = self._study.get_trials(deepcopy=False, states=states)
        return [t for t in own if t.number >= self.imported.trials]
