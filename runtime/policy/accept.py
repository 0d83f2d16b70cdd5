"""Acceptance: walk the verified tree along the target's own tokens (method: deterministic children, rule 4).

The target's token at a node is drawn first; if it is one of the children the walk descends, else it is the
bonus. Nothing of the output depends on the tree, which is why any policy is lossless.
"""

from __future__ import annotations

from typing import NamedTuple

from runtime.policy.tree import Tree


class Acceptance(NamedTuple):
    """`path` are the accepted tree nodes in order (root excluded), `bonus` the target's token after them."""

    path: list[int]
    bonus: int


def accept(tree: Tree, target_tokens: list[int]) -> Acceptance:
    """`target_tokens[i]` is the target's token after node i; there must be one per node of the tree."""
    if len(target_tokens) < len(tree):
        raise ValueError(f"{len(tree)} nodes were verified but only {len(target_tokens)} target tokens given")
    child = {(parent, token): i for i, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))}
    node, path = 0, []
    while (step := child.get((node, target_tokens[node]))) is not None:
        node = step
        path.append(node)
    return Acceptance(path, target_tokens[node])
