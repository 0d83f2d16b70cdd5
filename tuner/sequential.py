"""A sequential test: look at growing data again and again, with the chance of a wrong verdict held over all looks.

Of the permitted error, `error * f^2` may be spent by the time that a share f of the planned information is in (Lan and
DeMets 1983, Biometrika 70; the power family of Kim and DeMets 1987, Biometrika 74). The bound of a look follows from
the distribution of the score over all earlier looks that crossed none (Armitage, McPherson and Rowe 1969, JRSS A 132).
What a look may spend is then asked of Student's t at its degrees of freedom (Jennison and Turnbull 2000, Group
Sequential Methods, chapters 3 and 7). Ending early for want of time spends less, never more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, stdtrit

Floats = npt.NDArray[np.float64]

POWER = 2.0
GRID = 301
SIGMAS = 6.0
"""The score is followed this many standard deviations to either side."""

LARGEST_LOG = 700.0

Speed = Literal["held", "lost", "open"]


class Spending:
    """One-sided nominal levels of looks at ascending information fractions, together worth `error`."""

    def __init__(self, error: float) -> None:
        self._error, self._fraction, self._spent = error, 0.0, 0.0
        self._scores: Floats = np.zeros(1)
        self._mass: Floats = np.ones(1)

    def level(self, fraction: float) -> float:
        """The level of a look at `fraction` of the planned information; beyond all of it nothing is left to spend."""
        fraction = min(fraction, 1.0)
        if fraction <= self._fraction:
            return 0.0
        step = math.sqrt(fraction - self._fraction)
        share = self._error * fraction**POWER - self._spent

        def crossing(bound: float) -> float:
            return float(self._mass @ ndtr((self._scores - bound) / step))

        reach = SIGMAS * math.sqrt(fraction)
        bound = float(brentq(lambda at: crossing(at) - share, -reach, reach)) if crossing(reach) < share else reach
        scores = np.linspace(-reach, bound, GRID)
        width = scores[1] - scores[0]
        density = np.exp(-(((scores[:, None] - self._scores) / step) ** 2) / 2) @ self._mass
        density *= width / (step * math.sqrt(2 * math.pi))
        density[[0, -1]] /= 2  # trapezia
        self._scores, self._mass = scores, density
        self._fraction, self._spent = fraction, self._error * fraction**POWER
        return float(ndtr(-bound / math.sqrt(fraction)))


@dataclass(frozen=True)
class Look:
    """What a look saw: the change of a speedup against the saved one, as factors (1 is no change)."""

    change: float
    low: float
    high: float
    """Either bound is missed with the error of the test at most, over all looks together."""
    prompts: int
    verdict: Speed


class ChangeTest:
    """Has a log ratio fallen by a `margin` > 0 (a share), or is it where it was?

    `held`: the loss is certainly smaller than the margin. `lost`: there certainly is one, and it is nearer to the
    margin than to nothing. Both at one-sided `error`; where the truth is nothing, or the margin, one of them is false.
    """

    def __init__(self, margin: float, error: float) -> None:
        self._margin = math.log1p(-margin)
        self._spending = Spending(error)

    def look(self, changes: Floats, fraction: float) -> Look:
        """`changes` [prompts >= 2] are log ratios of the speedup now to the saved one, a prompt each."""
        level = self._spending.level(fraction)
        mean, prompts = float(changes.mean()), len(changes)
        error = float(changes.std(ddof=1)) / math.sqrt(prompts)
        width = float(stdtrit(prompts - 1, 1 - level)) * error if level > 0 else math.inf
        verdict: Speed = "open"
        if mean - width > self._margin:
            verdict = "held"
        elif mean + width < 0 and mean < self._margin / 2:
            verdict = "lost"
        # an interval without an upper end is written as a large finite one, since JSON knows no infinity
        high = math.exp(min(mean + width, LARGEST_LOG))
        return Look(math.exp(mean), math.exp(mean - width), high, prompts, verdict)
