"""The contract of an exported step graph: names, axes and the side file. Exporters and backends both read it.

A step graph runs `n` tokens over `past` cached rows and returns the logits of chosen rows and the `n` new
key/value rows of every layer. It never returns the cache itself, so a pass copies nothing that is already there.

| tensor            | shape                              | type      |
|-------------------|------------------------------------|-----------|
| inputs_embeds     | [1, n, hidden]                     | float32   |
| position_ids      | [position_axes, n]                 | int64     |
| mask              | [1, 1, n, past + n], additive      | float32   |
| logit_rows        | [m]: rows that need logits         | int64     |
| deepstack         | [deepstack_layers, n, hidden]      | float32   |
| past_key_i, past_value_i | [past, kv_heads, head_dim]  | `dtype`   |
| logits            | [m, vocab]                         | float32   |
| new_key_i, new_value_i   | [n, kv_heads, head_dim]     | `dtype`   |

`position_axes` is 1, or 3 where rotary positions have a temporal, a height and a width axis (M-RoPE); text has
the same number on all three. `deepstack` exists only where `deepstack_layers` > 0: row l is added to the hidden
states after layer l (DeepStack, arXiv 2406.04334). It holds picture features in the prefill and zeros elsewhere.
Weights and cache have the graph's `dtype`; everything else that the host touches is float32 in every graph.

Sequence-first caches make `buffer[:past]` one contiguous block, which a runtime can bind without a copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from profiles.errors import ProfileError
from profiles.frozen import Frozen
from profiles.provenance import digest, file_digest
from profiles.store import read_json

CONTRACT_VERSION = 2
EMBEDS, POSITIONS, MASK, LOGIT_ROWS, DEEPSTACK, LOGITS = (
    "inputs_embeds",
    "position_ids",
    "mask",
    "logit_rows",
    "deepstack",
    "logits",
)
HIDDEN_SCORE = -3.4028234663852886e38
"""Additive mask of a hidden position: the float32 minimum. Minus infinity would give NaN on padding rows."""
GRAPH_FILE, WEIGHTS_FILE, EMBEDDINGS_FILE, SIDE_FILE = "step.onnx", "step.onnx.data", "embeddings.npy", "step.json"
PARITY_FILE = "parity.json"
"""How far the graph's numbers are from the model's; a report, which nothing reads to run the graph."""
GraphDtype = Literal["float32", "float16", "bfloat16"]
GRAPH_DTYPES: tuple[GraphDtype, ...] = get_args(GraphDtype)


def past_names(layers: int) -> list[str]:
    return [f"past_{kind}_{i}" for kind in ("key", "value") for i in range(layers)]


def new_names(layers: int) -> list[str]:
    return [f"new_{kind}_{i}" for kind in ("key", "value") for i in range(layers)]


class StepGraph(Frozen):
    """Side file of a graph: what a backend must know before it loads it, and the digest of each part."""

    contract: Annotated[int, Field(ge=1)] = CONTRACT_VERSION
    architecture: str
    opset: int
    dtype: GraphDtype = "float32"
    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    max_positions: int
    position_axes: Literal[1, 3] = 1
    deepstack_layers: Annotated[int, Field(ge=0)] = 0
    files: dict[str, str]
    """File name to SHA-256: the graph, the embedding table, and the weights where they have a file of their own."""

    @property
    def digest(self) -> str:
        """One digest over the graph, every file beside it, and what this file says of them."""
        return digest(self.model_dump(mode="json"))

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, in the graph's order."""
        deepstack = [DEEPSTACK] if self.deepstack_layers else []
        return [EMBEDS, POSITIONS, MASK, LOGIT_ROWS, *deepstack, *past_names(self.layers)]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in the graph's order."""
        return [LOGITS, *new_names(self.layers)]

    def shape(self, tensor: str, n: int, logit_rows: int, past: int) -> tuple[int, ...]:
        """Shape of an input or output in one pass."""
        if tensor.startswith(("past_", "new_")):
            return (past if tensor.startswith("past_") else n, self.kv_heads, self.head_dim)
        return {
            EMBEDS: (1, n, self.hidden),
            POSITIONS: (self.position_axes, n),
            MASK: (1, 1, n, past + n),
            LOGIT_ROWS: (logit_rows,),
            DEEPSTACK: (self.deepstack_layers, n, self.hidden),
            LOGITS: (logit_rows, self.vocab),
        }[tensor]


def axis_names(tensor: str) -> dict[int, str]:
    """Axes of an input or output whose size changes from pass to pass, by number."""
    return {
        EMBEDS: {1: "n"},
        POSITIONS: {1: "n"},
        MASK: {2: "n", 3: "past_plus_n"},
        LOGIT_ROWS: {0: "m"},
        DEEPSTACK: {1: "n"},
        LOGITS: {0: "m"},
    }.get(tensor) or {0: "past" if tensor.startswith("past_") else "n"}


def read_graph(folder: Path) -> StepGraph:
    """Side file of a graph folder, with every named file present and unchanged.

    Raises ProfileError when the side file or a file that it names is missing, changed, or of another contract.
    """
    if not (folder / SIDE_FILE).exists():
        raise ProfileError(
            f"{folder} holds no step graph: no such file {SIDE_FILE}; the graph's files belong together in one folder"
        )
    graph = read_json(folder / SIDE_FILE, StepGraph)
    if graph.contract != CONTRACT_VERSION:
        raise ProfileError(f"{folder} has graph contract {graph.contract}, this release reads {CONTRACT_VERSION}")
    for name, saved in graph.files.items():
        if not (folder / name).exists():
            raise ProfileError(
                f"{folder} is incomplete: {name} is missing; the graph's files belong together in one folder"
            )
        if file_digest(folder / name) != saved:
            raise ProfileError(f"{folder / name} was changed since it was exported; delete the folder to rebuild")
    return graph
