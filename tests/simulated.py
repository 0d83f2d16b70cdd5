"""A machine that only exists as a clock: decode times of every arm, prompt and repeat, drawn from a known truth.

It stands where the models stand in a live comparison (`tuner.comparison.Runner`), so the comparison, its
aggregation of repeats, its intervals and both decisions of `tuner.confirm` run unchanged on it.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from profiles.config import ConfirmConfig
from profiles.policy import PolicySource, Tier
from runtime.decode import OFF
from runtime.policy.compile import compile_policy
from tests.fakes import fake_prompt
from tests.strategies import VERIFY_SIZES
from tuner.comparison import Arm, Job, Run
from tuner.confirm import PLAIN, STATIC, Confirmation, confirm
from tuner.progress import Progress
from tuner.timing import Budget

WORK_NS = 3e8
"""Mean decode time of a prompt under plain decoding."""
QUIET_PROGRESS = Progress(Console(file=io.StringIO()))
ROUNDS = 50
"""Mean rounds of a prompt under plain decoding."""
PROMPT = fake_prompt(0)


@dataclass(frozen=True)
class Noise:
    """How real a machine is. The defaults are what the embedded pair showed on a shared two-core machine: lengths
    of outputs spread by a factor of e^0.85, and two policies differ by 6 % more or less on a prompt of mean length."""

    work: float = 0.85
    """Log standard deviation of the prompts' work."""
    gain: float = 0.045
    """Log standard deviation of an arm's own factor on a prompt of mean work; it falls with the square root of it."""
    run: float = 0.03
    """Log standard deviation of one run ..."""
    round: float = 0.1
    """... and of one round of it."""
    drift: float = 0.1
    """Amplitude of a slow wave of the machine's speed."""
    load_share: float = 0.0
    """Share of the time that foreign load slows everything down ..."""
    load_length: float = 3.0
    """... in bursts of this mean length, in mean decodes ..."""
    load_factor: float = 3.0
    """... by this factor."""


class Machine:
    """Runs arms whose true speeds, relative to plain decoding, are `speeds` by the name of their policy."""

    def __init__(self, speeds: dict[str, float], noise: Noise, seed: int) -> None:
        self._speeds, self._noise = speeds, noise
        self._rng = np.random.default_rng(seed)
        self._work: dict[int, float] = {}
        self._true_ns: dict[tuple[int, str], np.ndarray] = {}
        self._wave = 2 * math.pi * self._rng.random()
        # the machine's clock: when a given amount of work is done; load makes some spans steeper
        self._loaded = bool(self._rng.random() < noise.load_share)
        self._done_ns, self._clock_ns = np.zeros(1), np.zeros(1)
        self._at_ns = 0.0

    def __call__(self, arm: Arm, job: Job) -> Run:
        true_ns = self._pieces(job.sample, arm.source.name)
        jitter = self._rng.standard_normal(len(true_ns))
        jitter *= self._noise.round
        jitter += self._noise.run * self._rng.standard_normal()
        times = self._elapse(true_ns * np.exp(jitter))
        return Run(rounds_ns=times[1:], prefill_ns=float(times[0]), tokens=1)

    def _pieces(self, sample: int, name: str) -> np.ndarray:
        """The work of the prefill and of every round of a prompt under an arm. The mean over prompts of all rounds
        together is exactly that of `speeds`."""
        if (sample, name) not in self._true_ns:
            if sample not in self._work:
                self._work[sample] = _lognormal(self._rng, self._noise.work)
            work = self._work[sample]
            total = WORK_NS * work * _lognormal(self._rng, self._noise.gain / math.sqrt(work)) / self._speeds[name]
            count = max(round(ROUNDS * work / self._speeds[name]), 2)
            self._true_ns[sample, name] = np.array([0.1 * WORK_NS] + count * [total / count])
        return self._true_ns[sample, name]

    def _elapse(self, work_ns: np.ndarray) -> np.ndarray:
        """Let pieces of work pass on this machine; returns the time that a clock shows for each."""
        wave = math.sin(self._wave + 2 * math.pi * self._at_ns / (400 * WORK_NS))
        done = np.empty(len(work_ns) + 1)
        done[0] = 0.0
        np.cumsum(work_ns, out=done[1:])
        done *= 1 + self._noise.drift * wave
        done += self._at_ns
        while self._done_ns[-1] < done[-1]:
            self._extend()
        self._at_ns = float(done[-1])
        clock = np.interp(done, self._done_ns, self._clock_ns)
        return clock[1:] - clock[:-1]

    def _extend(self) -> None:
        """Let some more spans of load and of calm come."""
        noise, count = self._noise, 256
        if not noise.load_share:
            self._done_ns = self._clock_ns = np.array([0.0, 1e18])
            return
        loaded = (np.arange(count) % 2 == 0) == self._loaded
        mean = np.where(loaded, 1.0, (1 - noise.load_share) / noise.load_share) * noise.load_length * WORK_NS
        span = self._rng.exponential(mean)
        done = np.cumsum(span / np.where(loaded, noise.load_factor, 1.0))
        self._clock_ns = np.append(self._clock_ns, self._clock_ns[-1] + np.cumsum(span))
        self._done_ns = np.append(self._done_ns, self._done_ns[-1] + done)


def arm(name: str, tier: Tier) -> Arm:
    source = PolicySource(name=name, tiers=(tier,))
    return Arm(name, source, compile_policy(source, VERIFY_SIZES, 100))


FIXED = [arm(PLAIN, OFF), arm(STATIC, Tier(depth=2, nodes=2))]
FINALISTS = [arm(f"tuned {i}", Tier(depth=2, nodes=2, stop=0.1 * i)) for i in (1, 2)]


def study(speeds: dict[str, float], noise: Noise, seed: int, limits: ConfirmConfig) -> Confirmation:
    """One whole confirmation on a fresh machine with fresh prompts."""
    jobs = [Job(i, PROMPT, 1) for i in range(limits.select_prompts + limits.report_prompts)]
    choosing, reporting = jobs[: limits.select_prompts], jobs[limits.select_prompts :]
    machine = Machine(speeds, noise, seed)
    return confirm(machine, FIXED, FINALISTS, [], choosing, reporting, limits, Budget(None), QUIET_PROGRESS)


def _lognormal(rng: np.random.Generator, sigma: float) -> float:
    """A factor with mean 1."""
    return math.exp(sigma * rng.standard_normal() - sigma * sigma / 2)
