"""Both backends against the reference that runs every path alone: rounds, tokens, nodes."""

from __future__ import annotations

import numpy as np
import pytest

from profiles.policy import PolicySource, Tier
from runtime.backends.base import Model
from runtime.decode import generate
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.prompts import Prompt
from tests.fakes import FakeTokenizer, fake_pair, fake_prompt
from tests.reference import reference_round
from tests.strategies import VERIFY_SIZES

TIERS = [
    Tier(depth=1, nodes=1),
    Tier(depth=4, nodes=4),
    Tier(depth=3, width=2, nodes=7),
    Tier(depth=3, width=3, nodes=11),
    Tier(depth=4, width=2, nodes=5, stop=0.2),
]


def check(pair: Pair, prompt: Prompt, tier: Tier, limit: int) -> None:
    policy = compile_policy(PolicySource(tiers=(tier,)), VERIFY_SIZES, 10_000)
    live = generate(pair, prompt, policy, max_new_tokens=limit)
    for record in live.rounds:
        committed = live.tokens[: record.position + 1]
        accepted, bonus, nodes = reference_round(pair.target, pair.draft, prompt, committed, tier)
        assert nodes == record.nodes
        emitted = [*accepted, bonus][: record.emitted]
        assert emitted == live.tokens[record.position + 1 : record.position + 1 + record.emitted]
        assert record.accepted == min(len(accepted), record.emitted)


@pytest.mark.parametrize("tier", TIERS, ids=Tier.label)
def test_the_fake_pair_follows_the_reference(tier: Tier) -> None:
    for seed in range(3):
        check(fake_pair(), fake_prompt(seed), tier, 20)


@pytest.mark.parametrize("tier", TIERS, ids=Tier.label)
def test_real_models_follow_the_reference(text_model: Model, tier: Tier) -> None:
    """The model drafts for itself: nearly all is accepted, so deep paths, leaves and bonuses are all walked."""
    pair = fake_pair()
    pair = pair.__class__(**{**pair.__dict__, "target": text_model, "draft": text_model, "eos_ids": frozenset()})
    pair.encoder.tokenizer = FakeTokenizer()
    ids = np.random.default_rng(2).integers(3, text_model.token_limit, size=9)
    check(pair, Prompt(ids, {}, "text"), tier, 12)
