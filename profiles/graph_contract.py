"""The contract of an exported step graph: names, axes and the side file. Exporters and backends both read it.

A step graph runs `n` tokens over `past` cached rows and returns the logits of chosen rows and the `n` new
key/value rows of every layer. It never returns the cache itself, so a pass copies nothing that is already there.

| tensor            | shape                              |
|-------------------|------------------------------------|
| inputs_embeds     | [1, n, hidden] float               |
| position_ids      | [1, n] int64                       |
| mask              | [1, 1, n, past + n] float, additive|
| logit_rows        | [m] int64: rows that need logits   |
| past_key_i, past_value_i | [past, kv_heads, head_dim] |
| logits            | [m, vocab]                         |
| new_key_i, new_value_i   | [n, kv_heads, head_dim]    |

Sequence-first caches make `buffer[:past]` one contiguous block, which a runtime can bind without a copy.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from profiles.frozen import Frozen

CONTRACT_VERSION = 1
EMBEDS, POSITIONS, MASK, LOGIT_ROWS, LOGITS = (
    "inputs_embeds",
    "position_ids",
    "mask",
    "logit_rows",
    "logits",
)
HIDDEN_SCORE = -3.4028234663852886e38
"""Additive mask of a hidden position: the float32 minimum. Minus infinity would give NaN on padding rows."""
GRAPH_FILE, EMBEDDINGS_FILE, SIDE_FILE = "step.onnx", "embeddings.npy", "step.json"


def past_names(layers: int) -> list[str]:
    return [f"past_{kind}_{i}" for kind in ("key", "value") for i in range(layers)]


def new_names(layers: int) -> list[str]:
    return [f"new_{kind}_{i}" for kind in ("key", "value") for i in range(layers)]


class StepGraph(Frozen):
    """Side file of a graph: what a backend must know before it loads it, and the digest of each part."""

    contract: Annotated[int, Field(ge=1)] = CONTRACT_VERSION
    architecture: str
    opset: int
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    max_positions: int
    files: dict[str, str]
    """File name to SHA-256."""
