"""The last stage of `check`: is the policy as much faster than plain decoding as it was when it was tuned?

Prompt after prompt is decoded by both, ABBA, and its log ratio of times is compared with the saved one of the same
prompt, so what differs between prompts cancels. After every few prompts a sequential test looks (`tuner.sequential`)
and ends it as soon as a verdict is certain. Prompts come round again while the budget lasts: that steadies their times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from profiles.gate import GateLimits, PromptTime
from profiles.policy import CompiledPolicy
from runtime.decode import plain_policy
from runtime.pair import Pair
from tuner.check_counters import GateJob
from tuner.comparison import Run, aligned, calm_ns
from tuner.findings import Verdict, failed, passed, skipped, warned
from tuner.foreign_load import LOADED_SHARE, Stretch, Tally, lost_share, slow_blocks
from tuner.lossless import require_equal
from tuner.sequential import ChangeTest, Look
from tuner.timing import Budget

ROUNDS_OF_PROMPTS = 3
"""How often every prompt may be decoded: the information that the test is planned for."""
FEWEST_PROMPTS = 8
"""Prompts before the first look: fewer say little about their own spread."""
LOOKS_PER_ROUND = 4
ArmName = Literal["plain", "policy"]


class PairRunner(Protocol):
    """Decodes one prompt of the gate under one of the two arms. `LivePair` does it with the models."""

    def __call__(self, arm: ArmName, prompt: str) -> Run: ...


class LivePair:
    """Runs with the real models. Tokens are those of plain decoding, or no time is believed."""

    def __init__(self, pair: Pair, policy: CompiledPolicy, jobs: dict[str, GateJob]) -> None:
        self._pair, self._jobs = pair, jobs
        self._policies = {"plain": plain_policy(), "policy": policy}
        self._plain: dict[str, list[int]] = {}

    def __call__(self, arm: ArmName, prompt: str) -> Run:
        """Raises LosslessError when the tokens differ from plain decoding by more than a near tie."""
        job = self._jobs[prompt]
        generation = job.decode(self._pair, self._policies[arm])
        plain = self._plain.get(prompt)
        if plain is None:
            plain = self._plain[prompt] = job.decode(self._pair, self._policies["plain"]).tokens
        equal = require_equal(self._pair, job.prompt, plain, generation.tokens, arm, job.sampling)
        return Run(
            rounds_ns=[step.round_ns for step in generation.rounds],
            prefill_ns=generation.target_prefill_ns + generation.draft_prefill_ns,
            tokens=len(generation.tokens),
            near_tie=not equal,
        )


@dataclass(frozen=True)
class TimingCheck:
    """What the comparison came to."""

    look: Look | None
    """The last look; None when too few prompts were decoded for one."""
    speedup_saved: float
    speedup_now: float
    """Time of plain decoding over that of the policy, all compared prompts together."""
    blocks: int
    tally: Tally = field(repr=False)

    def verdict(self, limits: GateLimits) -> Verdict:
        """`fail` when speed was certainly lost, `warn` when nothing is certain yet, `skipped` when foreign load made
        the run invalid."""
        if not self.tally.is_valid:
            return skipped(f"the run is invalid: {self.tally.text()}; run it again on a quiet machine")
        if self.look is None:
            return warned(f"{self.blocks} blocks are too few for a look; give a larger --budget")
        look = self.look
        text = (
            f"speedup {self.speedup_now:.3f} (saved {self.speedup_saved:.3f}) on {look.prompts} prompts, "
            f"{self.blocks} ABBA blocks: {look.change:.3f} [{look.low:.3f}, {look.high:.3f}] times the saved one"
        )
        if look.verdict == "held":
            return passed(f"{text}; a loss of {limits.slower:.0%} is excluded")
        if look.verdict == "lost":
            return failed(text)
        return warned(f"{text}; neither a loss nor its absence is certain")


def check_timing(
    runner: PairRunner,
    saved: Sequence[PromptTime],
    limits: GateLimits,
    watch: Callable[[], Callable[[], Stretch]],
    budget: Budget,
    on_block: Callable[[], None] = lambda: None,
) -> TimingCheck:
    """Decode until a verdict is certain, the budget ends, or every prompt had its turns.

    Raises what `runner` raises.
    """
    test, tally = ChangeTest(limits.slower, limits.error), Tally(limits.disturbed)
    planned = ROUNDS_OF_PROMPTS * len(saved)
    between = max(len(saved) // LOOKS_PER_ROUND, 1)
    blocks: list[_Block] = []
    look: Look | None = None
    if saved:
        runner("policy", saved[0].id), runner("plain", saved[0].id)  # warm-up
    for number in range(planned):
        if budget.expired:
            break
        prompt = saved[number % len(saved)]
        end = watch()
        block = _decoded(runner, prompt, number)
        block.believed = tally.add(end(), block.problems(), block.took_ns / 1e9)
        blocks.append(block)
        on_block()
        due = (number + 1) % between == 0 or number + 1 == planned
        if not due or min(number + 1, len(saved)) < min(FEWEST_PROMPTS, len(saved)):
            continue
        _mark_slow(blocks, tally)
        changes = _changes(saved, blocks)
        if len(changes) < 2:
            continue
        look = test.look(changes, sum(block.believed for block in blocks) / planned)
        if look.verdict != "open" and tally.is_valid:
            break
    now, then = _speedups(saved, blocks)
    return TimingCheck(look, then, now, len(blocks), tally)


@dataclass
class _Block:
    """One prompt, decoded ABBA."""

    saved: PromptTime
    runs: dict[ArmName, list[Run]]
    believed: bool = True

    def problems(self) -> list[str]:
        lost = max(lost_share(aligned(runs)) for runs in self.runs.values())
        found = [f"rounds lost {lost:.0%} of a block's time"] if lost > LOADED_SHARE else []
        return found + ["near tie: other tokens are other work"] * any(r.near_tie for r in self.runs["policy"])

    @property
    def took_ns(self) -> float:
        """Time of all rounds."""
        return float(sum(sum(run.rounds_ns) for runs in self.runs.values() for run in runs))

    @property
    def factor(self) -> float:
        """Time of the block over what the profile expects of it."""
        return self.took_ns / len(self.runs["plain"]) / (self.saved.plain_ns + self.saved.policy_ns)


def _decoded(runner: PairRunner, prompt: PromptTime, number: int) -> _Block:
    """ABBA, begun by the other arm every other time."""
    order: tuple[ArmName, ArmName] = ("plain", "policy") if number % 2 else ("policy", "plain")
    runs: dict[ArmName, list[Run]] = {"plain": [], "policy": []}
    for arm in (*order, *order[::-1]):
        runs[arm].append(runner(arm, prompt.id))
    return _Block(prompt, runs)


def _mark_slow(blocks: list[_Block], tally: Tally) -> None:
    for i in slow_blocks(np.array([block.factor for block in blocks])):
        blocks[i].believed = False
        tally.mark(i, "blocks took far longer than their like: a burst of load, or clocks that dropped")


def _changes(saved: Sequence[PromptTime], blocks: Sequence[_Block]) -> np.ndarray:
    """[prompts] log of the speedup now over the saved one, a prompt each, over all its blocks that are believed."""
    found = []
    for prompt in saved:
        times = _times(prompt, blocks)
        if times is not None:
            found.append(math.log(times[0] / times[1]) - math.log(prompt.plain_ns / prompt.policy_ns))
    return np.array(found)


def _times(prompt: PromptTime, blocks: Sequence[_Block]) -> tuple[float, float] | None:
    """Calm times of plain decoding and of the policy on a prompt; None when none of its blocks is believed."""
    mine = [block for block in blocks if block.believed and block.saved.id == prompt.id]
    if not mine:
        return None
    arms: tuple[ArmName, ArmName] = ("plain", "policy")
    plain, policy = (calm_ns(aligned([run for block in mine for run in block.runs[arm]])) for arm in arms)
    return plain, policy


def _speedups(saved: Sequence[PromptTime], blocks: Sequence[_Block]) -> tuple[float, float]:
    """Speedup now and as saved, over the prompts that were compared; (nan, nan) without any."""
    pairs = [(prompt, times) for prompt in saved if (times := _times(prompt, blocks)) is not None]
    if not pairs:
        return math.nan, math.nan
    now = sum(times[0] for _, times in pairs) / sum(times[1] for _, times in pairs)
    return now, sum(p.plain_ns for p, _ in pairs) / sum(p.policy_ns for p, _ in pairs)
