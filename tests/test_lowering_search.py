"""The search for the best lowering: never worse than leaving things out, and its rules are what they say."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exports.lowering import truncated
from profiles.errors import BadInput, EnvelopeError
from profiles.lowering import Abilities, fixed
from profiles.policy import PolicySource, Tier
from profiles.trace_schema import CHAIN
from tests.records import chance_record, record_of
from tests.strategies import sources
from tests.test_replay import costs
from tests.test_yardsticks import GRID, RULES, SEEDS, SPLITS
from tuner.lowering_search import LoweringSearch, lowering_numbers, position_rates
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.yardsticks.base import Arena

OFF = Tier(depth=0, nodes=0)
ABILITIES = [
    Abilities(room="chain"),
    Abilities(room="rows"),
    Abilities(room="pool"),
    Abilities(room="chain", confidence="capped"),
    Abilities(room="chain", confidence="uncapped"),
]


@cache
def record(kind: str) -> Record:
    folder = Path(mkdtemp())
    return record_of(folder, RULES, SPLITS, SEEDS) if kind == "fake" else chance_record(folder, RULES, SPLITS, seed=5)


@cache
def arena(kind: str) -> Arena:
    return Arena(Replay(record(kind), costs()), GRID)


@settings(deadline=None, max_examples=40)
@given(source=sources(), abilities=st.sampled_from(ABILITIES), kind=st.sampled_from(["fake", "chance"]))
def test_a_search_is_never_worse_than_leaving_things_out(source: PolicySource, abilities: Abilities, kind: str) -> None:
    found = LoweringSearch(arena(kind), abilities, truncated(source, abilities))
    tune = found.arena.tune
    best = found.arena.speedup(found.best.contestant.walk(tune), tune)
    for other in (found.truncated, fixed(OFF, OFF)):
        assert best >= found.arena.speedup(found.contestant(other).walk(tune), tune) - 1e-12
    assert abilities.holds(found.best.lowered.tier)
    if found.best.lowered.confidence:
        assert abilities.confidence != "none"
        assert found.best.lowered.capped == (abilities.confidence == "capped")


@pytest.mark.parametrize("kind", ["fake", "chance"])
@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.6, 0.99])
def test_confidence_ends_a_draft_after_the_first_doubtful_token(kind: str, threshold: float) -> None:
    """By hand: own probabilities along the recorded chain, one position after the other."""
    found = LoweringSearch(arena(kind), ABILITIES[3], fixed(Tier(depth=4, width=1, nodes=4), OFF))
    walk = found.contestant(fixed(Tier(depth=4, width=1, nodes=4), OFF, threshold)).walk(found.arena.tune)
    scores = record(kind).draft(CHAIN).scores[:, :, 0]
    for at, nodes in zip(walk.at.tolist(), walk.nodes.tolist(), strict=True):
        length, before = 0, 0.0
        for score in scores[at, :4].tolist():
            length += 1
            own, before = np.exp(score - before), score
            if own < threshold:
                break
        assert nodes == length


def test_drafts_without_a_limit_stay_within_the_record() -> None:
    found = LoweringSearch(arena("fake"), ABILITIES[4], fixed(Tier(depth=3, width=1, nodes=3), OFF))
    assert found.left_out + len(found._kept) == len(found._thresholds)
    longest = Tier(depth=GRID.depth, width=1, nodes=GRID.depth)
    with pytest.raises(EnvelopeError, match="beyond the"):
        found.contestant(fixed(longest, OFF, 1e-9, capped=False))
    everything = found.contestant(fixed(longest, OFF, 0.999999, capped=False)).walk(found.arena.tune)
    assert everything.nodes.max() <= GRID.depth


def test_numbers_of_a_lowering() -> None:
    """A policy that the engine can run as it is loses nothing, and acceptance by level falls."""
    tree = PolicySource(tiers=(Tier(depth=3, width=2, nodes=5),))
    found = LoweringSearch(arena("fake"), ABILITIES[2], truncated(tree, ABILITIES[2]))
    numbers = lowering_numbers(found, found.arena.compiled(tree), found.truncated, "digest")
    assert numbers.loss.median == numbers.loss.low == numbers.loss.high == 0.0
    assert numbers.full == numbers.lowered and numbers.trace_digest == "digest"
    rates = [position.rate for position in numbers.positions]
    assert rates == sorted(rates, reverse=True)
    walk = found.contestant(found.truncated).walk(record("fake").split_samples("report"))
    assert rates[0] == pytest.approx((walk.accepted >= 1).mean())
    assert numbers.lowered.acceptance_length.median == pytest.approx(walk.acceptance_length)
    assert len(position_rates(walk)) == walk.accepted.max()


def test_one_prompt_has_no_interval() -> None:
    few = record_of(Path(mkdtemp()), RULES, ("tune", "tune", "report"), (0, 1, 2))
    found = LoweringSearch(Arena(Replay(few, costs()), GRID), ABILITIES[0], fixed(OFF, OFF))
    with pytest.raises(BadInput, match="2 report prompts"):
        lowering_numbers(found, found.arena.compiled(PolicySource(tiers=(OFF,))), found.truncated, "")
