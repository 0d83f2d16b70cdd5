"""A live comparison: all arms decode the same prompts in turn, and the time of every round of every run is kept.

Arms run in ABBA order, so drift of the machine falls on all alike. Decoding is deterministic, so a round of an
output is the same work in every run: foreign load makes it slower, nothing makes it faster. A round's time
is therefore the mean over the runs without those slower than `LOADED` times the fastest, and an arm's time on a
prompt is the sum over its rounds; on a quiet machine that is the mean of the runs. Whole runs are not left out: a
short run is calm from end to end more often than a long one, which would favour the faster arm.

Where the fastest times of an arm's rounds were not seen twice, the prompt is decoded again by all arms at the
end, when the load may have passed. The rule sees one arm at a time and no ratio. Repeats steady a prompt's time;
only prompts narrow an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from profiles.counters import Counters
from profiles.measurement import Interval
from profiles.policy import CompiledPolicy, PolicySource
from runtime.prompts import Prompt
from tuner.lossless import RoundComparison
from tuner.statistics import ratio_interval
from tuner.timing import Budget

Floats = npt.NDArray[np.float64]

LOADED = 2.0
"""A round slower than this multiple of the fastest run of the same round was hit by foreign load. What a machine
does by itself stays in: of the passes of a quiet one, less than 1 % are that slow."""
SETTLED = 1.25
"""The second fastest times of all rounds together may be slower than the fastest by this factor."""
AGAIN = 2
"""Times that a prompt may be decoded again for want of a fastest time that was seen twice."""
FEWEST_PROMPTS = 3
"""Prompts that a spent budget still allows: less says nothing."""


@dataclass(frozen=True)
class Arm:
    """One policy of a comparison."""

    name: str
    source: PolicySource
    policy: CompiledPolicy


@dataclass(frozen=True)
class Job:
    """One prompt of a comparison: its sample in the record and what to decode."""

    sample: int
    prompt: Prompt
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """One decoding of a prompt by an arm, its tokens compared with plain decoding."""

    rounds_ns: Sequence[float]
    """Time of every round."""
    prefill_ns: float
    """Prefills of target and draft."""
    tokens: int
    near_tie: bool = False
    """The tokens differ by a near tie: other tokens are another amount of work."""
    counters: Counters | None = None
    """What a production log would say of it."""
    replayed: RoundComparison | None = None
    """Live rounds against replayed ones; None after a near tie."""


class Runner(Protocol):
    """Decodes one prompt under one arm. `tuner.live.LiveRunner` does it with the models."""

    def __call__(self, arm: Arm, job: Job) -> Run: ...


@dataclass
class Comparison:
    """All runs of all arms on the prompts that were finished."""

    arms: list[Arm]
    samples: list[int] = field(default_factory=list)
    runs: dict[str, list[list[Run]]] = field(default_factory=dict)
    """Arm to the runs of every prompt, in the order they were made; aligned with `samples`."""
    decode_ns: dict[str, Floats] = field(default_factory=dict)
    """Arm to its decode time per prompt, foreign load left out; aligned with `samples`."""
    request_ns: dict[str, Floats] = field(default_factory=dict)
    """The same for whole requests, prefills included."""
    tokens: int = 0
    """Tokens compared with plain decoding, over all arms and runs."""
    near_ties: int = 0
    replayed: list[RoundComparison] = field(default_factory=list)

    def speedup(self, name: str, over: str) -> Interval:
        """Measured time of `over` divided by that of `name`, summed over prompts."""
        return ratio_interval(self.decode_ns[over], self.decode_ns[name], "measured")

    def request_speedup(self, name: str, over: str) -> Interval:
        """The same for whole requests."""
        return ratio_interval(self.request_ns[over], self.request_ns[name], "measured")

    @property
    def rounds_equal_share(self) -> float:
        total = sum(c.rounds for c in self.replayed)
        return sum(c.equal for c in self.replayed) / total if total else 1.0


def compare(
    runner: Runner,
    arms: list[Arm],
    jobs: Sequence[Job],
    repeats: int,
    budget: Budget,
    on_prompt: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run all arms on all prompts, `2 * repeats` times each. A prompt counts only when every arm finished it.

    Raises what `runner` raises: LosslessError for tokens that differ from plain decoding by more than a near tie.
    """
    for arm in arms if jobs else []:
        runner(arm, jobs[0])  # warm-up
    done: list[dict[str, list[Run]]] = []
    for number, job in enumerate(jobs):
        if budget.expired and number >= FEWEST_PROMPTS:
            break
        done.append({arm.name: [] for arm in arms})
        _decode(runner, arms, job, number, repeats, done[-1])
        on_prompt()
    for number, runs_of in list(enumerate(done)) * AGAIN:
        if not (budget.expired or all(is_settled(aligned(runs)) for runs in runs_of.values())):
            _decode(runner, arms, jobs[number], number, repeats, runs_of)

    result = Comparison(arms, runs={arm.name: [] for arm in arms})
    for job, runs_of in zip(jobs, done, strict=False):
        every = [run for runs in runs_of.values() for run in runs]
        ties = sum(run.near_tie for run in every)
        result.tokens += sum(run.tokens for run in every)
        result.near_ties += ties
        result.replayed += [run.replayed for run in every if run.replayed is not None]
        if not ties:
            result.samples.append(job.sample)
            for name, runs in runs_of.items():
                result.runs[name].append(runs)
    for name, prompts in result.runs.items():
        result.decode_ns[name] = np.array([calm_ns(aligned(runs)) for runs in prompts])
        prefill_ns = [calm_ns(np.array([[run.prefill_ns] for run in runs])) for runs in prompts]
        result.request_ns[name] = result.decode_ns[name] + prefill_ns
    return result


def aligned(runs: Sequence[Run]) -> Floats:
    """[runs, rounds] times of the same rounds. Where a near tie gave some run another number of rounds, a run is
    one round as a whole, [runs, 1]."""
    if len({len(run.rounds_ns) for run in runs}) > 1:
        return np.array([[sum(run.rounds_ns)] for run in runs], dtype=np.float64)
    return np.array([run.rounds_ns for run in runs], dtype=np.float64)


def calm_ns(times: Floats) -> float:
    """Time of all rounds: per round the mean over runs, those hit by foreign load left out. `times` [runs, rounds]."""
    calm = times <= LOADED * times.min(axis=0)
    return float(((times * calm).sum(axis=0) / calm.sum(axis=0)).sum())


def is_settled(times: Floats) -> bool:
    """True when the fastest times were seen twice: a round that was fast once may be the only calm one."""
    fastest = np.partition(times, 1, axis=0)
    return bool(fastest[1].sum() <= SETTLED * fastest[0].sum())


def _decode(
    runner: Runner, arms: list[Arm], job: Job, number: int, repeats: int, runs_of: dict[str, list[Run]]
) -> None:
    """ABBA: forward, then backward, `repeats` times; rotated by prompt so that no arm always runs first."""
    order = arms[number % len(arms) :] + arms[: number % len(arms)]
    for turn in range(2 * repeats):
        for arm in order if turn % 2 == 0 else order[::-1]:
            runs_of[arm.name].append(runner(arm, job))
