"""SMART (arXiv 2604.09731): a tree grows only where the added tokens are worth more than the time they add.

With E the expected tokens of a round (one, and the products of draft probabilities over its nodes) and C its time,
the tree's speedup is E / C in plain steps, and an addition is made only if

    alpha * dE / dC > E / C

with alpha <= 1 a discount for drafts that are too sure (0.8 in the paper). Compared with a public summary, not with
the paper, which fits smooth cost curves. Here C is the cost table at the round's context and verification is paid
by padded size, so the unit of addition is what fills a larger verify slot with the best of all candidates (of
several slots the first that pays). Another level is drafted while the last one passed the same test, its draft pass
included. Width and alpha are chosen on the tuning prompts.
"""

from __future__ import annotations

import numpy as np

from profiles.policy import DraftRule
from tuner.cost_model import Floats
from tuner.drafts import Ints, RuleRecord
from tuner.yardsticks.base import Arena, Contestant, PositionRule, best_of
from tuner.yardsticks.opt_tree import expected_accepted

SMART = "SMART"
DISCOUNTS = (1.0, 0.9, 0.8, 0.7, 0.5)


def grown(draft: RuleRecord, arena: Arena, discount: float, expected: Floats) -> tuple[Ints, Ints]:
    """[N] levels drafted and nodes verified; `expected` [slots - 1, N, D] of every verify size but the first."""
    replay, sizes = arena.replay, np.array(arena.grid.verify_sizes)
    n, host, context = draft.positions, replay.host, replay.record.context
    verify_ns = np.stack([replay.costs.pass_ns("verify", int(size), context) for size in sizes])
    everywhere = np.arange(n)

    def pays(tokens: Floats, time_ns: Floats, more_tokens: Floats, more_ns: Floats) -> np.ndarray:
        # multiplied out, so that an addition which costs nothing pays if it brings anything
        gain: np.ndarray = discount * (more_tokens - tokens) * time_ns > tokens * np.maximum(more_ns - time_ns, 0.0)
        return gain

    draft_ns = host.round_ns + host.level_ns + replay.catch_up_ns[1]
    tokens, time_ns, slot = np.ones(n), draft_ns + verify_ns[0], np.zeros(n, dtype=np.int64)
    drafted: Ints = np.zeros(n, dtype=np.int64)
    going = np.ones(n, dtype=np.bool_)
    for level in range(1, min(draft.depth, arena.grid.depth) + 1):
        if level > 1:
            draft_ns = draft_ns + host.level_ns + replay.frontier_ns(draft.frontier[:, level - 2])
        drafted[going] = level
        worth = np.concatenate([np.ones((1, n)), 1.0 + expected[:, :, level - 1]])
        here = slot.copy()
        for larger in range(1, len(sizes)):
            now = worth[here, everywhere], draft_ns + verify_ns[here, everywhere]
            grows = (larger > here) & pays(*now, worth[larger], draft_ns + verify_ns[larger])
            here = np.where(grows, larger, here)
        reached, spent = worth[here, everywhere], draft_ns + verify_ns[here, everywhere]
        slot = np.where(going, here, slot)
        going &= pays(tokens, time_ns, reached, spent)
        tokens, time_ns = reached, spent
    nodes: Ints = np.minimum(sizes[slot] - 1, draft.available[everywhere, drafted])
    return drafted, nodes


def smart(arena: Arena) -> Contestant:
    grid, replay = arena.grid, arena.replay
    counts = [size - 1 for size in grid.verify_sizes[1:]]
    rules: list[Contestant] = []
    for width in grid.widths:
        draft = replay.record.draft(DraftRule(width=width))
        expected = expected_accepted(draft, counts)
        for discount in DISCOUNTS:
            row = replay.register(draft.outcome(*grown(draft, arena, discount, expected)), grid.verify_sizes)
            detail = f"width {width}, alpha = {discount:g}"
            rules.append(PositionRule(SMART, detail, np.full(draft.positions, row), arena))
    return best_of(rules, arena)
