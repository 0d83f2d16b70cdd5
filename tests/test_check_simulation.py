"""What the verdicts of `check` are worth: its timing stage on simulated machines whose truth is known.

A machine is tuned on (the real comparison gives the saved times), then it changes or does not, and the real stage
decides.
`pytest -s -m 'slow or not slow'` prints the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from profiles.gate import GateLimits, PromptTime
from tests.simulated import FIXED, PROMPT, Machine, Noise
from tuner.check_timing import ArmName, TimingCheck, check_timing
from tuner.comparison import Job, Run, compare
from tuner.confirm import PLAIN, STATIC
from tuner.foreign_load import Stretch
from tuner.gate_record import TIMED
from tuner.timing import Budget

RUNS = 500
SPEEDS = {PLAIN: 1.0, STATIC: 1.5}
LIMITS = GateLimits()
REPEATS = 2
"""Of the confirmation that froze the profile: the default."""
REPORT_PROMPTS = 72
VERDICTS = {"pass": "pass", "fail": "regress", "warn": "inconclusive", "skipped": "invalid"}


class ChangingMachine(Machine):
    """After `change` the policy loses a share of its speed, and the machine may get noisier or lose its clocks."""

    def __init__(self, noise: Noise, seed: int) -> None:
        super().__init__(SPEEDS, noise, seed)
        self._loss, self._drop, self._runs = 0.0, range(0), 0

    def change(self, loss: float, noise: Noise, drop: range) -> None:
        """`drop`: runs from here on during which everything takes 1.6 times as long."""
        self._loss, self._noise, self._drop, self._runs = loss, noise, drop, 0
        self._done_ns, self._clock_ns, self._at_ns = np.zeros(1), np.zeros(1), 0.0

    def __call__(self, arm, job):  # type: ignore[no-untyped-def]
        run = super().__call__(arm, job)
        scale = 1 / (1 - self._loss) if arm.name == STATIC else 1.0
        scale *= 1.6 if self._runs in self._drop else 1.0
        self._runs += 1
        return Run(np.asarray(run.rounds_ns) * scale, run.prefill_ns, run.tokens)


def quiet() -> Callable[[], Stretch]:
    return lambda: Stretch(1.0, 2.0, 0.0, 0.0, 2)


def checked(
    seed: int, loss: float = 0.0, noise: Noise | None = None, drop: range = range(0), limits: GateLimits = LIMITS
) -> TimingCheck:
    """One profile frozen and one check of it."""
    machine = ChangingMachine(Noise(), seed)
    jobs = {f"prompt {i}": Job(i, PROMPT, 1) for i in range(REPORT_PROMPTS)}
    found = compare(machine, FIXED, list(jobs.values()), REPEATS, Budget(None))
    times = [
        PromptTime(id=f"prompt {i}", plain_ns=plain, policy_ns=own)
        for i, plain, own in zip(found.samples, found.decode_ns[PLAIN], found.decode_ns[STATIC], strict=True)
    ]
    saved = sorted(times, key=lambda time: -time.plain_ns)[:TIMED]
    machine.change(loss, noise or Noise(), drop)

    def runner(arm: ArmName, prompt: str) -> Run:
        return machine(FIXED[0] if arm == "plain" else FIXED[1], jobs[prompt])

    return check_timing(runner, saved, limits, quiet, Budget(None))


@dataclass
class Figures:
    verdicts: Counter[str] = field(default_factory=Counter)
    blocks: list[int] = field(default_factory=list)

    def share(self, verdict: str) -> float:
        return self.verdicts[verdict] / self.verdicts.total()


def figures(what: str, runs: int, check: Callable[[int], TimingCheck]) -> Figures:
    found = Figures()
    for seed in range(runs):
        result = check(seed)
        found.verdicts[VERDICTS[result.verdict(LIMITS).status]] += 1
        found.blocks.append(result.blocks)
    shares = ", ".join(f"{name} {found.share(name):.1%}" for name, _ in found.verdicts.most_common())
    print(f"\n{what}: {shares} of {runs} runs; median {np.median(found.blocks):.0f} ABBA blocks")
    return found


def test_a_few_runs_keep_their_errors() -> None:
    assert figures("nothing changed", 20, lambda seed: checked(seed)).verdicts["regress"] <= 3
    assert figures("3 % lost", 20, lambda seed: checked(seed, 0.03)).verdicts["regress"] >= 16
    assert figures("10 % lost", 6, lambda seed: checked(seed, 0.1)).verdicts["regress"] == 6
    assert figures("10 % gained", 6, lambda seed: checked(seed, -0.1)).verdicts["pass"] == 6


@pytest.mark.slow
def test_nothing_changed_is_no_alarm() -> None:
    found = figures("nothing changed", RUNS, lambda seed: checked(seed))
    assert found.share("regress") <= 0.05 and found.share("pass") >= 0.9


@pytest.mark.slow
def test_three_percent_are_found() -> None:
    found = figures("3 % lost", RUNS, lambda seed: checked(seed, 0.03))
    assert found.share("regress") >= 0.9 and found.share("pass") <= 0.055


@pytest.mark.slow
@pytest.mark.parametrize("length", [0.3, 1.0, 3.0, 10.0, 30.0])
def test_bursts_of_foreign_load_decide_nothing(length: float) -> None:
    """Everything is three times slower for 40 % of the time. Nothing changed otherwise. Where a burst is longer than
    several prompts, a check may be over before one comes."""
    noise = Noise(load_share=0.4, load_length=length)
    found = figures(f"bursts of {length:g} decodes", RUNS // 5, lambda seed: checked(seed, noise=noise))
    assert found.share("regress") <= 0.05
    assert found.share("invalid") >= (0.9 if length <= 10 else 0.7)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [0.0, 0.03])
@pytest.mark.parametrize("blocks", [16, 96], ids=["for a while", "for good"])
def test_clock_drops_decide_nothing(blocks: int, loss: float) -> None:
    """The machine loses its clocks after the first four prompts and takes 1.6 times as long."""
    first = 2 + 4 * 4
    drop = range(first, first + 4 * blocks)
    what = f"clocks drop for {blocks} blocks, {loss:.0%} lost"
    found = figures(what, RUNS // 5, lambda seed: checked(seed, loss, drop=drop))
    assert found.share("invalid") >= 0.8
    assert found.share("regress" if loss == 0 else "pass") <= 0.05


@pytest.mark.slow
def test_looking_once_in_a_while_costs_no_false_alarms() -> None:
    """Negative control: the same looks at the level of a single one err more often."""
    from tuner import sequential

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequential.Spending, "level", lambda self, fraction: LIMITS.error)
        greedy = figures("every look at the full level", RUNS, lambda seed: checked(seed))
    assert greedy.share("regress") > figures("as planned", RUNS, lambda seed: checked(seed)).share("regress")
