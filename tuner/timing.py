"""One clock: warm-up until stable, all samples kept, medians derived; and the budget of a long command."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

from profiles.config import TimingConfig

WARMUP_WINDOW = 8


def coefficient_of_variation(samples: list[float]) -> float:
    """Standard deviation over mean; infinite below two samples."""
    if len(samples) < 2:
        return math.inf
    return statistics.stdev(samples) / statistics.fmean(samples)


def is_warm(samples: list[float], config: TimingConfig) -> bool:
    """True once the last samples vary less than the bound, or the cap of warm-up samples is reached."""
    if len(samples) >= config.warmup_max:
        return True
    recent = samples[-WARMUP_WINDOW:]
    return len(recent) == WARMUP_WINDOW and coefficient_of_variation(recent) < config.warmup_cv


def warm_up(call: Callable[[], float], config: TimingConfig) -> int:
    """Repeat `call` (returns its own time) until it is stable; returns the number of calls thrown away."""
    samples: list[float] = []
    while not is_warm(samples, config):
        samples.append(call())
    return len(samples)


class Budget:
    """Wall-clock bound of a command. Steps ask `expired` between units of work and stop cleanly."""

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._end

    @property
    def left_s(self) -> float:
        return max(self._end - time.monotonic(), 0.0)
