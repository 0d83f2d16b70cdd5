"""The guard: when it holds, when it tries again, that replay makes the same rounds, and that tokens never change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from profiles.errors import BadInput
from profiles.guard import Guard, guard_by_costs
from profiles.policy import CompiledPolicy, PolicySource, Tier
from runtime.decode import generate, plain_policy
from runtime.policy.compile import compile_policy
from runtime.policy.controller import Controller
from runtime.policy.guard import Guarding, break_even, guarded
from tests.strategies import VERIFY_SIZES, sources
from tests.test_replay import PAIR, PROMPTS, costs, record  # noqa: F401  # a fixture
from tuner.lossless import compare_rounds
from tuner.outcomes import Record
from tuner.replay import Replay

CHAIN = Tier(depth=2, nodes=2)
SOURCE = PolicySource(name="chain", tiers=(CHAIN,))


def policy_with(price: float, **changes: object) -> CompiledPolicy:
    """A chain of two whose every round costs `price` plain steps."""
    policy = compile_policy(SOURCE, (1, 2, 4), 1000)
    third = price / 3
    guard = Guard(round_price=third, level_price=(third, third), verify_price=(third,) * 3)
    return policy.model_copy(update={"guard": guard.model_copy(update=changes)})


def play(policy: CompiledPolicy, accepted: list[int]) -> tuple[list[bool], Guarding]:
    """Which rounds were held when drafting rounds accept these numbers, one after the other."""
    controller, held = Controller(policy), []
    for count in accepted:
        tier = controller.choose(0.5, 10)
        held.append(tier.depth == 0)
        controller.observe(tier, 0 if tier.depth == 0 else count, 2, 2)
    assert controller.guard is not None
    return held, controller.guard


def test_it_holds_after_a_bad_window_probes_and_re_arms() -> None:
    policy = policy_with(2.0, window=4, pause=3, probe=2)
    # four rounds of one token cost eight steps; three are held; two probes are good again
    held, guard = play(policy, [0] * 4 + [9] * 3 + [1, 2] + [1] * 6)
    assert held == [False] * 4 + [True] * 3 + [False] * 8
    assert (guard.trips, guard.guarded) == (1, 3)


def test_a_failed_probe_begins_the_next_pause_and_is_no_new_trip() -> None:
    held, guard = play(policy_with(2.0, window=4, pause=3, probe=2), [0] * 14)
    assert held == [False] * 4 + ([True] * 3 + [False] * 2) * 2
    assert (guard.trips, guard.guarded) == (1, 6)


def test_break_even_itself_is_no_reason_to_hold_and_a_margin_waits_longer() -> None:
    assert not any(play(policy_with(2.0, window=4), [1] * 40)[0])
    assert any(play(policy_with(2.1, window=4), [1] * 40)[0])
    assert not any(play(policy_with(2.1, window=4, margin=0.1), [1] * 40)[0])


def test_a_policy_without_a_guard_never_holds() -> None:
    policy = compile_policy(SOURCE, (1, 2, 4), 1000)
    controller = Controller(policy)
    assert controller.guard is None and policy.guard is None
    with pytest.raises(ValueError, match="no guard"):
        Guarding(policy)


def test_a_guard_that_is_passed_on_remembers_over_requests() -> None:
    policy = policy_with(9.0, window=6, pause=500)
    shared = Guarding(policy)
    counts = []
    for prompt, limit in PROMPTS * 2:
        made = generate(PAIR, prompt, policy, max_new_tokens=limit, guard=shared)
        assert made.tokens == generate(PAIR, prompt, plain_policy(), max_new_tokens=limit).tokens
        counts.append((made.guarded, made.guard_trips))
        assert all(step.tier.depth == 0 for step in made.rounds[len(made.rounds) - made.guarded :])
    assert shared.trips == sum(trips for _, trips in counts) == 1
    assert counts[-1][0] > 0 and shared.guarded == sum(held for held, _ in counts)


def test_prices_are_the_cost_table_in_plain_steps() -> None:
    table = costs()
    policy = guarded(compile_policy(SOURCE, VERIFY_SIZES, 100), table)
    host = table.host
    plain_ns = table.mean_ns("plain", 1) + host.plain_ns
    round_ns = (
        table.mean_ns("catch_up", 1)
        + table.mean_ns("frontier", 1)
        + table.mean_ns("verify", next(s for s in VERIFY_SIZES if s >= 3))
        + host.round_ns
        + 2 * host.level_ns
    )
    assert break_even(policy, policy.tiers.index(CHAIN)) == pytest.approx(round_ns / plain_ns)
    assert break_even(policy, policy.safe) == 1.0
    with pytest.raises(BadInput, match="verify passes of 4096 tokens"):
        guard_by_costs(table, [1], [1, 4096])


def test_a_guard_of_another_policy_is_refused() -> None:
    policy = policy_with(2.0)
    with pytest.raises(ValidationError, match="one price per tier"):
        CompiledPolicy.model_validate({**policy.model_dump(), "verify_sizes": (1, 4)})


@settings(max_examples=60, deadline=None)
@given(
    sources(),
    st.integers(0, len(PROMPTS) - 1),
    st.floats(0.2, 6.0),
    st.integers(4, 8),
    st.integers(1, 6),
    st.integers(1, 5),
)
def test_live_rounds_of_a_guarded_policy_are_replayed_rounds(
    record: Record,  # noqa: F811
    source: PolicySource,
    which: int,
    price: float,
    window: int,
    pause: int,
    probe: int,
) -> None:
    policy = compile_policy(source, VERIFY_SIZES, record.context_max)
    guard = Guard(
        window=window,
        pause=pause,
        probe=probe,
        round_price=price / 2,
        level_price=(price / 6,) * len(policy.tiers),
        verify_price=(price / 3,) * len(VERIFY_SIZES),
    )
    policy = policy.model_copy(update={"guard": guard})
    sample = next(i for i, s in enumerate(record.samples) if s.id == f"s{which}")
    prompt, limit = PROMPTS[which]
    live = generate(PAIR, prompt, policy, max_new_tokens=limit)
    assert live.tokens == list(record.samples[sample].output)
    walk = Replay(record, costs()).walk(policy, np.array([sample]))
    found = compare_rounds(live.rounds, policy, walk, sample, record)
    assert found.equal == found.rounds == len(live.rounds)
