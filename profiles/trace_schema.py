"""What a trace holds: the manifest and the columns of its Parquet parts.

One part per sample. `positions.parquet` has a row per position p of the target's output, meaning "y_0..y_p are
committed, the round starts here"; `beam_W.parquet` has a row per position for the drafting rule `beam(W)`.
Levels count from 1; arrays have one entry per level of the recorded depth D.

| column (positions)     | meaning |
|------------------------|---------|
| position               | index p of the root token in the output |
| remaining              | tokens of the output after p |
| entropy, one_minus_top1, one_minus_margin | signals of the draft's root distribution, in [0, 1] |
| draft_top1_hit         | the draft's first choice equals the target's next token |

| column (beam)          | meaning |
|------------------------|---------|
| matched                | levels of the output's true path that are in the pool |
| in_frontier            | [D] the true path's node of the level is in the frontier |
| rank_in_level          | [D] its place among the level's candidates, -1 when absent |
| score                  | [D] its cumulative log-probability, NaN when absent |
| sibling_rank, sibling_probability | [D] among the children of its parent, -1 / NaN when absent |
| frontier_best          | [D] best cumulative log-probability of the frontier |
| pool_scores            | [D, width^2] sorted scores of the level's candidates (level 1 has `width`, then -inf) |
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from profiles.policy import Frozen, SignalKind

TRACE_VERSION = 1
SIGNAL_COLUMNS: tuple[SignalKind, ...] = ("entropy", "one_minus_top1", "one_minus_margin")


class DraftRule(Frozen):
    """How a level's frontier is chosen: the `width` best of the level's candidates."""

    kind: Literal["beam"] = "beam"
    width: Annotated[int, Field(ge=1)]

    def stem(self) -> str:
        return f"beam_{self.width}"


class SampleRecord(Frozen):
    """One traced sample: its output and where its context starts."""

    id: str
    kind: str
    modality: Literal["text", "image", "video"]
    split: Literal["tune", "select", "report"]
    prompt_tokens: int
    output: tuple[int, ...]
    finished: Literal["eos", "length"]


class TraceManifest(Frozen):
    """Everything that the record depends on. A run with another manifest starts a new record."""

    version: int = TRACE_VERSION
    pair_digest: str
    data_digest: str
    backend: str
    dtype: str
    depth: Annotated[int, Field(ge=1)]
    rules: tuple[DraftRule, ...]
    signal_top_k: int
    versions: dict[str, str]
