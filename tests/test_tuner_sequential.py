"""Looking again and again costs no more errors than were permitted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtri

from tuner.sequential import ChangeTest, Spending

PATHS = 40_000
FIXED = -ndtri(0.05)
"""What looking once would need, in standard deviations."""


@pytest.mark.parametrize(
    "fractions", [[1.0], [0.5, 1.0], [0.2, 0.4, 0.6, 0.8, 1.0], [0.1, 0.15, 0.7, 0.71, 1.0]], ids=str
)
@pytest.mark.parametrize("error", [0.05, 0.01])
def test_all_looks_together_spend_the_error(fractions: list[float], error: float) -> None:
    spending = Spending(error)
    bounds = [-ndtri(spending.level(f)) for f in fractions]
    rng = np.random.default_rng(0)
    steps = np.sqrt(np.diff(fractions, prepend=0.0)) * rng.standard_normal((PATHS, len(fractions)))
    crossed = steps.cumsum(axis=1) / np.sqrt(fractions) > bounds
    assert crossed.any(axis=1).mean() == pytest.approx(error, abs=4 * math.sqrt(error / PATHS))
    # each look spends its own part
    assert crossed[:, 0].mean() == pytest.approx(error * fractions[0] ** 2, abs=4 * math.sqrt(error / PATHS))


def test_one_look_is_the_fixed_test_and_nothing_is_left_after_the_last() -> None:
    spending = Spending(0.05)
    assert -ndtri(spending.level(1.0)) == pytest.approx(FIXED, abs=1e-3)
    assert spending.level(1.0) == spending.level(2.0) == 0.0


def test_looking_without_a_plan_would_err_far_more() -> None:
    """Negative control: the fixed bound at every look."""
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((PATHS, 12)).cumsum(axis=1) / np.sqrt(np.arange(1, 13))
    assert (scores > FIXED).any(axis=1).mean() > 0.12


def verdicts(loss: float, looks: int, studies: int = 1000, noise: float = 0.04) -> dict[str, float]:
    """Shares of verdicts when every prompt's change is normal around -loss."""
    rng = np.random.default_rng(7)
    counts = {"held": 0, "lost": 0, "open": 0}
    for _ in range(studies):
        test, changes = ChangeTest(0.03, 0.05), math.log1p(-loss) + noise * rng.standard_normal(32)
        for look in range(1, looks + 1):
            seen = 32 * look // looks
            verdict = test.look(changes[:seen], look / looks).verdict
            if verdict != "open":
                break
        counts[verdict] += 1
    return {name: count / studies for name, count in counts.items()}


def test_the_change_test_keeps_both_errors() -> None:
    """32 prompts whose changes spread by 4 %: few verdicts stay open, and few are false."""
    nothing, lost = verdicts(0.0, 4), verdicts(0.03, 4)
    print(f"\nno loss: {nothing}; 3 % lost: {lost}")
    assert nothing["lost"] <= 0.06 and nothing["held"] > 0.9
    assert lost["held"] <= 0.06 and lost["lost"] > 0.9
    assert verdicts(0.10, 4, 100)["lost"] == 1.0 and verdicts(-0.10, 4, 100)["held"] == 1.0


def test_a_look_shows_its_bounds() -> None:
    look = ChangeTest(0.03, 0.05).look(np.array([0.01, -0.01, 0.0, 0.002]), 1.0)
    assert look.low < look.change < look.high and look.prompts == 4 and look.verdict == "held"
    wide = ChangeTest(0.03, 0.05).look(np.array([0.4, -0.4]), 0.5)
    assert wide.verdict == "open"
