"""The decode loop on a fake pair: token identity, exact ends, stop strings, streaming, records."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import BadInput, CapacityError, LosslessError, ModelOutputError
from profiles.policy import PolicySource, Tier
from runtime.backends.base import NumpyRows
from runtime.decode import generate, plain_policy
from runtime.policy.compile import compile_policy
from tests.fakes import EOS, FakeModel, fake_pair, fake_prompt
from tests.strategies import VERIFY_SIZES, sources
from tuner.lossless import first_divergence, require_equal

PAIR = fake_pair()
WIDE = compile_policy(PolicySource(tiers=(Tier(depth=4, width=3, nodes=11),)), VERIFY_SIZES, 10_000)


@settings(max_examples=40)
@given(sources(), st.integers(0, 10_000), st.integers(1, 30))
def test_any_policy_gives_the_tokens_of_plain_decoding(source: PolicySource, seed: int, limit: int) -> None:
    policy = compile_policy(source, VERIFY_SIZES, context_max=20)
    prompt = fake_prompt(seed)
    plain = generate(PAIR, prompt, plain_policy(), max_new_tokens=limit)
    tree = generate(PAIR, prompt, policy, max_new_tokens=limit)
    assert tree.tokens == plain.tokens and tree.finished == plain.finished
    assert sum(r.emitted for r in tree.rounds) == len(tree.tokens) - 1


def test_the_limit_is_exact_wherever_it_falls_in_a_path() -> None:
    prompt = fake_prompt(3)
    long = generate(PAIR, prompt, plain_policy(), max_new_tokens=40).tokens
    for limit in range(1, len(long) + 1):
        got = generate(PAIR, prompt, WIDE, max_new_tokens=limit)
        assert got.tokens == long[:limit]
        assert got.finished == ("length" if long[limit - 1] != EOS else "eos")


def test_the_end_token_ends_the_output_at_every_offset_of_a_path() -> None:
    """Make each token of an output the end token in turn: it must be found wherever it falls in a path."""
    prompt = fake_prompt(5)
    long = generate(PAIR, prompt, plain_policy(), max_new_tokens=25).tokens
    offsets = set()
    for i, token in enumerate(long):
        if token in long[:i]:
            continue
        pair = PAIR.__class__(**{**PAIR.__dict__, "eos_ids": frozenset({token})})
        got = generate(pair, prompt, WIDE, max_new_tokens=25)
        assert got.tokens == long[: i + 1] and got.finished == "eos"
        if got.rounds:
            offsets.add(got.rounds[-1].emitted)
    assert len(offsets) > 1, "the end never fell inside a path"


def test_stop_strings_cut_the_text_and_stream_nothing_beyond() -> None:
    prompt = fake_prompt(8)
    full = generate(PAIR, prompt, plain_policy(), max_new_tokens=30)
    stop = full.text[7:9]
    streamed: list[str] = []
    plain = generate(PAIR, prompt, plain_policy(), max_new_tokens=30, stop_strings=[stop])
    got = generate(PAIR, prompt, WIDE, max_new_tokens=30, stop_strings=[stop], on_text=streamed.append)
    assert got.finished == "stop" and got.tokens == plain.tokens
    assert got.text == full.text[: full.text.index(stop)] == "".join(streamed)


def test_streaming_hands_out_the_whole_text_once() -> None:
    streamed: list[str] = []
    got = generate(PAIR, fake_prompt(2), WIDE, max_new_tokens=30, on_text=streamed.append)
    assert "".join(streamed) == got.text and len(streamed) > 1


def test_records_add_up() -> None:
    got = generate(PAIR, fake_prompt(4), WIDE, max_new_tokens=30)
    position = 0
    for record in got.rounds:
        assert record.position == position
        assert record.emitted in (record.accepted, record.accepted + 1)
        assert record.levels == 4 and record.nodes == 11
        assert 0.0 <= record.signal <= 1.0
        assert record.host_ns >= 0
        position += record.emitted
    assert got.acceptance_length == pytest.approx((len(got.tokens) - 1) / len(got.rounds))
    assert got.tier_rounds() == {"4,3,11": len(got.rounds)}


def test_plain_decoding_makes_no_draft_pass() -> None:
    got = generate(PAIR, fake_prompt(4), plain_policy(), max_new_tokens=9)
    assert all(r.levels == 0 and r.draft_ns == 0 and math.isnan(r.signal) for r in got.rounds)
    assert got.draft_prefill_ns == 0


def test_outside_the_hull_the_safe_tier_is_used_and_counted() -> None:
    source = PolicySource(tiers=(Tier(depth=2, nodes=2),), safe=Tier(depth=1, nodes=1))
    got = generate(PAIR, fake_prompt(4, length=5), compile_policy(source, VERIFY_SIZES, 12), max_new_tokens=25)
    beyond = [r for r in got.rounds if r.context > 12]
    assert beyond and got.outside_hull == len(beyond)
    assert all(r.tier == Tier(depth=1, nodes=1) for r in beyond)


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(BadInput, match="max_new_tokens >= 1"):
        generate(PAIR, fake_prompt(1), WIDE, max_new_tokens=0)
    with pytest.raises(BadInput, match="stop string"):
        generate(PAIR, fake_prompt(1), WIDE, max_new_tokens=5, stop_strings=[""])
    with pytest.raises(CapacityError, match="<= maximal positions"):
        generate(PAIR, fake_prompt(1), WIDE, max_new_tokens=5000)


def test_nan_logits_stop_decoding() -> None:
    broken = np.zeros((2, 5), np.float32)
    broken[1, 3] = np.nan
    for read in (NumpyRows(broken).argmax, lambda: NumpyRows(broken).top(2)):
        with pytest.raises(ModelOutputError, match="not finite"):
            read()


def test_a_corrupt_backend_is_found_whatever_its_acceptance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend that forgets to drop rejected rows still decodes fast; its output gives it away."""
    pair, prompt = fake_pair(300), fake_prompt(9)
    plain = generate(pair, prompt, plain_policy(), max_new_tokens=30).tokens
    session = type(FakeModel(1, 0.0).open(prompt, 50)[0])
    monkeypatch.setattr(session, "_compact", lambda self, base, rows: None)
    wrong = generate(pair, prompt, WIDE, max_new_tokens=30).tokens
    monkeypatch.undo()
    assert wrong != plain
    found = first_divergence(pair, prompt, plain, wrong)
    assert (
        found is not None
        and found.verdict == "bug"
        and found.position == next(i for i, (a, b) in enumerate(zip(plain, wrong, strict=False)) if a != b)
    )
    with pytest.raises(LosslessError, match=r"differs from plain decoding at token \d+"):
        require_equal(pair, prompt, plain, wrong, "corrupt")
