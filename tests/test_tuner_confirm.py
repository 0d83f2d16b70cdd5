"""The decision: what selection chose must be confirmed, and nothing is ever upgraded by the report prompts."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.config import ConfirmConfig
from profiles.errors import Inconclusive
from profiles.policy import Tier
from tests.simulated import FINALISTS, FIXED, PROMPT, QUIET_PROGRESS, Machine, Noise, arm, study
from tuner.comparison import Comparison, Job
from tuner.confirm import PLAIN, SEARCHED, STATIC, confirm, held, winner
from tuner.timing import Budget

LIMITS = ConfirmConfig(select_prompts=40, report_prompts=40)


def comparison(**speedups: float) -> Comparison:
    """40 prompts; speedups over plain decoding by arm, `static` and `tuned` for short."""
    rng = np.random.default_rng(11)
    work = rng.lognormal(0, 0.5, 40)
    times = {PLAIN: work * rng.lognormal(0, 0.03, 40)}
    for name, speedup in speedups.items():
        key = {"static": STATIC, "tuned": SEARCHED}.get(name, name.replace("_", " "))
        times[key] = work * rng.lognormal(0, 0.03, 40) / speedup
    return Comparison([arm(name, Tier(depth=2, nodes=2)) for name in times], list(range(40)), decode_ns=times)


def test_the_highest_lower_bound_wins() -> None:
    choice, reason = winner(comparison(static=1.8, tuned_1=2.0, tuned_2=2.2), ["tuned 1", "tuned 2"])
    assert choice == "tuned 2" and "beats the best static tier by a factor of 1.2" in reason


def test_a_gain_within_noise_ships_the_static_tier() -> None:
    choice, reason = winner(comparison(static=1.8, tuned_1=1.8), ["tuned 1"])
    assert choice == STATIC and "is not certain" in reason


def test_what_does_not_beat_plain_decoding_is_off() -> None:
    choice, reason = winner(comparison(static=0.95, tuned_1=0.95), ["tuned 1"])
    assert choice == PLAIN and "does not pay" in reason


def test_an_adaptive_policy_that_alone_beats_plain_decoding_ships() -> None:
    """Its gain over a noisy static tier may be uncertain; plain decoding is not the better answer then."""
    found = comparison(static=1.0, tuned_1=1.05)
    rng = np.random.default_rng(0)
    found.decode_ns[STATIC] = found.decode_ns[PLAIN] * rng.lognormal(0, 0.3, 40)
    assert found.speedup("tuned 1", STATIC).low < 1.0
    choice, reason = winner(found, ["tuned 1"])
    assert choice == "tuned 1" and reason.startswith("only the adaptive policy is certain to beat plain decoding")


def test_the_static_tier_ships_when_nothing_adaptive_was_found() -> None:
    assert winner(comparison(static=1.8), []) == (STATIC, "no adaptive policy was proposed")


def test_a_confirmed_gain_ships_with_the_reports_own_interval() -> None:
    shipped, reason = held(comparison(static=1.8, tuned=2.0), SEARCHED, "said selection")
    assert shipped == SEARCHED and "beats the best static tier" in reason


def test_a_gain_that_does_not_hold_falls_back_to_the_static_tier() -> None:
    shipped, reason = held(comparison(static=1.8, tuned=1.8), SEARCHED, "said selection")
    assert shipped == STATIC and reason.startswith("not confirmed on the report prompts")


def test_a_static_tier_that_does_not_hold_is_off() -> None:
    shipped, reason = held(comparison(static=0.9, tuned=0.95), STATIC, "said selection")
    assert shipped == PLAIN and "does not pay" in reason


def test_the_report_never_upgrades_a_choice() -> None:
    assert held(comparison(static=1.8, tuned=2.5), STATIC, "said selection") == (STATIC, "said selection")
    assert held(comparison(static=1.8, tuned=2.5), PLAIN, "said selection") == (PLAIN, "said selection")


def test_a_confirmation_chooses_on_some_prompts_and_reports_on_others() -> None:
    speeds = {PLAIN: 1.0, STATIC: 1.5, "tuned 1": 1.6, "tuned 2": 1.8}
    found = study(speeds, Noise(), 3, LIMITS)
    assert found.shipped == SEARCHED and found.gain.low > 1.0
    assert found.report.arms[-1].source == FINALISTS[1].source, "the faster finalist is the one that is reported"
    assert not set(found.selection.samples) & set(found.report.samples)
    assert [arm.name for arm in found.selection.arms] == [PLAIN, STATIC, "tuned 1", "tuned 2"]
    assert [arm.name for arm in found.report.arms] == [PLAIN, STATIC, SEARCHED]


def test_the_best_finalist_is_reported_even_when_it_does_not_ship() -> None:
    found = study({PLAIN: 1.0, STATIC: 1.5, "tuned 1": 1.2, "tuned 2": 1.4}, Noise(), 3, LIMITS)
    assert found.shipped == STATIC and found.report.arms[-1].name == SEARCHED
    assert found.gain.high < 1.0


def test_without_finalists_the_gain_is_none() -> None:
    jobs = [Job(i, PROMPT, 1) for i in range(20)]
    machine = Machine({PLAIN: 1.0, STATIC: 1.5}, Noise(), 0)
    found = confirm(machine, FIXED, [], [], jobs[:10], jobs[10:], LIMITS, Budget(None), QUIET_PROGRESS)
    assert found.shipped == STATIC and (found.gain.low, found.gain.high) == (1.0, 1.0)


def test_too_few_prompts_are_no_verdict() -> None:
    jobs = [Job(i, PROMPT, 1) for i in range(20)]
    machine = Machine({PLAIN: 1.0, STATIC: 1.5}, Noise(), 0)
    with pytest.raises(Inconclusive, match="only 2 prompts of the select split"):
        confirm(machine, FIXED, [], [], jobs[:2], jobs[10:], LIMITS, Budget(None), QUIET_PROGRESS)
