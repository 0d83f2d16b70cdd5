"""Runs of a comparison with the real models: decode, hold the tokens against the record, then believe the time."""

from __future__ import annotations

from profiles.policy import CompiledPolicy
from runtime.counters import count
from runtime.decode import generate
from runtime.pair import Pair
from tuner.comparison import Arm, Job, Run
from tuner.drafts import Ints
from tuner.lossless import compare_rounds, require_equal
from tuner.replay import Replay, Walk


class LiveRunner:
    """Decodes for `tuner.comparison.compare`, every sample with its own noise, as it was recorded. `samples` are
    those of all jobs that it will be given."""

    def __init__(self, pair: Pair, replay: Replay, samples: Ints) -> None:
        self._pair, self._replay, self._samples = pair, replay, samples
        self._walks: dict[CompiledPolicy, Walk] = {}

    def __call__(self, arm: Arm, job: Job) -> Run:
        """One run. Raises LosslessError when the tokens differ from the recorded plain output by more than a near
        tie."""
        record = self._replay.record
        if arm.policy not in self._walks:
            self._walks[arm.policy] = self._replay.walk(arm.policy, self._samples)
        sampling = record.sampling(job.sample)
        generation = generate(self._pair, job.prompt, arm.policy, max_new_tokens=job.max_new_tokens, sampling=sampling)
        expected = list(record.samples[job.sample].output)
        equal = require_equal(self._pair, job.prompt, expected, generation.tokens, arm.name, sampling)
        return Run(
            rounds_ns=[step.round_ns for step in generation.rounds],
            prefill_ns=generation.target_prefill_ns + generation.draft_prefill_ns,
            tokens=len(generation.tokens),
            near_tie=not equal,
            counters=count(generation, arm.policy),
            replayed=compare_rounds(generation.rounds, arm.policy, self._walks[arm.policy], job.sample, record)
            if equal
            else None,
        )
