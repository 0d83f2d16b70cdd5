"""What a trace holds: the manifest and the columns of its Parquet parts.

One part per sample, with a row per position p of the target's output, meaning "y_0..y_p are committed, the round
starts here". Columns of a drafting rule carry its stem as prefix (`beam_3.score`). Levels count from 1; arrays have
one entry per level of the recorded depth D, or per log-probability of the K that are kept.

Under sampling a log-probability is the log softmax of perturbed scores (`runtime.sampling`), and the output's token is
the target's best by them. What the draft's filters leave out has no rank: it is never proposed.

What depends on the draft is recorded once per pruning of the manifest; the columns of any but `none` have its stem
as prefix (`uniform0.9/beam_3.score`).

| column                 | meaning |
|------------------------|---------|
| position               | index p of the root token in the output |
| root_logprobs          | [K] best log-probabilities of the draft's root distribution: its signals, for any k <= K |
| target_logprobs        | [K] the same of the target where it chose the root token: the entropy at the bonus token |
| true_rank              | rank of the output's next token in the draft's root distribution, -1 beyond the K best |

| column of a rule       | meaning |
|------------------------|---------|
| matched                | levels of the output's true path that are in the pool |
| in_frontier            | [D] the true path's node of the level is in the frontier |
| rank_in_level          | [D] its place among the level's candidates, -1 when absent |
| score                  | [D] its cumulative log-probability, NaN when absent |
| sibling_rank, sibling_probability | [D] among the children of its parent, -1 / NaN when absent |
| pool_scores            | [D, width^2] sorted scores of the level's candidates, -inf where there is none |
| frontier_entropy       | chain only: [D] nats, of the draft's distribution that the level's candidate comes from |
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from profiles.frozen import Frozen
from profiles.policy import DraftRule
from profiles.pruning import NO_PRUNING, Pruning
from profiles.sampling import AS_MADE, Sampling

CHAIN: Final = DraftRule(width=1)
"""The rule of linear drafts, which has a column of its own."""
TRACE_VERSION: Final = 2


def draft_prefix(pruning: Pruning) -> str:
    """What stands before the names of columns that depend on the draft."""
    return "" if pruning == NO_PRUNING else f"{pruning.stem()}/"


class SampleRecord(Frozen):
    """One traced sample: its output and where its context starts."""

    id: str
    kind: str
    modality: Literal["text", "image", "video"]
    split: Literal["tune", "select", "report"]
    prompt_tokens: int
    output: tuple[int, ...]
    finished: Literal["eos", "length"]
    dropped: tuple[int, ...] = ()
    """Visual tokens that the draft did without, by pruning of the manifest; empty where there is but `none`."""


class TraceManifest(Frozen):
    """Everything that the record depends on. A run with another manifest starts a new record."""

    version: Literal[2] = TRACE_VERSION
    pair_digest: str
    data_digest: str
    backend: str
    dtype: str
    depth: Annotated[int, Field(ge=1)]
    rules: tuple[DraftRule, ...]
    prunings: tuple[Pruning, ...] = (NO_PRUNING,)
    signal_logprobs: Annotated[int, Field(ge=2)]
    """K: log-probabilities kept per position and model."""
    versions: dict[str, str]
    sampling: Sampling = AS_MADE
    """How the outputs were decoded and the draft proposed; every sample has a seed of its own, derived from this one
    (`Sampling.for_sample`)."""
