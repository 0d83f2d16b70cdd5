"""Draft-side visual pruning: the draft's own reading of a prompt, without most of its visual rows.

The vision tower sees every pixel; what is left out never enters the draft's decoder, so its prefill is shorter and
every later pass attends to fewer rows. Kept rows keep their positions. The target reads everything, so the output
is the same whatever is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from profiles.errors import BadInput
from profiles.pruning import Pruning
from runtime.policy.tree import FloatArray, IntArray
from runtime.prompts import Prompt

GUIDED_MASS = 0.4
"""Share of the visual attention mass up to which tokens are kept by their score (SpecVLM, arXiv 2508.16201)."""


def pruned(prompt: Prompt, pruning: Pruning, attention: Callable[[], FloatArray]) -> Prompt:
    """The prompt with the draft's reading pruned; the prompt itself without pruning or without visual rows.

    `attention` gives the target's attention to every row of the prompt, [L]; it is asked by `verifier` only. Raises
    BadInput when that is asked of a draft whose placeholders are not the target's.
    """
    read = prompt if prompt.draft is None else prompt.draft
    if pruning.kind == "none" or not len(read.visual):
        return prompt
    if pruning.kind == "verifier":
        if prompt.draft is not None:
            raise BadInput(
                "verifier-guided pruning needs a draft that reads pictures as the target does; this one has "
                f"{len(read.visual)} visual tokens where the target has {len(prompt.visual)}; use uniform pruning"
            )
        stays = guided(attention()[prompt.visual], kept_count(len(read.visual), pruning.ratio))
    else:
        stays = spaced(len(read.visual), kept_count(len(read.visual), pruning.ratio))
    here = np.ones(len(read), dtype=np.bool_)
    here[read.visual] = False
    here[read.visual[stays]] = True
    return replace(prompt, draft=replace(read, draft=None, kept=np.flatnonzero(here)))


def kept_count(visual: int, ratio: float) -> int:
    """Visual tokens that stay of `visual` > 0; at least one."""
    return max(visual - round(ratio * visual), 1)


def spaced(n: int, count: int) -> IntArray:
    """[count] indices into n, evenly spaced, ascending, distinct."""
    indices: IntArray = ((np.arange(count) + 0.5) * n / count).astype(np.int64)
    return indices


def guided(scores: FloatArray, count: int) -> IntArray:
    """[count] indices into scores [n]: first the best, until they hold `GUIDED_MASS` of all scores, then evenly
    spaced ones of the rest (the two stages of SpecVLM). Equal scores keep their order."""
    order = np.argsort(-scores, kind="stable")
    mass = np.cumsum(scores[order], dtype=np.float64)
    best = order[: min(int(np.searchsorted(mass, GUIDED_MASS * mass[-1])) + 1, count)]
    rest = np.setdiff1d(np.arange(len(scores)), best)
    chosen: IntArray = np.sort(np.concatenate([best, rest[spaced(len(rest), count - len(best))]]))
    return chosen
