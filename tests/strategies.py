"""Hypothesis strategies for policies."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from profiles.growth import FEATURES, GO_ON, Feature, GrowthTree
from profiles.policy import BEAM, DraftRule, HistorySpec, PolicySource, SignalKind, SignalSpec, Tier, pool_size
from profiles.sampling import MAX_SEED, Sampling

VERIFY_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
MAX_DEPTH, WIDTHS = 5, (1, 2, 3)
SIGNAL_LOGPROBS = 8
SPECIAL_RULES = (
    DraftRule(kind="margin", mu=0.3),
    DraftRule(kind="tapered"),
    DraftRule(kind="tapered", cumulative=True, rounding="ceil", own_floor=0.02),
)
"""Rules besides the beam; recorded at the largest width."""


def recorded_rules() -> tuple[DraftRule, ...]:
    special = (rule.model_copy(update={"width": WIDTHS[-1]}) for rule in SPECIAL_RULES)
    return (*(DraftRule(width=width) for width in WIDTHS), *special)


RANGES: dict[Feature, tuple[float, float]] = {
    "level": (0.5, 5.5),
    "best": (-6.0, 0.0),
    "step": (-3.0, 0.0),
    "lead": (0.0, 6.0),
}
"""Where thresholds cut something; other features are probabilities or entropies."""
gates = st.sampled_from([0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 0.9])


@st.composite
def tiers(draw: st.DrawFn, min_depth: int = 0) -> Tier:
    depth = draw(st.integers(min_depth, MAX_DEPTH))
    if depth == 0:
        return Tier(depth=0, nodes=0)
    rule = draw(st.sampled_from([BEAM, BEAM, BEAM, *SPECIAL_RULES]))
    width = draw(st.sampled_from(WIDTHS)) if rule == BEAM else WIDTHS[-1]
    nodes = draw(st.integers(depth, min(pool_size(depth, width), VERIFY_SIZES[-1] - 1)))
    kind = draw(st.sampled_from(["none", "stop", "by level", "keep", "both"]))
    by_level = tuple(draw(st.lists(gates, min_size=depth - 1, max_size=depth - 1)))
    keep = tuple(draw(st.lists(gates, min_size=depth, max_size=depth)))
    return Tier(
        depth=depth,
        width=width,
        nodes=nodes,
        stop=draw(gates) if kind == "stop" else 0.0,
        stops=by_level if kind in ("by level", "both") else (),
        keep=keep if kind in ("keep", "both") else (),
        rule=rule,
    )


@st.composite
def growth_trees(draw: st.DrawFn, max_leaves: int = 9) -> GrowthTree:
    """Any shape: an open slot is split at a time, so parents come before their children."""
    leaves = draw(st.integers(1, max_leaves))
    features: list[Feature] = []
    thresholds: list[float] = []
    children: dict[str, list[int]] = {"left": [], "right": []}
    open_slots: list[tuple[int, str]] = []
    for node in range(leaves - 1):
        feature: Feature = draw(st.sampled_from(FEATURES))
        features.append(feature)
        thresholds.append(draw(st.floats(*RANGES.get(feature, (0.0, 1.0)), allow_nan=False)))
        if node:
            parent, side = open_slots.pop(draw(st.integers(0, len(open_slots) - 1)))
            children[side][parent] = node
        children["left"].append(0)
        children["right"].append(0)
        open_slots += [(node, "left"), (node, "right")]
    for leaf, (parent, side) in enumerate(open_slots):
        children[side][parent] = -1 - leaf
    ends = st.sampled_from([GO_ON, GO_ON, *VERIFY_SIZES])
    return GrowthTree(
        features=tuple(features),
        thresholds=tuple(thresholds),
        left=tuple(children["left"]),
        right=tuple(children["right"]),
        leaves=tuple(draw(st.lists(ends, min_size=leaves, max_size=leaves))),
        top_k=draw(st.integers(2, SIGNAL_LOGPROBS)),
    )


@st.composite
def histories(draw: st.DrawFn) -> HistorySpec:
    low = draw(st.floats(0.0, 3.0, allow_nan=False))
    gap = draw(st.floats(0.2, 3.0, allow_nan=False))
    return HistorySpec(
        window=draw(st.integers(1, 8)),
        low=low,
        high=low + gap,
        step=draw(st.integers(1, 3)),
        hysteresis=draw(st.floats(0.0, 0.09)),
        min_depth=draw(st.integers(1, 2)),
        max_depth=draw(st.integers(2, MAX_DEPTH)),
    )


@st.composite
def sources(draw: st.DrawFn) -> PolicySource:
    edges = tuple(sorted(draw(st.sets(st.integers(1, 99), max_size=4))))
    return PolicySource(
        name="random",
        signal=SignalSpec(
            kind=draw(st.sampled_from(get_args(SignalKind))),
            top_k=draw(st.integers(2, SIGNAL_LOGPROBS)),
            lag=draw(st.integers(0, 1)),
            smoothing=draw(st.sampled_from([0.0, 0.0, 0.5, 0.8])),
        ),
        edges=tuple(edge / 100 for edge in edges),
        tiers=tuple(draw(tiers()) for _ in range(len(edges) + 1)),
        history=draw(st.none() | histories()),
        safe=draw(tiers()),
        monotone=False,
        growth=draw(st.none() | growth_trees()),
    )


@st.composite
def samplings(draw: st.DrawFn, sampled: bool = False) -> Sampling:
    temperature = draw(st.sampled_from([0.3, 0.7, 1.0, 1.6] if sampled else [0.0, 0.3, 0.7, 1.0, 1.6]))
    penalty = draw(st.sampled_from([None, 1.0, 1.3, 0.8]))
    seed = draw(st.integers(0, MAX_SEED))
    if not temperature:
        return Sampling(repetition_penalty=penalty, seed=seed)
    return Sampling(
        temperature=temperature,
        top_k=draw(st.sampled_from([0, 0, 1, 3, 10, 1000])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.95, 0.8, 0.3, 1e-6])),
        draft_lambda=draw(st.sampled_from([1.0, 0.5, 2.0])),
        repetition_penalty=penalty,
        seed=seed,
    )
