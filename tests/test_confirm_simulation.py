"""What the verdicts of `tune` are worth: whole confirmations on simulated machines whose truth is known.

Every study runs the real comparison, intervals and both decisions (`tests.simulated`) at the default numbers of
prompts and repeats. `pytest -s` prints the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

import tuner.comparison
from profiles.config import ConfirmConfig
from tests.simulated import FIXED, PROMPT, WORK_NS, Machine, Noise, study
from tuner.comparison import Arm, Job
from tuner.confirm import PLAIN, SEARCHED, STATIC
from tuner.statistics import ratio_interval

STUDIES = 200
LIMITS = ConfirmConfig()
EQUAL = {PLAIN: 1.0, STATIC: 1.5, "tuned 1": 1.5, "tuned 2": 1.5}
FASTER = {PLAIN: 1.0, STATIC: 1.3, "tuned 1": 1.3, "tuned 2": 1.3}
BURSTS = [0.3, 1.0, 3.0, 10.0, 30.0, 100.0]
"""Mean lengths of a burst in mean decodes: within a run, within a turn of all arms, over several prompts."""
ENOUGH = 0.92 * STUDIES
"""An interval that covers 95 % covers at least this often in 200 studies, with a probability of 98 %."""


@dataclass
class Figures:
    """Counts over studies."""

    studies: int
    covered: int = 0
    shipped: Counter[str] = field(default_factory=Counter)
    width: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        shares = ", ".join(f"{name} ships in {count / self.studies:.1%}" for name, count in self.shipped.most_common())
        return (
            f"the claimed gain's interval covers the truth in {self.covered / self.studies:.1%} of {self.studies} "
            f"studies (width {np.median(self.width):.1%}); {shares}"
        )


def figures(what: str, speeds: dict[str, float], noise: Noise, gain: float = 1.0, studies: int = STUDIES) -> Figures:
    found = Figures(studies)
    for seed in range(studies):
        result = study(speeds, noise, seed, LIMITS)
        found.covered += result.gain.low <= gain <= result.gain.high
        found.width.append(result.gain.high / result.gain.low - 1)
        found.shipped[result.shipped] += 1
    print(f"\n{what}: {found}")
    return found


def loaded(length: float) -> Noise:
    return Noise(load_share=0.4, load_length=length)


def test_equal_policies_claim_no_gain() -> None:
    found = figures("all policies equal", EQUAL, Noise())
    assert found.covered >= 0.95 * STUDIES
    assert found.shipped[SEARCHED] <= 0.01 * STUDIES, "an adaptive policy that is no better ships"


def test_a_gain_of_five_percent_ships() -> None:
    found = figures("one finalist 5 % faster", {**EQUAL, "tuned 2": 1.05 * EQUAL[STATIC]}, Noise(), gain=1.05)
    assert found.shipped[SEARCHED] >= 0.8 * STUDIES
    assert found.covered >= 0.95 * STUDIES


@pytest.mark.slow
def test_what_is_no_faster_than_plain_decoding_is_off() -> None:
    found = figures("nothing faster than plain decoding", dict.fromkeys(EQUAL, 1.0), Noise())
    assert found.shipped[PLAIN] >= 0.95 * STUDIES


@pytest.mark.slow
def test_intervals_stay_true_on_a_swinging_machine() -> None:
    """Its speed swings by 30 %, prompts are of extreme lengths, runs are noisy: the interval widens."""
    noise = Noise(work=1.2, gain=0.1, run=0.1, round=0.2, drift=0.3)
    found = figures("swinging machine, uneven prompts", EQUAL, noise)
    assert found.covered >= ENOUGH and found.shipped[SEARCHED] <= 0.01 * STUDIES


def test_foreign_load_makes_no_verdict_in_a_few_studies() -> None:
    found = figures("foreign load in bursts of 10 decodes", FASTER, loaded(10.0), studies=40)
    assert found.studies - found.shipped[STATIC] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("length", BURSTS)
def test_foreign_load_makes_no_verdict(length: float) -> None:
    """Bursts that slow the machine three times, 40 % of the time. All policies are 30 % faster than plain decoding:
    an adaptive one that ships, or `off`, is a false verdict."""
    found = figures(f"foreign load in bursts of {length:g} decodes", FASTER, loaded(length))
    assert STUDIES - found.shipped[STATIC] < 0.05 * STUDIES
    assert found.covered >= ENOUGH


@pytest.mark.slow
@pytest.mark.parametrize("length", [1.0, 30.0])
def test_foreign_load_invents_no_gain_over_plain_decoding(length: float) -> None:
    found = figures(f"all equal, bursts of {length:g} decodes", dict.fromkeys(EQUAL, 1.0), loaded(length))
    assert STUDIES - found.shipped[PLAIN] < 0.05 * STUDIES
    assert found.covered >= ENOUGH


@pytest.mark.slow
@pytest.mark.parametrize("length", [0.3, 3.0, 30.0])
def test_foreign_load_hides_no_gain_and_stretches_none(length: float) -> None:
    """One adaptive policy is twice as fast as everything else. Its runs are shorter, so whole calm runs would be
    more frequent among them: the measured gain must stay true all the same."""
    speeds = {**dict.fromkeys(EQUAL, 1.0), "tuned 1": 2.0}
    found = figures(f"one policy twice as fast, bursts of {length:g} decodes", speeds, loaded(length), gain=2.0)
    assert found.shipped[SEARCHED] > 0.95 * STUDIES
    assert found.covered >= ENOUGH


def whole_runs(monkeypatch: pytest.MonkeyPatch, rule: Callable[..., float]) -> None:
    """Let a rule over the times of whole runs take the place of the one that is under test."""
    monkeypatch.setattr(tuner.comparison, "calm_ns", lambda times: float(rule(times.sum(axis=1))))
    monkeypatch.setattr(tuner.comparison, "is_settled", lambda times: True)


@pytest.mark.slow
def test_the_median_of_repeats_would_call_a_faster_policy_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    whole_runs(monkeypatch, np.median)
    found = figures("median of runs, bursts of 10 decodes", FASTER, loaded(10.0))
    assert found.shipped[PLAIN] > 0.05 * STUDIES


@pytest.mark.slow
def test_the_fastest_repeat_would_stretch_a_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the reason why rounds and not runs are left out."""
    whole_runs(monkeypatch, np.min)
    speeds = {**dict.fromkeys(EQUAL, 1.0), "tuned 1": 2.0}
    found = figures("fastest run, one policy twice as fast, bursts of 0.3 decodes", speeds, loaded(0.3), gain=2.0)
    assert found.covered < 0.8 * STUDIES


def test_arms_one_after_the_other_would_claim_a_gain() -> None:
    """Negative control: the same machine, one arm on all prompts before the next, and drift becomes a gain."""
    covered = 0
    for seed in range(STUDIES):
        machine = Machine(EQUAL, Noise(), seed)
        static, tuned = (_times(machine, Arm(name, FIXED[1].source, FIXED[1].policy)) for name in (STATIC, SEARCHED))
        interval = ratio_interval(static, tuned, "measured")
        covered += interval.low <= 1.0 <= interval.high
    print(f"\nnot interleaved: covers the truth in {covered / STUDIES:.1%} of {STUDIES} studies")
    assert covered < 0.5 * STUDIES


def test_the_machine_keeps_its_promises() -> None:
    """Mean work, speeds and the share of load are those that were asked for."""
    quiet = Machine(EQUAL, Noise(), 0)
    assert _times(quiet, FIXED[0], 5_000).mean() == pytest.approx(WORK_NS, rel=0.05)
    assert _times(quiet, FIXED[1], 5_000).mean() == pytest.approx(WORK_NS / 1.5, rel=0.05)
    busy = Machine(EQUAL, Noise(load_share=0.4, load_length=5), 0)
    # 40 % of the time at a third of the speed
    assert _times(busy, FIXED[0], 5_000).mean() == pytest.approx(WORK_NS / (0.6 + 0.4 / 3), rel=0.05)


def _times(machine: Machine, arm: Arm, prompts: int = 72) -> np.ndarray:
    return np.array([sum(machine(arm, Job(i, PROMPT, 1)).rounds_ns) for i in range(prompts)])
