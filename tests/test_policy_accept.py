"""Acceptance follows the target's own tokens and nothing else."""

from __future__ import annotations

import pytest

from runtime.policy.accept import accept
from runtime.policy.tree import Tree

#        root
#       /    \
#      a(1)  b(2)
#      |    /   \
#    c(3) d(4)  e(5)
TREE = Tree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 2, 2], [0, 1, 1, 2, 2, 2], [-1, 0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    ("target_tokens", "path", "bonus"),
    [
        ([2, 0, 5, 0, 0, 8], [2, 5], 8),  # root -> b -> e, bonus after the leaf
        ([2, 0, 7, 0, 0, 0], [2], 7),  # b, then a token that is no child of b
        ([6, 3, 0, 0, 0, 0], [], 6),  # nothing: the bonus is the plain step
        ([1, 5, 0, 0, 0, 0], [1], 5),  # 5 is a child of b, not of a
    ],
)
def test_walk(target_tokens: list[int], path: list[int], bonus: int) -> None:
    assert accept(TREE, target_tokens) == (path, bonus)


def test_every_node_needs_a_target_token() -> None:
    with pytest.raises(ValueError, match="6 nodes were verified but only 2"):
        accept(TREE, [1, 2])
