"""Replay equals live decoding, round for round, on a fake pair: any policy, any prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import EnvelopeError
from profiles.measurement import CostTable, HostTime, PassTime
from profiles.policy import PolicySource, Tier
from profiles.sampling import GREEDY, Sampling
from profiles.trace_schema import SampleRecord, TraceManifest
from runtime.decode import generate, plain_policy
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.prompts import Prompt
from tests.fakes import fake_pair, fake_prompt
from tests.records import SAMPLED
from tests.strategies import MAX_DEPTH, SIGNAL_LOGPROBS, VERIFY_SIZES, WIDTHS, recorded_rules, sources
from tuner.comparison import Arm, Job
from tuner.live import LiveRunner
from tuner.lossless import compare_rounds
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.trace_store import load_record
from tuner.traces import Recorder

PAIR = fake_pair()
PROMPTS = [(fake_prompt(i), 12 + 5 * i) for i in range(6)]
MANIFEST = TraceManifest(
    pair_digest="fake",
    data_digest="fake",
    backend="fake",
    dtype="float32",
    depth=MAX_DEPTH,
    rules=recorded_rules(),
    signal_logprobs=SIGNAL_LOGPROBS,
    versions={},
)


def recorded(
    folder: Path, sampling: Sampling, pair: Pair = PAIR, prompts: Sequence[tuple[Prompt, int]] = tuple(PROMPTS)
) -> Record:
    recorder = Recorder(pair, folder, MANIFEST.model_copy(update={"sampling": sampling}))
    for i, (prompt, limit) in enumerate(prompts):
        mine = sampling.for_sample(f"s{i}")
        generation = generate(pair, prompt, plain_policy(), max_new_tokens=limit, sampling=mine)
        sample = SampleRecord(
            id=f"s{i}",
            kind="text",
            modality="text",
            split="tune",
            prompt_tokens=len(prompt),
            output=tuple(generation.tokens),
            finished="eos" if generation.finished == "eos" else "length",
        )
        recorder.store.write(sample, recorder._columns(prompt, generation, mine)[1])
    return load_record(folder)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return recorded(tmp_path_factory.mktemp("trace"), GREEDY)


@pytest.fixture(scope="module")
def sampled_record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return recorded(tmp_path_factory.mktemp("sampled"), SAMPLED)


BASE_US = {
    "plain": lambda n: 9.0,
    "verify": lambda n: 10.0 + 0.2 * n,
    "catch_up": lambda n: 1.5 + 0.1 * n,
    "frontier": lambda n: 1.0 + 0.1 * n,
}
SIZES = {"plain": (1,), "verify": VERIFY_SIZES, "catch_up": (1, 2), "frontier": WIDTHS}


def costs(contexts: tuple[int, ...] = (1, 200)) -> CostTable:
    """Planted times in microseconds, all rising by 0.01 per token of context; two cold rounds."""
    return CostTable(
        mark="measured",
        threads=1,
        passes=tuple(
            PassTime(
                kind=kind,  # type: ignore[arg-type]
                n=n,
                context=context,
                time_ns=1e3 * (base(n) + 0.01 * context),
                p10_ns=1e3,
                p90_ns=1e5,
                samples=5,
            )
            for kind, base in BASE_US.items()
            for n in SIZES[kind]
            for context in contexts
        ),
        host=HostTime(
            plain_ns=100, round_ns=200, level_ns=50, plain_cold_ns=(300, 10), draft_cold_ns=(700, 90), rounds=10
        ),
    )


@settings(max_examples=60)
@given(sources(), st.integers(0, len(PROMPTS) - 1))
def test_live_rounds_are_replayed_rounds(record: Record, source: PolicySource, which: int) -> None:
    check_live_is_replayed(record, source, which)


@settings(max_examples=60)
@given(sources(), st.integers(0, len(PROMPTS) - 1))
def test_sampled_rounds_are_replayed_rounds(sampled_record: Record, source: PolicySource, which: int) -> None:
    check_live_is_replayed(sampled_record, source, which)


def check_live_is_replayed(record: Record, source: PolicySource, which: int) -> None:
    policy = compile_policy(source, VERIFY_SIZES, context_max=record.context_max)
    prompt, limit = PROMPTS[which]
    sample = next(i for i, s in enumerate(record.samples) if s.id == f"s{which}")
    live = generate(PAIR, prompt, policy, max_new_tokens=limit, sampling=record.sampling(sample))
    assert live.tokens == list(record.samples[sample].output), "speculation changed the output"
    walk = Replay(record, costs()).walk(policy, np.array([sample]))
    comparison = compare_rounds(live.rounds, policy, walk, sample, record)
    assert comparison.equal == comparison.rounds == len(live.rounds)
    for step in live.rounds:
        assert step.levels <= max(policy.max_depth, 1) and step.nodes <= min(step.tier.nodes, policy.max_nodes)


@given(sources())
def test_walking_together_is_walking_alone(record: Record, source: PolicySource) -> None:
    policy = compile_policy(source, VERIFY_SIZES, context_max=record.context_max)
    replay = Replay(record, costs())
    everyone = np.arange(len(record.samples))
    together = replay.walk(policy, everyone)
    for i in everyone:
        alone = replay.walk(policy, np.array([i]))
        mine = together.samples == i
        assert np.array_equal(together.at[mine], alone.at)
        assert np.allclose(together.time_ns[mine], alone.time_ns)
        assert (alone.accepted + 1).sum() >= record.end[i] - record.start[i]


def test_time_is_the_sum_of_the_passes_made(record: Record) -> None:
    tier = Tier(depth=3, width=2, nodes=5)
    policy = compile_policy(PolicySource(tiers=(tier,)), VERIFY_SIZES, context_max=record.context_max)
    walk = Replay(record, costs()).walk(policy, np.array([0]))
    unseen = 1
    for i, at in enumerate(walk.at):
        slope = 0.01 * record.context[at]
        draft = [1.5 + 0.1 * unseen + slope, 1.2 + slope, 1.2 + slope]
        verify = 10.0 + 0.2 * 6 + slope
        host = 0.2 + 0.05 * 3 + (0.7, 0.09, 0.0)[min(i, 2)]
        assert walk.time_ns[i] == pytest.approx(1e3 * (sum(draft) + verify + host))
        unseen = int(record.outcome(tier).unseen[at])


def test_plain_policy_replays_to_a_speedup_of_one(record: Record) -> None:
    policy, replay = plain_policy(), Replay(record, costs())
    assert replay.speedup(policy, np.arange(3)) == pytest.approx(1.0)
    steps = np.arange(record.start[0], record.end[0])
    expected = sum(9.0 + 0.01 * record.context[at] + 0.1 for at in steps) + 0.3 + 0.01
    assert replay.plain_time_ns(np.array([0]))[0] == pytest.approx(1e3 * expected)


@pytest.mark.parametrize("tier", [Tier(depth=6, nodes=6), Tier(depth=2, width=4, nodes=4)])
def test_what_was_not_recorded_is_refused(record: Record, tier: Tier) -> None:
    policy = compile_policy(PolicySource(tiers=(tier,)), VERIFY_SIZES, context_max=record.context_max)
    with pytest.raises(EnvelopeError, match="outside the record"):
        Replay(record, costs()).walk(policy, np.array([0]))


def test_contexts_that_were_not_timed_are_refused(record: Record) -> None:
    with pytest.raises(EnvelopeError, match="leave the measured"):
        Replay(record, costs(contexts=(8, 10)))


def test_a_planted_bug_in_replay_is_found(record: Record) -> None:
    """A node budget that is off by one must not survive the comparison with live decoding."""
    policy = compile_policy(PolicySource(tiers=(Tier(depth=4, width=2, nodes=5),)), VERIFY_SIZES, record.context_max)
    wrong = compile_policy(PolicySource(tiers=(Tier(depth=4, width=2, nodes=4),)), VERIFY_SIZES, record.context_max)
    replay = Replay(record, costs())
    found = 0
    for i, (prompt, limit) in enumerate(PROMPTS):
        live = generate(PAIR, prompt, policy, max_new_tokens=limit)
        sample = next(k for k, s in enumerate(record.samples) if s.id == f"s{i}")
        comparison = compare_rounds(live.rounds, policy, replay.walk(wrong, np.array([sample])), sample, record)
        found += comparison.equal < comparison.rounds
    assert found == len(PROMPTS)


def test_live_runs_decode_as_was_recorded(sampled_record: Record) -> None:
    """A comparison on a sampled record: every prompt has the noise of its own sample."""
    source = PolicySource(tiers=(Tier(depth=4, width=3, nodes=7),))
    arm = Arm("tree", source, compile_policy(source, VERIFY_SIZES, sampled_record.context_max))
    everyone = np.arange(len(PROMPTS))
    runner = LiveRunner(PAIR, Replay(sampled_record, costs()), everyone)
    for i in everyone.tolist():
        prompt, limit = PROMPTS[int(sampled_record.samples[i].id[1:])]
        run = runner(arm, Job(i, prompt, limit))
        assert run.tokens == len(sampled_record.samples[i].output) and not run.near_tie
        assert run.replayed is not None and run.replayed.equal == run.replayed.rounds == len(run.rounds_ns)


def test_a_record_under_another_noise_is_found(sampled_record: Record) -> None:
    """Replay of a sampled record must not agree with rounds under another lambda: the trees differ."""
    policy = compile_policy(PolicySource(tiers=(Tier(depth=4, width=3, nodes=7),)), VERIFY_SIZES, 10_000)
    replay, found = Replay(sampled_record, costs()), 0
    for i, (prompt, limit) in enumerate(PROMPTS):
        sample = next(k for k, s in enumerate(sampled_record.samples) if s.id == f"s{i}")
        other = sampled_record.sampling(sample).model_copy(update={"draft_lambda": 0.2})
        live = generate(PAIR, prompt, policy, max_new_tokens=limit, sampling=other)
        assert live.tokens == list(sampled_record.samples[sample].output), "lambda is the draft's affair alone"
        walk = replay.walk(policy, np.array([sample]))
        comparison = compare_rounds(live.rounds, policy, walk, sample, sampled_record)
        found += comparison.equal < comparison.rounds
    assert found
