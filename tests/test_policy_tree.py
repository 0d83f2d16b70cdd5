"""Trees against a reference written for clarity, not speed; and the selection's promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.policy.tree import Pool, ancestor_mask, expand, padded_size, select


def reference_order(frontier: list[float], children: list[list[float]]) -> list[tuple[int, int]]:
    """(parent, rank) by score, ties by parent order then rank, spelled out."""
    every = [(parent, rank) for parent in range(len(frontier)) for rank in range(len(children[0]))]
    return sorted(every, key=lambda c: (-(np.float32(frontier[c[0]]) + np.float32(children[c[0]][c[1]])), *c))


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.sampled_from([0.0, -0.5, -1.0, -1.5, -2.25]), min_size=20, max_size=20),
)
def test_expand_orders_like_the_reference(frontier: int, width: int, values: list[float]) -> None:
    scores = values[:frontier]
    children = [
        sorted(values[frontier + i * width : frontier + (i + 1) * width], reverse=True) for i in range(frontier)
    ]
    children = [row for row in children if len(row) == width]
    scores = scores[: len(children)]
    if not children:
        return
    ranked = expand(np.array(scores, np.float32), np.array(children, np.float32))
    assert list(zip(ranked.parents.tolist(), ranked.ranks.tolist(), strict=True)) == reference_order(scores, children)


def test_expand_of_many_trees_is_expand_of_each() -> None:
    rng = np.random.default_rng(0)
    frontier = -rng.random((5, 3)).astype(np.float32)
    children = -np.sort(rng.random((5, 3, 4)), axis=-1).astype(np.float32)
    together = expand(frontier, children)
    for i in range(5):
        alone = expand(frontier[i], children[i])
        assert all(np.array_equal(a[i], b) for a, b in zip(together, alone, strict=True))


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    """A pool grown by real expansions, with many ties."""
    width, depth = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    pool, frontier, scores = Pool(), [-1], np.zeros(1, np.float32)
    for level in range(1, depth + 1):
        rows = [
            sorted(draw(st.lists(st.sampled_from([0.0, -0.25, -1.0]), min_size=width, max_size=width)), reverse=True)
            for _ in frontier
        ]
        ranked = expand(scores, np.array(rows, np.float32))
        indices = pool.add_level(ranked, np.arange(len(ranked.scores)), frontier, level)
        frontier, scores = indices[:width], ranked.scores[:width]
    return pool


@given(pools(), st.integers(0, 40))
def test_selection_is_best_closed_and_ordered(pool: Pool, nodes: int) -> None:
    tree = select(pool, nodes, root_token=7)
    chosen = tree.pool_index[1:]
    assert tree.tokens[0] == 7 and len(chosen) == min(nodes, len(pool.tokens))
    assert all(pool.parents[c] == -1 or pool.parents[c] in chosen for c in chosen), "not closed under ancestors"
    assert all(parent < i for i, parent in enumerate(tree.parents)), "a child precedes its parent"
    left_out = [s for i, s in enumerate(pool.scores) if i not in chosen]
    if chosen and left_out:
        assert min(pool.scores[c] for c in chosen) >= max(left_out)


@given(pools())
def test_ancestor_mask_is_the_walk_to_the_root(pool: Pool) -> None:
    tree = select(pool, len(pool.tokens), root_token=0)
    mask = ancestor_mask(tree.parents)
    for i in range(len(tree)):
        line, node = {i}, i
        while (node := tree.parents[node]) >= 0:
            line.add(node)
        assert set(np.nonzero(mask[i])[0].tolist()) == line


def test_padding_charges_the_next_size() -> None:
    assert [padded_size(n, (1, 2, 4, 8)) for n in (0, 1, 2, 3, 4, 7)] == [1, 2, 4, 4, 8, 8]
    with pytest.raises(ValueError, match="exceeds the largest verify size 8"):
        padded_size(8, (1, 2, 4, 8))
