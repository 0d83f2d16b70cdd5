"""Hypothesis strategies for policies."""

from __future__ import annotations

from hypothesis import strategies as st

from profiles.policy import HistorySpec, PolicySource, SignalSpec, Tier, pool_size

VERIFY_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24)
MAX_DEPTH, WIDTHS = 5, (1, 2, 3)


@st.composite
def tiers(draw: st.DrawFn, min_depth: int = 0) -> Tier:
    depth = draw(st.integers(min_depth, MAX_DEPTH))
    if depth == 0:
        return Tier(depth=0, nodes=0)
    width = draw(st.sampled_from(WIDTHS))
    nodes = draw(st.integers(depth, min(pool_size(depth, width), VERIFY_SIZES[-1] - 1)))
    stop = draw(st.sampled_from([0.0, 0.0, 0.05, 0.2, 0.5]))
    return Tier(depth=depth, width=width, nodes=nodes, stop=stop)


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
            kind=draw(st.sampled_from(["entropy", "one_minus_top1", "one_minus_margin"])),
            top_k=8,
            lag=draw(st.integers(0, 1)),
        ),
        edges=tuple(edge / 100 for edge in edges),
        tiers=tuple(draw(tiers()) for _ in range(len(edges) + 1)),
        history=draw(st.none() | histories()),
        safe=draw(tiers()),
        monotone=False,
    )
