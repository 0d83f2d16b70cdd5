"""The recorder: what the draft would have proposed at every position of real target outputs.

Per sample: decode the target once, then grow the deepest tree of every drafting rule at every position, many
positions per masked pass, along the target's output as prefix. Smaller depths and node budgets are contained
in the deepest tree of their width, which is why replay is exact. Columns: `profiles.trace_schema`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from profiles.errors import BadInput
from profiles.trace_schema import SIGNAL_COLUMNS, DraftRule, SampleRecord, TraceManifest
from runtime.backends.base import Session, causal
from runtime.decode import generate, plain_policy
from runtime.drafting import descend
from runtime.pair import Pair
from runtime.policy.signals import compute
from runtime.policy.tree import FloatArray, IntArray, expand
from runtime.prompts import Prompt
from runtime.records import Generation
from tuner.calibration import Sample
from tuner.timing import Budget
from tuner.trace_store import TraceStore

ROWS_PER_PASS = 96
"""Drafted rows of a recording pass. More rows share a pass's overhead, but its mask grows with their square."""


class Recorder:
    """Writes one Parquet part per sample; parts that are already there are not recorded again."""

    def __init__(self, pair: Pair, location: str | Path, manifest: TraceManifest) -> None:
        """`location` is a folder or a URL. Raises ProfileError when a record made under another manifest lies there."""
        self._pair, self._manifest = pair, manifest
        self.store = TraceStore(location)
        self.store.claim(manifest)

    def record_all(
        self,
        samples: list[Sample],
        budget: Budget,
        skip_bad: bool = False,
        on_sample: Callable[[Sample], None] = lambda sample: None,
    ) -> tuple[int, list[str]]:
        """Record missing samples until done or out of budget.

        Returns the number of samples now on record and the reasons of skipped ones.
        """
        on_record, skipped = 0, []
        missing = set(self.store.missing([sample.id for sample in samples]))
        for sample in samples:
            if sample.id in missing:
                if budget.expired:
                    break
                try:
                    prompt = self._pair.encoder.encode(sample.request())
                    record, columns = self._record(sample, prompt)
                except BadInput as error:
                    if not skip_bad:
                        raise
                    skipped.append(str(error))
                    on_sample(sample)
                    continue
                self.store.write(record, columns)
            on_record += 1
            on_sample(sample)
        return on_record, skipped

    def _record(self, sample: Sample, prompt: Prompt) -> tuple[SampleRecord, dict[str, np.ndarray]]:
        generation = generate(self._pair, prompt, plain_policy(), max_new_tokens=sample.max_new_tokens)
        record = SampleRecord(
            id=sample.id,
            kind=sample.kind,
            modality=sample.modality,
            split=sample.split,
            prompt_tokens=len(prompt),
            output=tuple(generation.tokens),
            finished="eos" if generation.finished == "eos" else "length",
        )
        return record, self._columns(prompt, generation)

    def _columns(self, prompt: Prompt, generation: Generation) -> dict[str, np.ndarray]:
        """All columns of one sample; every position but the last token's can be the root of a round."""
        output = np.asarray(generation.tokens, dtype=np.int64)
        roots = len(output) - 1
        if roots < 1:
            return {}
        manifest = self._manifest
        widest = max(rule.width for rule in manifest.rules)
        drafted = ROWS_PER_PASS * manifest.depth + widest * manifest.depth
        session, _ = self._pair.draft.open(
            prompt, len(prompt) + roots + drafted, positions=len(prompt) + roots + manifest.depth
        )
        start = session.length
        rows = session.forward(output[:-1], np.arange(start, start + roots), causal(roots, start))
        tokens, logprobs = rows.top(max(widest, manifest.signal_top_k))
        columns: dict[str, np.ndarray] = {
            "position": np.arange(roots),
            "remaining": roots - np.arange(roots),
            "draft_top1_hit": tokens[:, 0] == output[1:],
        }
        for kind in SIGNAL_COLUMNS:
            columns[kind] = compute(kind, logprobs, manifest.signal_top_k)
        for rule in manifest.rules:
            parts = []
            chunk = max(ROWS_PER_PASS // rule.width, 1)
            for first in range(0, roots, chunk):
                at = np.arange(first, min(first + chunk, roots))
                parts.append(grow_at(session, len(prompt), output, at, tokens, logprobs, rule, manifest.depth))
                session.keep(start + roots, [])
            for name in parts[0]:
                columns[f"{rule.stem()}.{name}"] = np.concatenate([part[name] for part in parts])
        return columns


def grow_at(
    session: Session,
    prompt_tokens: int,
    output: IntArray,
    at: IntArray,
    root_tokens: IntArray,
    root_logprobs: FloatArray,
    rule: DraftRule,
    depth: int,
) -> dict[str, np.ndarray]:
    """Grow the beam of `rule` at output positions `at` together; the session holds prompt and output.

    Shapes: output [T], root_tokens and root_logprobs [T - 1, k]. Returns the beam columns, one row per
    position. The session keeps the drafted rows; the caller drops them.
    """
    trees, width = len(at), rule.width
    prefix = session.length
    columns = _empty_columns(trees, width, depth)
    child_tokens, child_logprobs = root_tokens[at, None, :width], root_logprobs[at, None, :width]
    scores = np.zeros((trees, 1), dtype=np.float32)
    visible = np.zeros((trees, 0), dtype=np.bool_)
    prefix_visible = np.arange(prefix) <= (prompt_tokens + at)[:, None]
    true_slot = np.zeros(trees, dtype=np.int64)  # frontier slot of the true path's node, -1 once lost
    tree = np.arange(trees)
    for level in range(1, depth + 1):
        ranked = expand(scores, child_logprobs)
        tokens = child_tokens[tree[:, None], ranked.parents, ranked.ranks]
        true_slot = _note_true_path(
            columns, level, ranked.parents, ranked.ranks, ranked.scores, tokens, output, at, true_slot, width
        )
        candidates = ranked.scores.shape[1]
        columns["pool_scores"][:, level - 1, :candidates] = ranked.scores
        columns["frontier_best"][:, level - 1] = ranked.scores[:, 0]
        if level == depth:
            break
        frontier = min(width, candidates)
        scores = ranked.scores[:, :frontier]
        before = visible.shape[0] // trees
        slots = ranked.parents[:, :frontier] + before * tree[:, None]
        visible = descend(visible, slots.reshape(-1))
        rows = session.forward(
            tokens[:, :frontier].reshape(-1),
            np.repeat(prompt_tokens + at + level, frontier),
            np.concatenate([np.repeat(prefix_visible, frontier, axis=0), visible], axis=1),
        )
        below_tokens, below_logprobs = rows.top(width)
        child_tokens = below_tokens.reshape(trees, frontier, width)
        child_logprobs = below_logprobs.reshape(trees, frontier, width)
    return columns


def _empty_columns(trees: int, width: int, depth: int) -> dict[str, np.ndarray]:
    ints, floats = np.full((trees, depth), -1, np.int32), np.full((trees, depth), np.nan, np.float32)
    return {
        "matched": np.zeros(trees, np.int32),
        "in_frontier": np.zeros((trees, depth), np.bool_),
        "rank_in_level": ints.copy(),
        "score": floats.copy(),
        "sibling_rank": ints.copy(),
        "sibling_probability": floats.copy(),
        "frontier_best": floats.copy(),
        "pool_scores": np.full((trees, depth, width * width), -np.inf, np.float32),
    }


def _note_true_path(
    columns: dict[str, np.ndarray],
    level: int,
    parents: IntArray,
    ranks: IntArray,
    scores: FloatArray,
    tokens: IntArray,
    output: IntArray,
    at: IntArray,
    true_slot: IntArray,
    width: int,
) -> IntArray:
    """Find the output's own token among a level's candidates; returns its frontier slot, -1 when it is lost."""
    ends = at + level >= len(output)
    true_token = np.where(ends, -1, output[np.minimum(at + level, len(output) - 1)])
    hit = (parents == true_slot[:, None]) & (tokens == true_token[:, None])
    present = hit.any(axis=1)
    place = hit.argmax(axis=1)
    tree, i = np.nonzero(present)[0], level - 1
    parent_score = np.zeros(len(tree)) if level == 1 else columns["score"][tree, i - 1]
    columns["matched"] += present
    columns["rank_in_level"][tree, i] = place[tree]
    columns["score"][tree, i] = scores[tree, place[tree]]
    columns["sibling_rank"][tree, i] = ranks[tree, place[tree]]
    columns["sibling_probability"][tree, i] = np.exp(scores[tree, place[tree]] - parent_score)
    in_frontier = present & (place < width)
    columns["in_frontier"][:, i] = in_frontier
    return np.where(in_frontier, place, -1)
