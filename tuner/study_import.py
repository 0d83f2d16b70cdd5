"""What older studies still know: trials that are legal in a new space, and policies worth another look."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
    distribution_to_json,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from profiles.provenance import canonical_json
from tuner.space import SearchSpace

IMPORTED_FROM = "imported_from"
BEST_PARAMETERS = 8
"""Parameter sets taken from studies over another record: their values say nothing here."""
PROBES = 64


@dataclass(frozen=True)
class Imported:
    """What a new study took over."""

    trials: int = 0
    """Trials of the same record and cost table, with their values."""
    skipped: int = 0
    """...and those that the new space does not contain."""
    parameters: int = 0
    """Policies of another record that are run again."""

    def summary(self) -> str:
        """One line for a person; empty when there was nothing to take over."""
        parts = []
        if self.trials or self.skipped:
            parts.append(f"{self.trials} trials of earlier studies taken over, {self.skipped} do not fit this space")
        if self.parameters:
            parts.append(f"{self.parameters} policies of an earlier record run again")
        return "; ".join(parts)


class _Questions:
    """A space's suggester that notes which distribution every parameter was asked with."""

    def __init__(self, answer: Callable[[str, BaseDistribution], Any]) -> None:
        self.asked: dict[str, BaseDistribution] = {}
        self._answer = answer

    def suggest_int(self, name: str, low: int, high: int, **rest: Any) -> int:
        return int(self._ask(name, IntDistribution(low, high, **rest)))

    def suggest_float(self, name: str, low: float, high: float, **rest: Any) -> float:
        return float(self._ask(name, FloatDistribution(low, high, **rest)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._ask(name, CategoricalDistribution(choices))

    def _ask(self, name: str, distribution: BaseDistribution) -> Any:
        self.asked[name] = distribution
        return self._answer(name, distribution)


def _drawn(generator: random.Random, distribution: BaseDistribution) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return generator.choice(distribution.choices)
    if isinstance(distribution, IntDistribution):
        return generator.randint(distribution.low, distribution.high)
    assert isinstance(distribution, FloatDistribution)
    return generator.uniform(distribution.low, distribution.high)


def outline(space: SearchSpace) -> list[list[str]]:
    """The space's parameters with their distributions, as they are met: another release may ask for others."""
    met: set[tuple[str, str]] = set()
    generator = random.Random(0)
    for _ in range(PROBES):
        probe = _Questions(lambda name, distribution: _drawn(generator, distribution))
        with suppress(ValueError):  # impossible combinations belong to the space
            space.suggest(probe)
        met |= {(name, distribution_to_json(asked)) for name, asked in probe.asked.items()}
    return [list(entry) for entry in sorted(met)]


def fitting(space: SearchSpace, parameters: dict[str, Any]) -> dict[str, BaseDistribution] | None:
    """Distributions of a parameter set in this space; None when the space does not contain it."""

    def known(name: str, distribution: BaseDistribution) -> Any:
        if name not in parameters:
            raise ValueError(f"'{name}' is not among the parameters")
        create_trial(params={name: parameters[name]}, distributions={name: distribution}, value=0.0)  # checks it
        return parameters[name]

    questions = _Questions(known)
    try:
        space.suggest(questions)
    except (ValueError, TypeError):
        return None
    return questions.asked if questions.asked.keys() == parameters.keys() else None


def legal_trials(space: SearchSpace, studies: Iterable[tuple[str, list[FrozenTrial]]]) -> Iterator[FrozenTrial | None]:
    """Every distinct completed trial of named studies as one of this space; None for one that does not fit."""
    seen: set[str] = set()
    for study, trials in studies:
        for trial in trials:
            key = canonical_json(trial.params)
            if trial.state != TrialState.COMPLETE or key in seen:
                continue
            seen.add(key)
            distributions = fitting(space, trial.params)
            if distributions is None:
                yield None
                continue
            yield create_trial(
                params=trial.params,
                distributions=distributions,
                values=trial.values,
                user_attrs={IMPORTED_FROM: f"{study}/{trial.number}"},
            )


def best_parameters(
    space: SearchSpace,
    studies: Iterable[tuple[str, list[FrozenTrial]]],
    besides: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """The best parameter sets of studies that this space contains, best of each study first, and not `besides`."""
    ranked: list[tuple[int, int, dict[str, Any]]] = []
    for order, (_, trials) in enumerate(studies):
        complete = [t for t in trials if t.state == TrialState.COMPLETE and t.params not in besides]
        complete.sort(key=lambda t: (-t.values[0], t.number))
        ranked += [(rank, order, t.params) for rank, t in enumerate(complete)]
    found: dict[str, dict[str, Any]] = {}
    for _, _, parameters in sorted(ranked, key=lambda entry: entry[:2]):
        if len(found) < BEST_PARAMETERS and fitting(space, parameters) is not None:
            found.setdefault(canonical_json(parameters), parameters)
    return list(found.values())
