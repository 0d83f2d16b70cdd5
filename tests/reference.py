"""One round, written for clarity: no cache reuse, no masks, no batching. What every backend is compared with.

Each path is run alone from a fresh session, candidates are plain tuples, selection is a sort. Slow, and hard to
get wrong.
"""

from __future__ import annotations

import math

import numpy as np

from profiles.policy import Tier
from runtime.backends.base import Model, causal
from runtime.prompts import Prompt

Path = tuple[int, ...]


def next_logits(model: Model, prompt: Prompt, tokens: list[int]) -> np.ndarray:
    """Logits after prompt and tokens, from scratch."""
    session, rows = model.open(prompt, len(prompt) + len(tokens) + 1)
    if tokens:
        past = session.length
        rows = session.forward(tokens, np.arange(past, past + len(tokens)), causal(len(tokens), past))
    return rows.logits()[-1].astype(np.float64)


def logprobs(logits: np.ndarray) -> np.ndarray:
    return logits - logits.max() - math.log(np.exp(logits - logits.max()).sum())


def draft_pool(draft: Model, prompt: Prompt, committed: list[int], tier: Tier) -> list[tuple[float, Path]]:
    """All candidates of the beam as (cumulative score, path), level by level, best first within a level."""
    pool: list[tuple[float, Path]] = []
    frontier: list[tuple[float, Path]] = [(0.0, ())]
    for level in range(1, tier.depth + 1):
        candidates = []
        for parent, (score, path) in enumerate(frontier):
            scores = logprobs(next_logits(draft, prompt, committed + list(path)))[: draft.token_limit]
            best = np.argsort(-scores, kind="stable")[: tier.width]
            candidates += [
                (score + scores[token], parent, rank, (*path, int(token))) for rank, token in enumerate(best)
            ]
        candidates.sort(key=lambda c: (-c[0], c[1], c[2]))
        ranked = [(score, path) for score, _, _, path in candidates]
        pool += ranked
        frontier = ranked[: tier.width]
        if level < tier.depth and tier.stop and math.exp(frontier[0][0]) < tier.stop:
            break
    return pool


def reference_round(
    target: Model, draft: Model, prompt: Prompt, committed: list[int], tier: Tier
) -> tuple[list[int], int, int]:
    """Accepted tokens, the bonus, and the number of verified nodes of one round after `committed`."""
    pool = draft_pool(draft, prompt, committed, tier) if tier.depth else []
    order = sorted(range(len(pool)), key=lambda i: (-pool[i][0], i))[: tier.nodes]
    chosen = {pool[i][1] for i in order}
    path: Path = ()
    while True:
        token = int(next_logits(target, prompt, committed + list(path)).argmax())
        if (*path, token) not in chosen:
            return list(path), token, len(chosen)
        path = (*path, token)
