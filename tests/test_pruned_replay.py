"""Records with several prunings: replay equals live decoding under each, and every choice has them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from profiles.config import GridConfig, SearchConfig
from profiles.errors import EnvelopeError
from profiles.policy import PolicySource, Tier
from profiles.pruning import NO_PRUNING, Pruning
from profiles.trace_schema import TraceManifest
from runtime.counters import count
from runtime.decode import generate
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.prompts import Prompt
from runtime.records import COLD_ROUNDS
from tests.families import picture, turns
from tests.strategies import MAX_DEPTH, SIGNAL_LOGPROBS, VERIFY_SIZES, WIDTHS, recorded_rules, sources
from tests.test_replay import costs
from tuner.bills import bill, bill_ns
from tuner.calibration import Sample, Split
from tuner.contest import fitted_yardsticks
from tuner.costs import pass_samples
from tuner.lossless import compare_rounds
from tuner.outcomes import Record
from tuner.progress import Progress
from tuner.replay import Replay
from tuner.search import Search
from tuner.timing import Budget
from tuner.trace_store import load_record
from tuner.traces import Recorder
from tuner.warm_start import first_trials
from tuner.yardsticks.base import Arena
from tuner.yardsticks.oracle import oracle
from tuner.yardsticks.single import STATIC

PRUNINGS = (NO_PRUNING, Pruning(kind="uniform", ratio=0.8), Pruning(kind="verifier", ratio=0.5))
GRID = GridConfig.model_validate(
    {
        "depth": MAX_DEPTH,
        "widths": WIDTHS,
        "verify_sizes": VERIFY_SIZES,
        "signal_logprobs": SIGNAL_LOGPROBS,
        "margin": 0.0,
        "sage_paper": {"record": False},
    }
)
QUIET = Progress(Console(quiet=True))


@pytest.fixture(scope="module")
def family(load: Callable[[str], Pair]) -> Pair:
    return load("qwen3_vl")


@pytest.fixture(scope="module")
def prompts(family: Pair) -> list[Prompt]:
    asked = [turns("#what?", images=[picture(i, 90 + 10 * i, 70)]) for i in range(8)]
    return [family.encoder.encode(request) for request in [*asked, turns("and without a picture?")]]


@pytest.fixture(scope="module")
def record(family: Pair, prompts: list[Prompt], tmp_path_factory: pytest.TempPathFactory) -> Record:
    manifest = TraceManifest(
        pair_digest="tiny",
        data_digest="tiny",
        backend="torch",
        dtype="float32",
        depth=MAX_DEPTH,
        rules=recorded_rules(),
        prunings=PRUNINGS,
        signal_logprobs=SIGNAL_LOGPROBS,
        versions={},
    )
    folder = tmp_path_factory.mktemp("pruned")
    recorder, splits = Recorder(family, folder, manifest), get_args(Split)
    for i, prompt in enumerate(prompts):
        sample = Sample(f"s{i}", "image", prompt.modality, splits[i % 3], 14, {}, Path())
        recorder.store.write(*recorder._record(sample, prompt))
    return load_record(folder)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=sources(), pruning=st.sampled_from(PRUNINGS), which=st.integers(0, 8))
def test_live_rounds_are_replayed_rounds(
    family: Pair, prompts: list[Prompt], record: Record, source: PolicySource, pruning: Pruning, which: int
) -> None:
    source = source.model_copy(update={"pruning": pruning})
    policy = compile_policy(source, VERIFY_SIZES, context_max=record.context_max)
    live = generate(family, prompts[which], policy, max_new_tokens=14)
    assert live.tokens == list(record.samples[which].output)
    walk = Replay(record, costs()).walk(policy, np.array([which]))
    found = compare_rounds(live.rounds, policy, walk, which, record)
    # a random model ties often enough that one decision in a thousand may fall the other way
    assert found.equal == found.rounds == len(live.rounds) or (found.first_margin or 0.0) < 1e-5
    if policy.drafts():
        here = record.under(pruning)
        assert [s.draft_context - 1 for s in live.rounds] == here.draft_context[walk.at].tolist()


def test_passes_of_the_draft_are_charged_at_its_own_context(record: Record) -> None:
    policy = [
        compile_policy(PolicySource(tiers=(Tier(depth=1, nodes=1),), pruning=p), VERIFY_SIZES, record.context_max)
        for p in PRUNINGS[:2]
    ]
    replay, one = Replay(record, costs()), np.array([0])
    dropped = record.samples[0].dropped[1]
    assert dropped > 2
    views = [replay.under(p) for p in PRUNINGS[:2]]
    saved = views[0].catch_up_ns[1] - views[1].catch_up_ns[1]
    first = record.sample_of == 0
    np.testing.assert_allclose(saved[first], 1e3 * 0.01 * dropped)
    assert replay.walk(policy[1], one).time_ns[0] != replay.walk(policy[0], one).time_ns[0]


@pytest.mark.parametrize("pruning", PRUNINGS, ids=Pruning.stem)
def test_a_bill_is_the_time_of_its_walk(record: Record, pruning: Pruning) -> None:
    source = PolicySource(tiers=(Tier(depth=3, width=2, nodes=5),), pruning=pruning)
    policy = compile_policy(source, VERIFY_SIZES, record.context_max)
    replay, everyone = Replay(record, costs()), np.arange(len(record.samples))
    owed = bill("shipped", replay, policy, everyone)
    assert bill_ns(owed, costs()) == pytest.approx(float(replay.walk(policy, everyone).time_ns.sum()), rel=1e-4)


def test_measured_passes_are_booked_where_the_draft_was(family: Pair, prompts: list[Prompt]) -> None:
    policy = compile_policy(PolicySource(tiers=(Tier(depth=2, nodes=2),), pruning=PRUNINGS[1]), VERIFY_SIZES, 999)
    generation = generate(family, prompts[0], policy, max_new_tokens=14)
    rounds = generation.rounds
    counted = {(p.kind, p.n): p.context for p in count(generation, policy).passes}
    samples = pass_samples(rounds[COLD_ROUNDS:], VERIFY_SIZES)
    assert counted == {key: sum(context for context, _ in seen) for key, seen in samples.items()}
    booked = pass_samples(rounds, VERIFY_SIZES)
    drafted = {context for (kind, _), seen in booked.items() if kind != "verify" for context, _ in seen}
    verified = {context for (kind, _), seen in booked.items() if kind == "verify" for context, _ in seen}
    # every round has both: the draft's contexts are the target's, moved
    dropped = rounds[0].context - rounds[0].draft_context
    assert dropped > 2 and drafted == {context - dropped for context in verified}


def test_what_was_not_recorded_is_refused(record: Record) -> None:
    other = Pruning(kind="uniform", ratio=0.3)
    policy = compile_policy(PolicySource(tiers=(Tier(depth=1, nodes=1),), pruning=other), VERIFY_SIZES, 999)
    with pytest.raises(EnvelopeError, match=r"pruning uniform0.3 is outside the record"):
        Replay(record, costs()).walk(policy, np.array([0]))


def test_yardsticks_and_the_oracle_have_the_same_choice(record: Record) -> None:
    arena, everyone = Arena(Replay(record, costs()), GRID), np.arange(len(record.samples))
    static = {found.name: found for found in fitted_yardsticks(arena, QUIET)}[STATIC]
    time_ns = [
        float(fit.walk(arena.tune).time_ns.sum())
        for fit in ({c.name: c for c in fitted_yardsticks(arena.under(p), QUIET)}[STATIC] for p in PRUNINGS)
    ]
    assert float(static.walk(arena.tune).time_ns.sum()) == min(time_ns)
    bound = oracle(arena).walk(everyone).time_by_sample(everyone)
    for pruning in PRUNINGS:
        here = oracle(arena.under(pruning)).walk(everyone).time_by_sample(everyone)
        assert (bound <= here + 1e-6).all()
    assert (bound <= static.walk(everyone).time_by_sample(everyone) + 1e-6).all()


def test_the_search_chooses_a_pruning_with_everything_else(record: Record, tmp_path: Path) -> None:
    replay = Replay(record, costs())
    settings = SearchConfig(trials=60, top_ks=(2, SIGNAL_LOGPROBS))
    search = Search(tmp_path / "study.journal", GRID, settings, replay, {})
    first = first_trials(Arena(replay, GRID), search.space, settings)
    assert {trial["pruning"] for trial in first} == {"none", "uniform0.8", "verifier0.5"}
    search.run(first, Budget(None))
    found = search.candidates(40)
    assert len({candidate.source.pruning for candidate in found}) > 1
    for candidate in found:
        policy = compile_policy(candidate.source, VERIFY_SIZES, record.context_max)
        assert replay.speedup(policy, record.split_samples("tune")) == pytest.approx(candidate.speedup_tune)
