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
from profiles.policy import DraftRule
from profiles.sampling import Sampling
from profiles.trace_schema import CHAIN, SampleRecord, TraceManifest, draft_prefix
from runtime.backends.base import Session, causal
from runtime.decode import generate, plain_policy
from runtime.drafting import descend
from runtime.pair import Pair
from runtime.policy.signals import entropy_nats
from runtime.policy.tree import Candidates, FloatArray, IntArray, expand, frontier_rows, proposed
from runtime.prompts import Prompt
from runtime.pruning import pruned
from runtime.records import Generation
from runtime.sampling import shaped
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
        sampling = self._manifest.sampling.for_sample(sample.id)
        generation = generate(
            self._pair, prompt, plain_policy(), max_new_tokens=sample.max_new_tokens, sampling=sampling
        )
        dropped, columns = self._columns(prompt, generation, sampling)
        record = SampleRecord(
            id=sample.id,
            kind=sample.kind,
            modality=sample.modality,
            split=sample.split,
            prompt_tokens=len(prompt),
            output=tuple(generation.tokens),
            finished="eos" if generation.finished == "eos" else "length",
            dropped=dropped,
        )
        return record, columns

    def _columns(
        self, prompt: Prompt, generation: Generation, sampling: Sampling
    ) -> tuple[tuple[int, ...], dict[str, np.ndarray]]:
        """Visual tokens dropped by each pruning, and all columns of one sample; every position but the last token's
        can be the root of a round."""
        output = np.asarray(generation.tokens, dtype=np.int64)
        roots = len(output) - 1
        if roots < 1:
            return (), {}
        pair, prunings = shaped(self._pair, sampling), self._manifest.prunings
        target, logprobs = _target_logprobs(pair, prompt, output, self._manifest.signal_logprobs)
        columns: dict[str, np.ndarray] = {"position": np.arange(roots), "target_logprobs": logprobs}
        dropped = []
        for pruning in prunings:
            read = pruned(prompt, pruning, lambda: target.prompt_attention(prompt))
            found = self._draft_columns(pair, read, output)
            columns |= {f"{draft_prefix(pruning)}{name}": column for name, column in found.items()}
            dropped.append(read.draft_dropped)
        return tuple(dropped) if len(prunings) > 1 else (), columns

    def _draft_columns(self, pair: Pair, prompt: Prompt, output: IntArray) -> dict[str, np.ndarray]:
        """Everything that the draft proposes after a prompt as it reads it."""
        manifest, roots = self._manifest, len(output) - 1
        widest = max(rule.width for rule in manifest.rules)
        drafted = ROWS_PER_PASS * manifest.depth + widest * manifest.depth
        session, _ = pair.draft.open(
            prompt, len(prompt) + roots + drafted, positions=len(prompt) + roots + manifest.depth
        )
        start = session.length
        rows = session.forward(output[:-1], np.arange(start, start + roots), causal(roots, start))
        kept = manifest.signal_logprobs
        tokens, logprobs = rows.top(max(widest, kept))
        # what the draft's filters leave out is never proposed, wherever it is ranked
        hit = (tokens == output[1:, None]) & np.isfinite(logprobs)
        columns: dict[str, np.ndarray] = {
            "root_logprobs": logprobs[:, :kept],
            "true_rank": np.where(hit.any(axis=1), hit.argmax(axis=1), -1),
        }
        for rule in manifest.rules:
            parts = []
            chunk = max(ROWS_PER_PASS // rule.width, 1)
            for first in range(0, roots, chunk):
                at = np.arange(first, min(first + chunk, roots))
                parts.append(grow_at(session, len(prompt), output, at, tokens, logprobs, rule, manifest.depth, kept))
                session.keep(start + roots, [])
            for name in parts[0]:
                columns[f"{rule.stem()}.{name}"] = np.concatenate([part[name] for part in parts])
        return columns


def _target_logprobs(pair: Pair, prompt: Prompt, output: IntArray, kept: int) -> tuple[Session, FloatArray]:
    """The target's session, and [T - 1, kept] its best log-probabilities where it chose each token that can be a
    root."""
    roots = len(output) - 1
    session, first = pair.target.open(prompt, len(prompt) + roots)
    parts = [first.top(kept)[1]]
    if roots > 1:
        start, n = session.length, roots - 1
        parts.append(session.forward(output[:n], np.arange(start, start + n), causal(n, start)).top(kept)[1])
    return session, np.concatenate(parts)


def grow_at(
    session: Session,
    prompt_tokens: int,
    output: IntArray,
    at: IntArray,
    root_tokens: IntArray,
    root_logprobs: FloatArray,
    rule: DraftRule,
    depth: int,
    kept: int,
) -> dict[str, np.ndarray]:
    """Grow the deepest tree of `rule` at output positions `at` together; the session holds prompt and output.

    Shapes: output [T], root_tokens and root_logprobs [T - 1, k]. Returns the rule's columns, one row per
    position; entropies come from the `kept` <= k best log-probabilities. The session keeps the drafted rows; the
    caller drops them. Nodes that the rule leaves out of a frontier are run with the others, since trees share a
    pass, and their children are struck out.
    """
    trees, width = len(at), rule.width
    prefix = session.length
    columns = _empty_columns(trees, width, depth)
    if rule == CHAIN:
        columns["frontier_entropy"] = np.full((trees, depth), np.nan, np.float32)
        columns["frontier_entropy"][:, 0] = entropy_nats(root_logprobs[at, :kept])
    child_tokens, child_logprobs = root_tokens[at, None, :width], root_logprobs[at, None, :width]
    scores = own = np.zeros((trees, 1), dtype=np.float32)
    visible = np.zeros((trees, 0), dtype=np.bool_)
    prefix_visible = np.arange(prefix) <= (prompt_tokens + at)[:, None]
    true_slot = np.zeros(trees, dtype=np.int64)  # frontier slot of the true path's node, -1 once lost
    tree = np.arange(trees)
    for level in range(1, depth + 1):
        child_logprobs = proposed(rule, level, scores if rule.cumulative else own, child_logprobs)
        ranked = expand(scores, child_logprobs)
        rows_kept = frontier_rows(rule, ranked.scores)
        tokens = child_tokens[tree[:, None], ranked.parents, ranked.ranks]
        true_slot = _note_true_path(columns, level, ranked, tokens, output, at, true_slot, rows_kept)
        candidates = ranked.scores.shape[1]
        columns["pool_scores"][:, level - 1, :candidates] = ranked.scores
        if level == depth:
            break
        frontier = min(width, candidates)
        dropped = np.arange(frontier) >= rows_kept[:, None]
        scores = np.where(dropped, np.float32(-np.inf), ranked.scores[:, :frontier])
        own = child_logprobs[tree[:, None], ranked.parents[:, :frontier], ranked.ranks[:, :frontier]]
        before = visible.shape[0] // trees
        slots = ranked.parents[:, :frontier] + before * tree[:, None]
        visible = descend(visible, slots.reshape(-1))
        rows = session.forward(
            tokens[:, :frontier].reshape(-1),
            np.repeat(prompt_tokens + at + level, frontier),
            np.concatenate([np.repeat(prefix_visible, frontier, axis=0), visible], axis=1),
        )
        below_tokens, below_logprobs = rows.top(kept if rule == CHAIN else width)
        if rule == CHAIN:
            columns["frontier_entropy"][:, level] = entropy_nats(below_logprobs)
        child_tokens = below_tokens[:, :width].reshape(trees, frontier, width)
        child_logprobs = below_logprobs[:, :width].reshape(trees, frontier, width)
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
        "pool_scores": np.full((trees, depth, width * width), -np.inf, np.float32),
    }


def _note_true_path(
    columns: dict[str, np.ndarray],
    level: int,
    ranked: Candidates,
    tokens: IntArray,
    output: IntArray,
    at: IntArray,
    true_slot: IntArray,
    rows_kept: IntArray,
) -> IntArray:
    """Find the output's own token among a level's candidates; returns its frontier slot, -1 when it is lost."""
    ends = at + level >= len(output)
    true_token = np.where(ends, -1, output[np.minimum(at + level, len(output) - 1)])
    scores = ranked.scores
    hit = (ranked.parents == true_slot[:, None]) & (tokens == true_token[:, None]) & np.isfinite(scores)
    present = hit.any(axis=1)
    place = hit.argmax(axis=1)
    tree, i = np.nonzero(present)[0], level - 1
    parent_score = np.zeros(len(tree)) if level == 1 else columns["score"][tree, i - 1]
    columns["matched"] += present
    columns["rank_in_level"][tree, i] = place[tree]
    columns["score"][tree, i] = scores[tree, place[tree]]
    columns["sibling_rank"][tree, i] = ranked.ranks[tree, place[tree]]
    columns["sibling_probability"][tree, i] = np.exp(scores[tree, place[tree]] - parent_score)
    in_frontier = present & (place < rows_kept)
    columns["in_frontier"][:, i] = in_frontier
    return np.where(in_frontier, place, -1)
