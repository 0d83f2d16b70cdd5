"""verify-applied: counters of engines are read by their own names, and a wrong policy is found by its counters."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exports.lowering import truncated
from profiles.errors import BadInput
from profiles.lowering import Abilities, fixed
from profiles.policy import PolicySource, SignalSpec, Tier
from tests.records import record_of
from tests.strategies import SIGNAL_LOGPROBS
from tests.test_replay import costs
from tests.test_yardsticks import GRID, RULES
from tuner.applied import Expected, Mean, by_lowered, by_walk, compare, mean_of, positions_of, unreplayed
from tuner.calibration import Split
from tuner.engine_metrics import EngineCounters, read_counters
from tuner.lowering_search import LoweringSearch, acceptance_interval, lowering_numbers
from tuner.replay import Replay, Walk
from tuner.yardsticks.base import Arena

VLLM = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 600.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 400.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 4000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 1800.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 800.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 600.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 400.0
vllm:num_requests_running{engine="0"} 1.0
"""
SGLANG = """sglang:spec_accept_length{tp_rank="0"} 2.8
sglang:spec_accept_length{tp_rank="1"} 2.8
sglang:spec_verify_calls_total{tp_rank="0"} 1000
sglang:spec_num_steps{tp_rank="0"} 5
sglang:spec_num_draft_tokens{tp_rank="0"} 8
"""
TRTLLM = """trtllm_spec_decode_num_draft_tokens_total 4000
trtllm_spec_decode_num_accepted_tokens_total 1800
trtllm_spec_decode_acceptance_length 2.8
"""
OURS = {"rounds": 10, "acceptance_length": 3.0, "tier_rounds": {"4,1,4": 7, "off": 3}, "digest": "ab" * 32}


def counters(tmp_path: Path, text: str) -> EngineCounters:
    path = tmp_path / "metrics"
    path.write_text(text)
    return read_counters(path)


@pytest.mark.parametrize(("text", "engine"), [(VLLM, "vllm"), (SGLANG, "sglang"), (TRTLLM, "trtllm")])
def test_prometheus(tmp_path: Path, text: str, engine: str) -> None:
    found = counters(tmp_path, text)
    assert found.engine == engine and found.rounds == pytest.approx(1000)
    assert found.acceptance_length == pytest.approx(2.8)
    if engine == "vllm":
        assert found.positions == [800.0, 600.0, 400.0] and found.draft_tokens == 4000
    if engine == "sglang":
        assert (found.steps, found.tree_tokens) == (5, 8)


@pytest.mark.parametrize(
    ("document", "engine", "rounds", "length"),
    [
        (OURS, "sage_tune", 10, 3.0),
        (
            {"metrics": {"speculative_decoding": {"num_spec_steps": 10, "num_accepted_draft_tokens": 18}}},
            *("vllm", 10, 2.8),
        ),
        (
            {
                "spec_decode_num_drafts": 10,
                "spec_decode_draft_tokens": 40,
                "spec_decode_accepted_tokens": 18,
                "spec_decode_per_position_acceptance_rates": [0.9, 0.5],
            },
            *("vllm", 10, 2.8),
        ),
        (
            [
                {"iter": 1, "specDecodingStats": {"numRequestsWithDraftTokens": 4, "numAcceptedTokens": 8}},
                {"iter": 2, "specDecodingStats": {"numRequestsWithDraftTokens": 6, "numAcceptedTokens": 10}},
            ],
            *("trtllm", 10, 2.8),
        ),
        ({"engine": "openvino", "num_drafts": 10, "num_accepted_tokens": 18}, "openvino", 10, 2.8),
        ({"meta_info": {"completion_tokens": 28, "spec_verify_ct": 10}}, "sglang", 10, 2.8),
    ],
)
def test_json_of_every_engine(tmp_path: Path, document: object, engine: str, rounds: int, length: float) -> None:
    found = counters(tmp_path, json.dumps(document))
    assert (found.engine, found.rounds) == (engine, rounds)
    assert found.acceptance_length == pytest.approx(length)
    twice = counters(tmp_path, f"INFO start\n{json.dumps(document)}\nINFO more\n{json.dumps(document)}\n")
    assert twice.rounds == 2 * rounds and twice.acceptance_length == pytest.approx(length)


def test_files_that_say_nothing(tmp_path: Path) -> None:
    for text in ("", "hello", "{}", "vllm:num_requests_running 3\n", "sglang:spec_accept nan"):
        with pytest.raises(BadInput, match="no counters"):
            counters(tmp_path, text)
    with pytest.raises(BadInput, match="got 'tgi'"):
        counters(tmp_path, '{"engine": "tgi", "num_drafts": 3}')
    with pytest.raises(BadInput, match="no such file"):
        read_counters(tmp_path / "nothing")
    with pytest.raises(BadInput, match="of vllm and of trtllm"):
        counters(tmp_path, VLLM + TRTLLM)


# our own runtime


@cache
def arena() -> Arena:
    """Enough report prompts for intervals that say something."""
    splits: list[Split] = ["tune"] * 2 + ["report"] * 30
    return Arena(Replay(record_of(Path(mkdtemp()), RULES, splits, range(len(splits))), costs()), GRID)


BINS = PolicySource(
    name="two bins",
    signal=SignalSpec(top_k=SIGNAL_LOGPROBS),
    edges=(0.3,),
    tiers=(Tier(depth=4, width=1, nodes=4), Tier(depth=2, width=2, nodes=5)),
)


def replayed(source: PolicySource) -> tuple[Walk, Expected]:
    here = arena()
    policy = here.compiled(source)
    report = here.replay.record.split_samples("report")
    walk = here.replay.walk(policy, report)
    return walk, by_walk(policy, walk, acceptance_interval(here, walk, report), "test", "policy", "ab" * 32)


def live_of(source: PolicySource, times: int = 40) -> EngineCounters:
    """Counters as the runtime would give them: another policy's or the same policy's rounds, many times over."""
    walk, _ = replayed(source)
    policy = arena().compiled(source)
    labels = [policy.tiers[choice].label() for choice in walk.choice.tolist()]
    return EngineCounters(
        "sage_tune",
        rounds=times * walk.rounds,
        accepted_tokens=times * float(walk.tokens - walk.rounds),
        positions=[times * float((walk.accepted >= level).sum()) for level in range(1, int(walk.accepted.max()) + 1)],
        tier_rounds={label: times * labels.count(label) for label in set(labels)},
        digests=["ab" * 32],
    )


def test_the_policy_itself_is_applied() -> None:
    _, expected = replayed(BINS)
    found = compare(expected, live_of(BINS))
    assert found.verdict == "applied"
    assert {check.name for check in found.checks} == {
        *("digest", "tiers", "tier shares", "acceptance length", "acceptance by level")
    }


@pytest.mark.parametrize("fault", ["swapped", "strange tier", "digest", "acceptance", "deeper", "by level"])
def test_planted_faults_are_found(fault: str) -> None:
    _, expected = replayed(BINS)
    seen = live_of(BINS)
    name = "tier shares"
    if fault == "swapped":
        first, second = seen.tier_rounds
        seen.tier_rounds = {first: seen.tier_rounds[second], second: seen.tier_rounds[first]}
    elif fault == "strange tier":
        seen.tier_rounds["8,4,31"] = 1
        name = "tiers"
    elif fault == "digest":
        seen.digests.append("cd" * 32)
        name = "digest"
    elif fault == "acceptance":
        seen.accepted_tokens, name = 0.1 * float(seen.rounds or 0), "acceptance length"
    elif fault == "deeper":
        seen.positions = [*seen.positions, *[0.0] * 4, 3.0]
        name = "depth"
    else:
        seen.positions = [float(seen.rounds or 0), *seen.positions[1:]]
        name = "acceptance by level"
    loaded = compare(expected, seen)
    if name.startswith("acceptance"):
        # the profile is loaded, so other requests explain it as well
        assert loaded.verdict == "inconclusive"
        seen.digests = []
    found = compare(expected, seen)
    assert found.verdict == "not this policy"
    assert name in [check.name for check in found.checks if check.finding == "contradicts"]


def test_few_rounds_are_inconclusive() -> None:
    _, expected = replayed(BINS)
    seen = EngineCounters("sage_tune", rounds=2, accepted_tokens=3.0)
    assert compare(replace(expected, digest=None), seen).verdict == "inconclusive"


@settings(deadline=None, max_examples=60)
@given(share=st.floats(0.05, 0.95), rounds=st.integers(200, 5000), seed=st.integers(0, 99))
def test_intervals_hold_what_they_promise(share: float, rounds: int, seed: int) -> None:
    """Live rounds of the same coin fall within 4 half widths; a coin of another half does not stay within one."""
    rng = np.random.default_rng(seed)
    sample = rng.random(1000) < share
    mean = Mean(float(sample.mean()), 1.96 * float(sample.std()) / 1000**0.5, 1000)
    low, high = mean.within(rounds)
    live = float((rng.random(rounds) < share).mean())
    middle, width = (low + high) / 2, (high - low) / 2
    assert abs(live - middle) <= 4 * width + 1e-9
    assert mean.within(rounds, 5)[1] >= high >= mean.value


# other engines


def exported() -> Expected:
    here = arena()
    chain = Abilities(room="chain")
    source = PolicySource(tiers=(Tier(depth=4, width=1, nodes=4),))
    search = LoweringSearch(here, chain, truncated(source, chain))
    numbers = lowering_numbers(search, here.compiled(source), search.truncated, "")
    mean = mean_of(numbers.lowered.acceptance_length, numbers.lowered.rounds)
    return by_lowered(search.truncated, mean, positions_of(numbers.positions, numbers.lowered.rounds), "test")


def vllm_like(depth: int, drafted: int, accepted: float, rounds: int = 4000) -> EngineCounters:
    return EngineCounters("vllm", rounds, float(rounds * drafted), accepted * rounds)


def test_an_engine_that_runs_the_export() -> None:
    expected = exported()
    assert expected.acceptance is not None
    good = vllm_like(4, 4, expected.acceptance.value - 1)
    assert compare(expected, good).verdict == "applied"
    assert compare(expected, vllm_like(4, 7, expected.acceptance.value - 1)).verdict == "not this policy"
    assert compare(expected, vllm_like(4, 2, expected.acceptance.value - 1)).verdict == "not this policy"
    assert compare(expected, vllm_like(4, 4, 0.05)).verdict == "not this policy"


def test_configured_gauges_of_sglang() -> None:
    expected = by_lowered(fixed(Tier(depth=5, width=2, nodes=7), Tier(depth=0, nodes=0)), None, (), "test")
    seen = EngineCounters("sglang", steps=5, tree_tokens=8)
    assert compare(expected, seen).verdict == "applied"
    assert compare(expected, replace(seen, tree_tokens=7)).verdict == "not this policy"
    assert compare(expected, replace(seen, steps=3)).verdict == "not this policy"


def test_a_profile_without_intervals_says_less() -> None:
    """The widest spread that rounds can have: near the row's own value it agrees, far away it contradicts."""
    mean = unreplayed(4.05, 955, 4)
    expected = by_lowered(fixed(Tier(depth=4, width=1, nodes=4), Tier(depth=0, nodes=0)), mean, (), "row")
    agreeing = EngineCounters("trtllm", 900, None, 900 * 3.0)
    assert compare(expected, agreeing).verdict == "applied"
    assert compare(expected, replace(agreeing, accepted_tokens=900 * 1.0)).verdict == "not this policy"
    assert compare(expected, replace(agreeing, rounds=6, accepted_tokens=18.0)).verdict == "inconclusive"


def test_plain_decoding_that_drafts_is_found() -> None:
    expected = by_lowered(fixed(Tier(depth=0, nodes=0), Tier(depth=0, nodes=0)), None, (), "test")
    assert compare(expected, EngineCounters("vllm", 10, 40.0, 20.0)).verdict == "not this policy"
