"""TensorRT-LLM: our draft and a compiled policy as its user-provided drafter.

    drafter = trtllm_drafter(pair.draft, profile.source, max_draft_len=5, positions=4096, context_max=2048)
    LLM(..., speculative_config=speculative_config(drafter, 5))

What is left of a policy there: its depth, by step and request, with signals, history and stops. A drafter hands over
a flat list of tokens, so width is not used and there is no tree; growth trees and keep gates have no meaning. The
target's entropy cannot be asked, since a drafter sees tokens alone. TensorRT-LLM runs such drafters without the overlap
scheduler, and under CUDA graphs it pads every list to the longest: short drafts save draft time, not verify time.
Never run on such hardware: the base class was read in published sources, and its signature is compared before use.
"""

from __future__ import annotations

import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from profiles.errors import BadInput, HardwareMissing
from profiles.policy import CompiledPolicy, PolicySource, Tier
from runtime.backends.base import Model
from runtime.drafting import Drafter
from runtime.policy.controller import Controller
from runtime.policy.growth import Growth
from runtime.policy.linear import linear_policy
from runtime.policy.signals import needs_target, of_round
from runtime.policy.tree import Pool
from runtime.prompts import Prompt

DRAFTER_MODULE: Final = "tensorrt_llm._torch.speculative.drafter"
PREPARE: Final = ("scheduled_requests", "resource_manager")
KNOWN_SIGNATURES: Final = (
    ("max_draft_len", "max_total_draft_tokens", "max_concurrency", "draft_len_schedule"),
    ("max_draft_len", "max_total_draft_tokens", "max_concurrency"),
    ("max_draft_tokens", "max_concurrency"),
    ("max_concurrency",),
)
"""Arguments of `Drafter.__init__` in the releases that were read, newest first."""
MAX_SESSIONS: Final = 64
PromptOf = Callable[[Any, list[int]], Prompt]
"""A request and its prompt's token ids, as the draft reads them."""


def text_prompt(request: Any, tokens: list[int]) -> Prompt:
    """Token ids alone: the draft does not see pictures. The output is right all the same, acceptance is lower."""
    return Prompt(np.asarray(tokens, dtype=np.int64), {}, "text")


class ChainSession:
    """The draft side of one request: what was committed, and one chain per step."""

    def __init__(self, model: Model, prompt: Prompt, tokens: list[int], policy: CompiledPolicy, positions: int) -> None:
        """`tokens` is everything that the prompt stands for."""
        self._policy, self.controller = policy, Controller(policy)
        self._top_k = max(policy.max_width, policy.signal.top_k)
        capacity = positions + policy.max_depth + 2
        self._drafter = Drafter(model, prompt, capacity, capacity, self._top_k)
        self._tokens = list(tokens)
        self._unseen: list[int] = []
        self._drafted: tuple[Tier, Pool] | None = None
        self._positions, self._limit = positions, 0

    def propose(self, tokens: list[int], limit: int) -> list[int]:
        """At most `limit` draft tokens after `tokens`, all that is committed; none once `positions` are used up.
        Raises BadInput when what was committed before is not the beginning of it."""
        if len(tokens) > self._positions:
            return []
        self._commit(tokens)
        root_logprobs = self._drafter.root_logprobs(self._unseen)
        signal, tree_signals = of_round(self._policy, root_logprobs, None)
        tier = self.controller.choose(signal, len(tokens))
        growth = Growth(self._policy, tier, tree_signals)
        pool = self._drafter.grow(tier, growth)
        self._drafted = tier, pool
        self._limit = min(limit, growth.nodes())
        return [int(token) for token in pool.tokens[: self._limit]]

    def _commit(self, tokens: list[int]) -> None:
        known = len(self._tokens)
        if tokens[:known] != self._tokens:
            raise BadInput("a request's tokens may only grow; what was committed before has changed")
        if self._drafted is None:
            self._unseen += tokens[known:]
        else:
            new, (tier, pool) = tokens[known:], self._drafted
            accepted = 0
            while accepted < min(len(new) - 1, self._limit) and new[accepted] == pool.tokens[accepted]:
                accepted += 1
            kept = self._drafter.commit(pool, list(range(accepted)))
            self._unseen = new[kept:]
            self.controller.observe(tier, accepted)
            self._drafted = None
        self._tokens = list(tokens)


class PolicyChains:
    """Sessions of all requests. The oldest one is dropped when there are too many; it starts over when it returns."""

    def __init__(
        self, model: Model, source: PolicySource, context_max: int, positions: int, prompt_of: PromptOf
    ) -> None:
        self._policy = linear_policy(source, context_max)
        if needs_target(self._policy):
            raise BadInput(
                "a drafter of TensorRT-LLM sees no logits of the target, so a policy that asks for its entropy cannot "
                "run there"
            )
        self._model, self._positions, self._prompt_of = model, positions, prompt_of
        self._sessions: OrderedDict[Any, ChainSession] = OrderedDict()

    @property
    def longest(self) -> int:
        """Most tokens of a draft."""
        return self._policy.max_depth

    def tier_rounds(self) -> dict[str, int]:
        """Rounds by tier label over the sessions that are held, for `verify-applied`."""
        counts: dict[str, int] = {}
        for session in self._sessions.values():
            for tier, rounds in session.controller.tier_rounds.items():
                counts[tier.label()] = counts.get(tier.label(), 0) + rounds
        return counts

    def propose(self, request: Any, limit: int) -> list[int]:
        """Draft tokens of one request, from `py_request_id` and `get_tokens(0)`."""
        name, tokens = request.py_request_id, [int(token) for token in request.get_tokens(0)]
        session = self._sessions.pop(name, None)
        if session is None:
            # the last token is the root: it must be new to the draft
            prompt = self._prompt_of(request, tokens[:-1])
            session = ChainSession(self._model, prompt, tokens[:-1], self._policy, self._positions)
        self._sessions[name] = session
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session.propose(tokens, limit)


def trtllm_drafter(
    model: Model,
    source: PolicySource,
    *,
    max_draft_len: int,
    positions: int,
    context_max: int,
    prompt_of: PromptOf = text_prompt,
    base: type | None = None,
) -> Any:
    """A drafter for `UserProvidedDecodingConfig`. `positions` bounds prompt and output of a request; `base` is
    TensorRT-LLM's `Drafter`, imported when it is not given.

    Raises HardwareMissing without TensorRT-LLM or for a release whose base class was never read, BadInput for a policy
    that needs the target's logits or drafts longer than `max_draft_len`.
    """
    base = base or _published_base()
    arguments = constructor_arguments(base, max_draft_len)
    chains = PolicyChains(model, source, context_max, positions, prompt_of)
    if chains.longest > max_draft_len:
        raise BadInput(f"depth <= max_draft_len must hold, the policy drafts {chains.longest} > {max_draft_len}")

    def prepare_draft_tokens(self: Any, scheduled_requests: Any, resource_manager: Any = None) -> None:
        for request in scheduled_requests.generation_requests:
            off = getattr(request, "py_disable_speculative_decoding", False)
            request.py_draft_tokens = [] if off else chains.propose(request, max_draft_len)

    members = {"prepare_draft_tokens": prepare_draft_tokens, "chains": chains, "__doc__": __doc__}
    drafter = type("SagePolicyDrafter", (base,), members)
    return drafter(**arguments)


def constructor_arguments(base: type, max_draft_len: int) -> dict[str, int]:
    """What `Drafter.__init__` of this release is given. Raises HardwareMissing for a signature that was never read,
    naming what was expected and what was found."""
    found = tuple(name for name in inspect.signature(base).parameters)
    prepare = getattr(base, "prepare_draft_tokens", None)
    if prepare is None:
        raise HardwareMissing(f"{base.__name__} has no prepare_draft_tokens: no drafter of one's own here")
    asked = tuple(name for name in inspect.signature(prepare).parameters if name != "self")
    if found not in KNOWN_SIGNATURES or asked != PREPARE:
        known = " or ".join(f"({', '.join(names)})" for names in KNOWN_SIGNATURES)
        raise HardwareMissing(
            f"this release of TensorRT-LLM is not known: expected {base.__name__}.__init__{known} and "
            f"prepare_draft_tokens({', '.join(PREPARE)}), found __init__({', '.join(found)}) and "
            f"prepare_draft_tokens({', '.join(asked)})"
        )
    lengths = ("max_draft_len", "max_total_draft_tokens", "max_draft_tokens")
    return {name: max_draft_len for name in found if name in lengths}


def speculative_config(drafter: Any, max_draft_len: int) -> Any:
    """`UserProvidedDecodingConfig` around a drafter. Raises HardwareMissing where the release has none."""
    llmapi = _imported("tensorrt_llm.llmapi")
    kind = getattr(llmapi, "UserProvidedDecodingConfig", None)
    if kind is None:
        raise HardwareMissing("this release of TensorRT-LLM has no UserProvidedDecodingConfig; it was in 1.3")
    return kind(max_draft_len=max_draft_len, drafter=drafter)


def _published_base() -> type:
    found: type = _imported(DRAFTER_MODULE).Drafter
    return found


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise HardwareMissing(f"TensorRT-LLM is not here ({error}); its drafter runs inside its own server") from None
