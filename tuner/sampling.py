"""The sampler of a study: Optuna's, with a random stream per trial and parameter.

A stream depends on the seed, the study, the trial's number and the parameter's name. So an interrupted search goes on
exactly as if nothing had happened, even in the middle of a trial, and several workers never draw the same numbers.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

SamplerKind = Literal["tpe", "random"]

TPE_SETTINGS: dict[str, Any] = {
    "multivariate": True,
    "group": True,
    "n_startup_trials": 40,
    "n_ei_candidates": 24,
    "constant_liar": True,
    "constraints_func": None,
}
"""Written out in full: a sampler's defaults change between releases. `constant_liar` keeps parallel workers apart."""
TPE_FIXED: dict[str, Any] = {
    "consider_prior": True,
    "prior_weight": 1.0,
    "consider_magic_clip": True,
    "consider_endpoints": False,
    "gamma": "optuna default_gamma",
    "weights": "optuna default_weights",
    "warn_independent_sampling": False,
}
"""What Optuna 5 warns about when it is given, so it is only recorded: these are the values it then takes."""
WINDOW, REFRESH = 160, 40
"""TPE looks at the best half and the latest half of so many trials, chosen anew every `REFRESH` trials, and at those
after them. Its time per trial grows with what it looks at, and far from the best old trials tell it little. A window
has no running trials, so there is no liar in it; streams by trial number still keep workers apart."""
NAMES: dict[SamplerKind, str] = {"tpe": "optuna.TPESampler", "random": "optuna.RandomSampler"}


def sampler_settings(kind: SamplerKind) -> dict[str, Any]:
    """Everything but the seed that decides what the sampler draws."""
    own = {"stream": "sha256(seed/study/trial/parameter)"}
    if kind == "random":
        return own
    return {**TPE_SETTINGS, **TPE_FIXED, **own, "window": WINDOW, "window_refresh": REFRESH}


def best_and_latest(trials: list[FrozenTrial], size: int) -> list[FrozenTrial]:
    """Half of `size` by value, half by number, in the order given."""
    scored = sorted((t for t in trials if t.state == TrialState.COMPLETE), key=lambda t: (-t.values[0], t.number))
    kept = {t.number for t in (*scored[: size // 2], *trials[-(size // 2) :])}
    return [t for t in trials if t.number in kept]


class TrialSampler(BaseSampler):
    """Draws a trial's parameters as a function of its number and of the finished trials alone.

    `planned` holds whole parameter sets by trial number: known policies that are run instead of drawn ones.
    """

    def __init__(self, kind: SamplerKind, seed: int, study: str, planned: Mapping[int, Mapping[str, Any]]) -> None:
        self._kind, self._seed, self._study, self._planned = kind, seed, study, planned
        self._joint: BaseSampler = RandomSampler(seed)
        self._window: tuple[int, int, Study] | None = None
        """Trials that were chosen from, trials in it, and the study that holds them."""

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if trial.number in self._planned:
            return {}
        seen = self._seen(study)
        self._joint = self._stream(trial.number, "", liar=seen is study)
        return self._joint.infer_relative_search_space(seen, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        # the sampler that was just asked for the space: it remembers how it was grouped
        return self._joint.sample_relative(self._seen(study), trial, search_space) if search_space else {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        planned = self._planned.get(trial.number, {})
        if param_name in planned:
            return planned[param_name]
        seen = self._seen(study)
        stream = self._stream(trial.number, param_name, liar=seen is study)
        return stream.sample_independent(seen, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Nothing to do: Optuna asks for this to keep copies of a sampler apart, which trial numbers do here."""

    def _seen(self, study: Study) -> Study:
        """What TPE is shown: the study itself while it is small, else a window of it, which depends on the finished
        trials alone."""
        if self._kind == "random":
            return study
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
        chosen_from = len(finished) // REFRESH * REFRESH
        if chosen_from < WINDOW + REFRESH:
            return study
        if self._window is None or self._window[0] != chosen_from or self._window[1] > len(finished):
            window = optuna.create_study(direction="maximize", sampler=RandomSampler())
            window.add_trials(best_and_latest(finished[:chosen_from], WINDOW))
            self._window = (chosen_from, chosen_from, window)
        _, known, window = self._window
        window.add_trials(finished[known:])
        self._window = (chosen_from, len(finished), window)
        return window

    def _stream(self, number: int, name: str, liar: bool) -> BaseSampler:
        text = f"{self._seed}/{self._study}/{number}/{name}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        if self._kind == "random":
            return RandomSampler(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)  # `group` is what conditional spaces need
            return TPESampler(seed=seed, **{**TPE_SETTINGS, "constant_liar": liar})
