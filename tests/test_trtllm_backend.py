"""Contract of the TensorRT-LLM drafter, against stand-ins of the published base classes: an engine that verifies flat
lists greedily must produce plain output, and make the rounds that our own runtime makes of the same chains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from profiles.errors import BadInput, HardwareMissing
from profiles.policy import PolicySource, SignalSpec, Tier
from runtime.backends import trtllm_backend
from runtime.backends.base import causal
from runtime.backends.trtllm_backend import KNOWN_SIGNATURES, constructor_arguments, speculative_config, trtllm_drafter
from runtime.decode import generate, plain_policy
from runtime.policy.linear import linear_policy
from tests.fakes import fake_pair, fake_prompt
from tests.strategies import sources

PAIR = fake_pair()


class Published(ABC):
    """What all releases have: the abstract method, and requests that carry their tokens."""

    @abstractmethod
    def prepare_draft_tokens(self, scheduled_requests: Any, resource_manager: Any = None) -> None: ...


class Newest(Published):
    def __init__(self, max_draft_len=None, max_total_draft_tokens=None, max_concurrency=None, draft_len_schedule=None):  # type: ignore[no-untyped-def]
        self.max_draft_len, self.max_total_draft_tokens = max_draft_len, max_total_draft_tokens


class Between(Published):
    def __init__(self, max_draft_tokens=None, max_concurrency=None):  # type: ignore[no-untyped-def]
        self.max_draft_tokens = max_draft_tokens


class Oldest(Published):
    def __init__(self, max_concurrency=None):  # type: ignore[no-untyped-def]
        self.max_concurrency = max_concurrency


class Unknown(Published):
    def __init__(self, tree_planner, max_draft_len=None):  # type: ignore[no-untyped-def]
        pass


class OtherMethod(Oldest):
    def prepare_draft_tokens(self, batch: Any) -> None:  # type: ignore[override]
        ...


@dataclass
class Request:
    """A generation request as the drafter sees it."""

    py_request_id: int
    tokens: list[int]
    py_draft_tokens: list[int] = field(default_factory=list)
    py_disable_speculative_decoding: bool = False

    def get_tokens(self, beam: int) -> list[int]:
        return self.tokens


def engine_rounds(drafter: Any, request: Request, new_tokens: int) -> list[tuple[int, int]]:
    """Greedy verification of flat drafts until enough tokens are there: (drafted, accepted) per step."""
    target, prompt_length = PAIR.target, len(request.tokens) - 1
    rounds = []
    while len(request.tokens) - prompt_length < new_tokens and request.tokens[-1] not in PAIR.eos_ids:
        drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=[request]), None)
        draft = request.py_draft_tokens
        session, _ = target.open(fake_prompt(0, 1), 4096)
        session.keep(0, [])
        rows = [*request.tokens, *draft]
        logits = session.forward(rows, np.arange(len(rows)), causal(len(rows), 0))
        choices = logits.argmax().tolist()[len(request.tokens) - 1 :]
        accepted = next((i for i, token in enumerate(draft) if token != choices[i]), len(draft))
        room = new_tokens - (len(request.tokens) - prompt_length)
        emitted = choices[: accepted + 1][:room]
        if PAIR.eos_ids & set(emitted):
            emitted = emitted[: 1 + next(i for i, token in enumerate(emitted) if token in PAIR.eos_ids)]
        rounds.append((len(draft), min(accepted, len(emitted))))
        request.tokens += emitted
    return rounds


def supported(source: PolicySource) -> PolicySource:
    """Without what a drafter cannot be asked for."""
    signal = source.signal
    return source.model_copy(
        update={"signal": signal.model_copy(update={"kind": "entropy"}) if signal.kind == "target_entropy" else signal}
    )


@settings(deadline=None, max_examples=25)
@given(source=sources())
def test_engine_output_is_plain_and_its_rounds_are_ours(source: PolicySource) -> None:
    source = supported(source)
    policy = linear_policy(source, 4096)
    prompt = fake_prompt(3)
    plain = generate(PAIR, prompt, plain_policy(), max_new_tokens=24).tokens
    ours = generate(PAIR, prompt, policy, max_new_tokens=24)
    drafter = trtllm_drafter(
        PAIR.draft, source, max_draft_len=max(policy.max_depth, 1), positions=128, context_max=4096, base=Newest
    )
    request = Request(7, [*prompt.input_ids.tolist(), plain[0]])
    rounds = engine_rounds(drafter, request, len(plain))
    assert request.tokens[len(prompt) :] == plain
    if ours.rounds and policy.drafts():
        assert rounds == [(record.nodes, record.accepted) for record in ours.rounds]
        assert drafter.chains.tier_rounds() == ours.tier_rounds()


STATIC = PolicySource(tiers=(Tier(depth=3, width=2, nodes=5),))


@pytest.mark.parametrize("base", [Newest, Between, Oldest])
def test_every_known_base_class_is_constructed(base: type) -> None:
    drafter = trtllm_drafter(PAIR.draft, STATIC, max_draft_len=4, positions=64, context_max=64, base=base)
    assert isinstance(drafter, base)
    for name in ("max_draft_len", "max_total_draft_tokens", "max_draft_tokens"):
        assert getattr(drafter, name, 4) == 4


@pytest.mark.parametrize("base", [Unknown, OtherMethod, object])
def test_an_unknown_release_is_refused_with_what_was_expected(base: type) -> None:
    with pytest.raises(HardwareMissing) as caught:
        constructor_arguments(base, 4)
    if base is not object:
        assert all(name in str(caught.value) for name in KNOWN_SIGNATURES[0])
        assert "found __init__(" in str(caught.value)


def test_width_and_growth_are_unused_and_depth_is_bounded() -> None:
    drafter = trtllm_drafter(PAIR.draft, STATIC, max_draft_len=3, positions=64, context_max=64, base=Oldest)
    request = Request(1, fake_prompt(1).input_ids.tolist())
    drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=[request]))
    assert len(request.py_draft_tokens) == 3
    with pytest.raises(BadInput, match="3 > 2"):
        trtllm_drafter(PAIR.draft, STATIC, max_draft_len=2, positions=64, context_max=64, base=Oldest)
    entropy = PolicySource(
        signal=SignalSpec(kind="target_entropy"), edges=(0.5,), tiers=STATIC.tiers * 2, monotone=False
    )
    with pytest.raises(BadInput, match="no logits of the target"):
        trtllm_drafter(PAIR.draft, entropy, max_draft_len=3, positions=64, context_max=64, base=Oldest)


def test_requests_are_kept_apart_and_switched_off_ones_get_nothing() -> None:
    drafter = trtllm_drafter(PAIR.draft, STATIC, max_draft_len=3, positions=64, context_max=64, base=Oldest)
    requests = [Request(i, fake_prompt(i).input_ids.tolist()) for i in range(3)]
    requests[1].py_disable_speculative_decoding = True
    drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=requests), None)
    assert [len(request.py_draft_tokens) for request in requests] == [3, 0, 3]
    assert requests[0].py_draft_tokens != requests[2].py_draft_tokens
    requests[0].tokens = requests[0].tokens[:-1]
    with pytest.raises(BadInput, match="only grow"):
        drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=[requests[0]]), None)


def test_dropped_sessions_start_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_backend, "MAX_SESSIONS", 1)
    drafter = trtllm_drafter(PAIR.draft, STATIC, max_draft_len=3, positions=64, context_max=64, base=Oldest)
    first, second = (Request(i, fake_prompt(i).input_ids.tolist()) for i in range(2))
    drafts = []
    for request in (first, second, first):
        drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=[request]), None)
        drafts.append(list(request.py_draft_tokens))
    assert drafts[0] == drafts[2]


def test_without_the_engine_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HardwareMissing, match="TensorRT-LLM is not here"):
        trtllm_drafter(PAIR.draft, STATIC, max_draft_len=3, positions=64, context_max=64)
    without = SimpleNamespace()
    monkeypatch.setattr(trtllm_backend, "_imported", lambda module: without)
    with pytest.raises(HardwareMissing, match="UserProvidedDecodingConfig"):
        speculative_config(object(), 3)
    without.UserProvidedDecodingConfig = SimpleNamespace
    assert speculative_config("d", 3) == SimpleNamespace(max_draft_len=3, drafter="d")
