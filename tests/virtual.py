"""A machine whose every pass takes what it is told to take, on a clock of its own: what `profile`, `tune` and `check`
do on it is the same on every real machine, however busy."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from profiles.config import TuneConfig
from profiles.policy_profile import PolicyProfile
from profiles.provenance import Fingerprint
from runtime.backends.base import Rows, Session
from runtime.pair import Pair
from runtime.prompts import Prompt, PromptEncoder, Request
from tests.fakes import FakeModel, FakeTokenizer, fake_pair
from tuner.calibration import Sample
from tuner.check import Checked, OpenBench, check, live_bench
from tuner.foreign_load import Stretch
from tuner.gate_record import gate_samples
from tuner.machine import Device, fingerprint
from tuner.profiling import profile
from tuner.progress import Progress
from tuner.run_folder import RunFolder
from tuner.timing import Budget
from tuner.tuning import Tuned, tune

QUIET = Progress(Console(file=io.StringIO()))
DEVICE = Device("cpu", "cpu", "Virtual CPU", "x86_64")
HOST_NS = 3_000
"""What passes between two looks at the clock."""
JITTER = 0.02
Cost = Callable[[int, int], float]
"""(tokens in a pass, context) to nanoseconds."""


class Clock:
    """Stands still unless it is moved."""

    def __init__(self) -> None:
        self._now_ns = 0
        self._rng = np.random.default_rng(0)

    def read(self) -> int:
        self._now_ns += HOST_NS
        return self._now_ns

    def move(self, time_ns: float) -> None:
        self._now_ns += int(time_ns * np.exp(JITTER * self._rng.standard_normal()))

    @contextmanager
    def running(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time, "perf_counter_ns", self.read)
            yield


class TimedModel(FakeModel):
    """A fake model whose passes move a clock."""

    def __init__(self, seed: int, noise: float, clock: Clock, cost: Cost) -> None:
        super().__init__(seed, noise)
        self._clock, self.cost = clock, cost

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        session, rows = super().open(prompt, capacity, positions)
        inner = session._run

        def run(tokens: np.ndarray, at: np.ndarray, visible: np.ndarray) -> Rows:
            self._clock.move(self.cost(len(tokens), session.length))
            return inner(tokens, at, visible)

        session._run = run  # type: ignore[method-assign]
        return session, rows


class LetterEncoder(PromptEncoder):
    """A prompt is the letters of its last message."""

    def __init__(self) -> None:
        super().__init__(FakeTokenizer(), None)

    def encode(self, request: Request) -> Prompt:
        ids = self.tokenizer(request.plain_messages()[-1]["content"])["input_ids"]
        return Prompt(np.array(ids, dtype=np.int64), {}, "text")


def target_cost(n: int, context: int) -> float:
    return 1e6 + 3e4 * n + 500 * context


def draft_cost(n: int, context: int) -> float:
    return 1.2e5 + 5e3 * n + 50 * context


class Machine:
    """A fake pair on a clock. `target_cost` and `draft_cost` may be changed: another driver, another device."""

    def __init__(self, folder: Path, target: Cost = target_cost, draft: Cost = draft_cost) -> None:
        self.clock = Clock()
        self.target = TimedModel(100, 0.0, self.clock, target)
        self.draft = TimedModel(101, 0.6, self.clock, draft)
        self.pair: Pair = replace(fake_pair(), target=self.target, draft=self.draft, encoder=LetterEncoder())
        self.folder = folder
        prompts = folder / "prompts.jsonl"
        if not prompts.exists():
            letters = np.random.default_rng(3).choice(list("abcdefghijklmnop"), size=(40, 8))
            lines = [{"id": f"p{i}", "prompt": "".join(row), "max_new_tokens": 30} for i, row in enumerate(letters)]
            prompts.write_text("\n".join(map(json.dumps, lines)))
        self.config = TuneConfig.model_validate(
            {
                "model": "tiny-llava-ov",
                "gpu": "cpu",
                "threads": 1,
                "data": {"path": str(prompts), "allow_synthetic": True},
                "grid": {
                    "depth": 4,
                    "widths": [1, 2],
                    "verify_sizes": [1, 2, 3, 4, 5, 6, 8],
                    "contexts": 2,
                    "signal_logprobs": 8,
                    "margin": 0,
                    "sage_paper": {"record": False},
                },
                "timing": {"samples": 10, "warmup_max": 5},
                "search": {"trials": 12, "top_ks": [5], "history": False, "max_bins": 3},
                "confirm": {"repeats": 1, "finalists": 1},
            }
        )

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint(self.pair.target, DEVICE, 1)

    def tuned(self) -> Tuned:
        """`profile` and `tune` on this machine."""
        run = RunFolder(self.folder / "run")
        with self.clock.running():
            profile(self.pair, self.config, DEVICE, run, Budget(None), QUIET)
            return tune(self.pair, self.config, run, Budget(None), QUIET, "test")

    def samples(self, frozen: PolicyProfile) -> list[Sample] | None:
        return None if frozen.gate is None else gate_samples(frozen.gate, self.pair.spec, None)

    def check(self, frozen: PolicyProfile, watch: Callable[[], Callable[[], Stretch]] | None = None) -> Checked:
        """`check` on this machine, which is quiet unless a watch says otherwise."""
        bench: OpenBench = live_bench(frozen, self.pair, watch or calm)
        with self.clock.running():
            return check(
                frozen,
                self.pair,
                self.fingerprint,
                frozen.gate,
                self.samples(frozen),
                bench,
                Budget(None),
                QUIET,
            )


def calm() -> Callable[[], Stretch]:
    return lambda: Stretch(1.0, 1.0, 0.0, 0.0, 1)
