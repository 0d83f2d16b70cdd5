"""Compiled policies equal their readable source in every cell, and never exceed their caps."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from profiles.policy import HISTORY_STATES, CompiledPolicy, HistorySpec, PolicySource, Tier, pool_size
from runtime.decode import plain_policy
from runtime.policy.compile import compile_policy, reference_tier
from runtime.policy.controller import Controller
from tests.strategies import VERIFY_SIZES, sources


@given(sources())
def test_every_cell_equals_the_reference(source: PolicySource) -> None:
    policy = compile_policy(source, VERIFY_SIZES, context_max=100)
    probes = {0.0, 1.0, *source.edges, *(np.nextafter(e, 0) for e in source.edges), 0.5}
    for state in range(len(HISTORY_STATES)):
        for signal in probes:
            bins = np.searchsorted(policy.edges, signal, side="right")
            assert policy.tiers[policy.table[bins][state]] == reference_tier(source, signal, state)


@given(sources(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 5), st.integers(1, 140)), max_size=40))
def test_controller_follows_the_policy_and_stays_in_its_caps(
    source: PolicySource, rounds: list[tuple[float, int, int]]
) -> None:
    policy = compile_policy(source, VERIFY_SIZES, context_max=100)
    controller = Controller(policy)
    window: deque[int] = deque(maxlen=source.history.window if source.history else 1)
    state, previous, mean, outside = 1, 0.5, None, 0
    for signal, accepted, context in rounds:
        tier = controller.choose(signal, context)
        weight = source.signal.smoothing
        mean = weight * (signal if mean is None else mean) + (1.0 - weight) * signal
        used, previous = (previous, mean) if source.signal.lag else (mean, previous)
        if context > 100:
            outside += 1
            assert tier == source.safe
        else:
            assert tier == reference_tier(source, used, state)
        assert tier.depth <= policy.max_depth and tier.width <= policy.max_width and tier.nodes <= policy.max_nodes
        accepted = min(accepted, tier.depth)
        controller.observe(tier, accepted)
        if source.history and tier.depth:
            window.append(accepted)
            state = _state(source.history, state, sum(window) / len(window))
    assert controller.outside_hull == outside
    assert sum(controller.tier_rounds.values()) == len(rounds)


def _state(history: HistorySpec, state: int, mean: float) -> int:
    """The three states drawn as a picture: enter at a threshold, leave past it by the hysteresis."""
    if mean < history.low:
        return 0
    if mean > history.high:
        return 2
    if state == 0:
        return 0 if mean < history.low + history.hysteresis else 1
    if state == 2:
        return 2 if mean > history.high - history.hysteresis else 1
    return 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 3, "width": 1, "nodes": 2}, "depth <= nodes <= pool"),
        ({"depth": 2, "width": 2, "nodes": 7}, "depth <= nodes <= pool"),
        ({"depth": 0, "width": 1, "nodes": 1}, "depth 0 has width 1, 0 nodes"),
        ({"depth": 2, "width": 1, "nodes": 2, "stop": 1.0}, "less than 1"),
    ],
)
def test_impossible_tiers_are_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Tier.model_validate(fields)


def test_monotone_is_checked_unless_it_is_switched_off() -> None:
    rising = (Tier(depth=1, nodes=1), Tier(depth=3, nodes=3))
    with pytest.raises(ValidationError, match="monotone"):
        PolicySource(edges=(0.5,), tiers=rising)
    assert PolicySource(edges=(0.5,), tiers=rising, monotone=False).tiers == rising


def test_a_tree_larger_than_every_verify_size_does_not_compile() -> None:
    with pytest.raises(ValidationError, match="more than verify size 4"):
        compile_policy(PolicySource(tiers=(Tier(depth=4, nodes=4),)), (1, 2, 4), 100)


def test_verdicts() -> None:
    def verdict(*tiers: Tier, edges: tuple[float, ...] = ()) -> str:
        return compile_policy(PolicySource(edges=edges, tiers=tiers), VERIFY_SIZES, 100).verdict()

    chain = Tier(depth=3, nodes=3)
    assert plain_policy().verdict() == "off"
    assert verdict(chain) == "static"
    assert verdict(chain.model_copy(update={"stop": 0.2})) == "adaptive"
    assert verdict(chain, Tier(depth=1, nodes=1), edges=(0.5,)) == "adaptive"
    assert verdict(chain, chain, edges=(0.5,)) == "static"


def test_pool_size_is_what_a_beam_drafts() -> None:
    assert [pool_size(d, 3) for d in range(4)] == [0, 3, 12, 21]


def test_cells_must_index_tiers() -> None:
    broken = plain_policy().model_dump() | {"table": ((0, 0, 5),)}
    with pytest.raises(ValidationError, match="must index 1 tiers"):
        CompiledPolicy.model_validate(broken)
