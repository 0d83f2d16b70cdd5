"""Growth: one round's decisions, the same for one tree and for many at once, and never beyond the tier."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from profiles.growth import FEATURES, GO_ON, NO_RIVAL, GrowthTree
from profiles.policy import PolicySource, Tier
from runtime.policy.compile import compile_policy
from runtime.policy.growth import Growth, budget, features
from tests.strategies import VERIFY_SIZES, growth_trees, tiers
from tuner.drafts import decided


@given(growth_trees(), st.integers(0, 2**32 - 1))
def test_one_decision_is_many_decisions(tree: GrowthTree, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = {name: rng.normal(0.0, 2.0, 40) for name in FEATURES}
    together = decided(tree, values, 40)
    for i in range(40):
        assert tree.decide({name: float(column[i]) for name, column in values.items()}) == together[i]


@given(tiers(min_depth=1), st.none() | growth_trees(), st.integers(0, 2**32 - 1))
def test_a_round_stays_within_its_tier(tier: Tier, tree: GrowthTree | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    policy = compile_policy(PolicySource(tiers=(tier,), growth=tree), VERIFY_SIZES, context_max=10)
    signals = {name: float(rng.random()) for name in FEATURES}
    growth = Growth(policy, tier, signals)
    drafted, available, best = 0, 0, 0.0
    for level in range(1, tier.depth + 1):
        scores = best - np.sort(rng.exponential(1.0, rng.integers(0, tier.width**2 + 1)).astype(np.float32))
        drafted, available = level, available + len(scores)
        if not growth.after(level, scores):
            break
        best = float(scores[0])
    nodes = growth.nodes()
    assert drafted <= tier.depth <= policy.max_depth
    assert 0 <= nodes <= min(tier.nodes, available) <= policy.max_nodes < policy.verify_sizes[-1]


def test_features_say_what_they_are_called() -> None:
    scores = np.log(np.array([0.4, 0.1, 0.05, 0.01], dtype=np.float32))
    found = features(3, 2, scores, np.log(np.array(0.8)))
    assert found["level"] == 3
    assert np.exp(found["best"]) == pytest.approx(0.4, rel=1e-6)
    assert np.exp(found["step"]) == pytest.approx(0.5, rel=1e-6)
    assert np.exp(found["lead"]) == pytest.approx(4.0, rel=1e-6)
    assert found["mass"] == pytest.approx(0.5, rel=1e-6)
    assert features(1, 1, scores[:1], np.zeros(()))["lead"] == NO_RIVAL


def test_slots_that_are_paid_for_are_filled() -> None:
    tier = Tier(depth=2, width=3, nodes=9, keep=(0.5, 0.5))
    # three candidates pass the gate: root and three need size 4, and 4 is a size; four need 6, so five go
    assert budget(tier, (1, 2, 4, 6, 12), 12, [3, 4, 0], GO_ON).tolist() == [3, 5, 0]
    assert int(budget(tier, (1, 2, 4, 6, 12), 2, 4, GO_ON)) == 2, "no more than there are"
    assert int(budget(tier, (1, 2, 4, 6, 12), 12, 4, 12)) == 9, "a leaf may not exceed the tier"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"left": (-1, 0)}, "one parent"),
        ({"left": (1, -1), "right": (1, -2)}, "one parent"),
        ({"leaves": (GO_ON, 4)}, "1 nodes, got 2"),
        ({"thresholds": (0.5,)}, "2 nodes"),
    ],
)
def test_only_trees_are_trees(changes: dict[str, object], message: str) -> None:
    good = {
        "features": ("best", "level"),
        "thresholds": (-1.0, 2.5),
        "left": (1, -1),
        "right": (-3, -2),
        "leaves": (GO_ON, 4, 6),
    }
    GrowthTree.model_validate(good)
    with pytest.raises(ValidationError, match=message):
        GrowthTree.model_validate({**good, **changes})


def test_leaves_must_be_sizes_of_the_policy() -> None:
    source = PolicySource(tiers=(Tier(depth=2, width=2, nodes=4),), growth=GrowthTree(leaves=(5,)))
    with pytest.raises(ValidationError, match="leaves must be verify sizes"):
        compile_policy(source, VERIFY_SIZES, context_max=10)
