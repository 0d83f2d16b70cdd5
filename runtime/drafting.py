"""Drafting: one small model grows the candidate tree of a round, level by level, reusing its own cache.

Depth d costs one catch-up pass (committed tokens the draft has not seen; its last logits are the root
distribution) and d - 1 frontier passes. Rows of drafted nodes that get accepted are kept, not recomputed.
"""

from __future__ import annotations

import time

import numpy as np

from profiles.policy import Tier
from runtime.backends.base import Model, causal
from runtime.policy.growth import Growth
from runtime.policy.tree import BoolArray, FloatArray, IntArray, Pool, expand, frontier_rows, proposed
from runtime.prompts import Prompt


class Drafter:
    """The draft side of one generation. `passes_ns` holds the time of every pass of the current round."""

    def __init__(self, model: Model, prompt: Prompt, capacity: int, positions: int, top_k: int) -> None:
        """`top_k` children of the root are read every round: the signal and the widest tier need them."""
        self._session, _ = model.open(prompt, capacity, positions)
        self._top_k = top_k
        self._root: tuple[IntArray, FloatArray] | None = None
        self._committed = self._session.length
        self.passes_ns: list[int] = []

    def root_logprobs(self, unseen: list[int]) -> FloatArray:
        """Catch up on committed tokens; returns the root's best `top_k` log-probabilities, best first."""
        past = self._session.length
        positions = np.arange(past, past + len(unseen))
        start = time.perf_counter_ns()
        rows = self._session.forward(unseen, positions, causal(len(unseen), past))
        self.passes_ns = [time.perf_counter_ns() - start]
        # only the last token's children matter
        tokens, logprobs = rows.top(self._top_k)
        root_logprobs: FloatArray = logprobs[-1]
        self._root = tokens[-1], root_logprobs
        self._committed = self._session.length
        return root_logprobs

    def grow(self, tier: Tier, growth: Growth) -> Pool:
        """Draft the pool of a tier from the last root distribution; `growth` says after every level if it goes on."""
        pool = Pool()
        if tier.depth == 0:
            return pool
        if self._root is None:
            raise RuntimeError("root_logprobs must be called before grow")
        width, root_position, rule = tier.width, self._committed - 1, tier.draft_rule
        child_tokens, child_logprobs = self._root[0][None, :width], self._root[1][None, :width]
        frontier, scores = [-1], np.zeros(1, dtype=np.float32)
        own = scores
        visible = np.zeros((1, 0), dtype=np.bool_)
        for depth in range(1, tier.depth + 1):
            child_logprobs = proposed(rule, depth, scores if rule.cumulative else own, child_logprobs)
            level = expand(scores, child_logprobs)
            indices = pool.add_level(level, child_tokens[level.parents, level.ranks], frontier, depth)
            if not growth.after(depth, level.scores):
                break
            kept = int(frontier_rows(rule, level.scores))
            frontier, scores = indices[:kept], level.scores[:kept]
            own = child_logprobs[level.parents[:kept], level.ranks[:kept]]
            visible = descend(visible, level.parents[:kept])
            positions = np.full(len(frontier), root_position + depth)
            start = time.perf_counter_ns()
            rows = self._session.forward(
                [pool.tokens[i] for i in frontier],
                positions,
                np.concatenate([np.ones((len(frontier), self._committed), dtype=np.bool_), visible], axis=1),
            )
            self.passes_ns.append(time.perf_counter_ns() - start)
            pool.expanded += frontier
            child_tokens, child_logprobs = rows.top(width)
        return pool

    def commit(self, pool: Pool, accepted: list[int]) -> int:
        """Keep the cache rows of accepted candidates (pool indices, root side first); returns how many had one.

        Only the last accepted node can lack a row: every other one was expanded, or it had no child.
        """
        row_of = {candidate: row for row, candidate in enumerate(pool.expanded)}
        rows = [row_of[candidate] for candidate in accepted if candidate in row_of]
        self._session.keep(self._committed, rows)
        self._committed = self._session.length
        self._root = None
        return len(rows)


def descend(visible: BoolArray, parent_slots: IntArray) -> BoolArray:
    """Visibility among drafted rows one level down: what the parent sees, and the node itself.

    `visible` [F, rows] is that of the frontier before; returns [F', rows + F'].
    """
    n, rows = len(parent_slots), visible.shape[1]
    below = np.zeros((n, rows + n), dtype=np.bool_)
    below[:, :rows] = visible[parent_slots]
    below[np.arange(n), rows + np.arange(n)] = True
    return below
