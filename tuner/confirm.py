"""Confirmation: finalists, yardsticks and plain decoding run live, interleaved, and the winner must be certain.

Every arm decodes the same prompts in ABBA order, so drift of the machine falls on all arms alike. Tokens are
compared before any time is believed. Repeats steady a prompt's time; only prompts narrow an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from profiles.measurement import Interval
from profiles.policy import CompiledPolicy, PolicySource
from profiles.sampling import Sampling
from runtime.decode import generate
from runtime.pair import Pair
from runtime.prompts import Prompt
from tuner.lossless import RoundComparison, compare_rounds, require_equal
from tuner.replay import Replay, Walk
from tuner.statistics import ratio_interval
from tuner.timing import Budget


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


@dataclass
class Comparison:
    """Live decode times of all arms on the prompts that were finished."""

    arms: list[Arm]
    times_ns: dict[str, list[float]]
    """Arm to decode time per prompt (median over repeats), aligned with `samples`."""
    request_ns: dict[str, list[float]]
    """The same with the prefills of target and draft."""
    samples: list[int] = field(default_factory=list)
    tokens: int = 0
    """Tokens compared with plain decoding, over all arms and runs."""
    near_ties: int = 0
    rounds: list[RoundComparison] = field(default_factory=list)
    acceptance: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Arm to (emitted tokens, rounds)."""

    def speedup(self, name: str, over: str, resamples: int) -> Interval:
        """Measured time of `over` divided by that of `name`."""
        return _ratio(self.times_ns, name, over, resamples)

    def request_speedup(self, name: str, over: str, resamples: int) -> Interval:
        """The same for whole requests, prefills included."""
        return _ratio(self.request_ns, name, over, resamples)

    @property
    def rounds_equal_share(self) -> float:
        total = sum(c.rounds for c in self.rounds)
        return sum(c.equal for c in self.rounds) / total if total else 1.0


def compare(
    pair: Pair,
    arms: list[Arm],
    jobs: list[Job],
    replay: Replay,
    repeats: int,
    budget: Budget,
    on_prompt: Callable[[], None] = lambda: None,
) -> Comparison:
    """Run all arms on all prompts. A prompt is counted only when every arm finished it.

    Raises LosslessError when an arm's tokens differ from the recorded plain output by more than a near tie.
    """
    result = Comparison(arms, {arm.name: [] for arm in arms}, {arm.name: [] for arm in arms})
    samples = np.array([job.sample for job in jobs], dtype=np.int64)
    walks: dict[str, Walk] = {arm.name: replay.walk(arm.policy, samples) for arm in arms}
    _warm(pair, arms, jobs[0], replay.record.sampling(jobs[0].sample))
    for number, job in enumerate(jobs):
        if budget.expired and number >= 3:
            break
        expected = list(replay.record.samples[job.sample].output)
        sampling = replay.record.sampling(job.sample)
        times: dict[str, list[int]] = {arm.name: [] for arm in arms}
        requests: dict[str, list[int]] = {arm.name: [] for arm in arms}
        tied = False
        for repeat in range(2 * repeats):
            # ABBA: forward, then backward; rotated so that no arm always runs first
            order = arms[number % len(arms) :] + arms[: number % len(arms)]
            for arm in order if repeat % 2 == 0 else order[::-1]:
                generation = generate(
                    pair, job.prompt, arm.policy, max_new_tokens=job.max_new_tokens, sampling=sampling
                )
                times[arm.name].append(generation.decode_ns)
                requests[arm.name].append(generation.request_ns)
                result.tokens += len(generation.tokens)
                if not require_equal(pair, job.prompt, expected, generation.tokens, arm.name, sampling):
                    result.near_ties += 1
                    tied = True
                elif repeat == 0:
                    result.rounds.append(
                        compare_rounds(generation.rounds, arm.policy, walks[arm.name], job.sample, replay.record)
                    )
                    emitted, rounds = result.acceptance.get(arm.name, (0, 0))
                    result.acceptance[arm.name] = (
                        emitted + len(generation.tokens) - 1,
                        rounds + len(generation.rounds),
                    )
        on_prompt()
        if tied:
            continue  # other tokens are another amount of work: the prompt says nothing about speed
        result.samples.append(job.sample)
        for arm in arms:
            result.times_ns[arm.name].append(float(np.median(times[arm.name])))
            result.request_ns[arm.name].append(float(np.median(requests[arm.name])))
    return result


def winner(
    comparison: Comparison, static: str, adaptive: list[str], resamples: int
) -> tuple[str, str, Interval | None]:
    """Which arm ships, why, and the gain of the best adaptive arm over the best static tier.

    Rule: the adaptive arm with the highest lower bound must beat the static tier beyond noise; what is left
    must beat plain decoding beyond noise; else the answer is `plain`.
    """
    gain: Interval | None = None
    choice, reason = static, "no adaptive policy was proposed"
    if adaptive:
        gains = {name: comparison.speedup(name, static, resamples) for name in adaptive}
        best = max(gains, key=lambda name: gains[name].low)
        gain = gains[best]
        if gain.low > 1.0:
            choice = best
            reason = f"the adaptive policy beats the best static tier by a factor of {gain.text(3)}"
        else:
            reason = f"the gain over the best static tier is not certain ({gain.text(3)}), so the static tier ships"
    over_plain = comparison.speedup(choice, "plain", resamples)
    if over_plain.low <= 1.0:
        return "plain", f"speculation does not pay here: {over_plain.text()} times plain decoding", gain
    return choice, reason, gain


def _ratio(times_ns: dict[str, list[float]], name: str, over: str, resamples: int) -> Interval:
    return ratio_interval(np.array(times_ns[over]), np.array(times_ns[name]), "measured", resamples)


def _warm(pair: Pair, arms: list[Arm], job: Job, sampling: Sampling) -> None:
    for arm in arms:
        generate(pair, job.prompt, arm.policy, max_new_tokens=job.max_new_tokens, sampling=sampling)
