"""The decision: what selection chose must be confirmed, and nothing is ever upgraded by the report prompts."""

from __future__ import annotations

import numpy as np

from tests.test_tuner_statistics import comparison
from tuner.confirm import Comparison
from tuner.tuning import PLAIN, STATIC, TUNED, _confirmed


def report(static: float, tuned: float) -> Comparison:
    rng = np.random.default_rng(11)
    size = rng.lognormal(0, 0.5, 40)
    noisy = {name: size * rng.lognormal(0, 0.03, 40) for name in (PLAIN, STATIC, TUNED)}
    return comparison({PLAIN: noisy[PLAIN], STATIC: noisy[STATIC] / static, TUNED: noisy[TUNED] / tuned})


def test_a_confirmed_gain_ships_with_the_reports_own_interval() -> None:
    shipped, reason = _confirmed(report(1.8, 2.0), "tuned 2", "said selection", 400)
    assert shipped == TUNED and "beats the best static tier" in reason


def test_a_gain_that_does_not_hold_falls_back_to_the_static_tier() -> None:
    shipped, reason = _confirmed(report(1.8, 1.8), "tuned 1", "said selection", 400)
    assert shipped == STATIC and reason.startswith("not confirmed on the report prompts")


def test_what_is_slower_than_plain_decoding_is_off() -> None:
    shipped, reason = _confirmed(report(0.9, 0.95), STATIC, "said selection", 400)
    assert shipped == PLAIN and "does not pay" in reason


def test_the_report_never_upgrades_a_choice() -> None:
    assert _confirmed(report(1.8, 2.5), STATIC, "said selection", 400) == (STATIC, "said selection")
    assert _confirmed(report(1.8, 2.5), PLAIN, "said selection", 400) == (PLAIN, "said selection")
