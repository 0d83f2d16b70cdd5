"""Step graphs: the text side of a transformers model as ONNX, by the contract of `profiles.graph_contract`.

The attention of every layer is replaced by `two_part_attention`, which scores cached and new rows apart and
joins the scores, not the keys: the graph never concatenates (copies) the cache.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from transformers import AttentionInterface

from profiles.errors import BadInput
from profiles.families import require_graph, text_side
from profiles.graph_contract import (
    CONTRACT_VERSION,
    EMBEDDINGS_FILE,
    EMBEDS,
    GRAPH_FILE,
    LOGIT_ROWS,
    LOGITS,
    MASK,
    POSITIONS,
    SIDE_FILE,
    StepGraph,
    new_names,
    past_names,
)
from profiles.provenance import digest, file_digest
from profiles.store import atomic_path, cache_root, write_json

OPSET = 20
"""Opset 23 and later emit the Attention operator, which TensorRT-RTX parses and then fails to build."""
ATTENTION = "sage_two_part"
EXPORTER_VERSION = 2
"""Rises whenever this file writes another graph for the same weights, so that cached graphs are rebuilt."""


def two_part_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    past_keys: list[torch.Tensor],
    past_values: list[torch.Tensor],
    **_unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of n new tokens over `past` cached and n new rows, without joining the two.

    Shapes: query [1, q_heads, n, d], key/value [1, kv_heads, n, d], past [past, kv_heads, d],
    mask [1, 1, n, past + n]. Returns [1, n, q_heads, d]. Grouped query heads share their key head.
    """
    past_key, past_value = past_keys[module.layer_idx], past_values[module.layer_idx]
    _, q_heads, n, dim = query.shape
    kv_heads, past = key.shape[1], past_key.shape[0]
    grouped = query.reshape(kv_heads, q_heads // kv_heads * n, dim) * scaling
    scores = torch.cat(
        [grouped @ past_key.permute(1, 2, 0), grouped @ key[0].transpose(1, 2)],
        dim=-1,
    )
    scores = scores.reshape(q_heads, n, -1) + attention_mask[0]
    weights = torch.softmax(scores, dim=-1).reshape(kv_heads, q_heads // kv_heads * n, -1)
    out = weights[..., :past] @ past_value.permute(1, 0, 2) + weights[..., past:] @ value[0]
    return out.reshape(1, q_heads, n, dim).transpose(1, 2), None


class NewRows:
    """Stands where a cache is expected and keeps only what the pass adds: [n, kv_heads, d] per layer."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_unused: Any, **_ignored: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.append(key[0].transpose(0, 1))
        self.values.append(value[0].transpose(0, 1))
        return key, value


class Step(torch.nn.Module):
    """One pass of the text side, in the contract's order of inputs and outputs."""

    def __init__(self, text: Any, head: Any, cache_argument: str) -> None:
        super().__init__()
        self.text, self.head, self._cache_argument = text, head, cache_argument

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        position_ids: torch.Tensor,
        mask: torch.Tensor,
        logit_rows: torch.Tensor,
        past_keys: list[torch.Tensor],
        past_values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        rows = NewRows()
        out = self.text(
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            attention_mask=mask,
            use_cache=True,
            past_keys=past_keys,
            past_values=past_values,
            **{self._cache_argument: rows},
        )
        hidden = out.last_hidden_state[0].index_select(0, logit_rows)
        return self.head(hidden), rows.keys, rows.values


def graph_key(weights_digest: str, config_digest: str) -> str:
    """Name of a graph in a cache: it changes with the weights, the contract, the opset and the exporter."""
    return digest([weights_digest, config_digest, CONTRACT_VERSION, EXPORTER_VERSION, OPSET, torch.__version__])[:16]


def cached_step_graph(name: str, key: str, load: Callable[[], tuple[Any, str]]) -> Path:
    """Folder of a step graph, exported on first use. `load` returns the transformers model and the name of its
    cache argument; it is called only when the graph is missing."""
    folder = cache_root() / "graphs" / f"{name}-{key}"
    if not (folder / SIDE_FILE).exists():
        model, cache_argument = load()
        export_step_graph(model, folder, cache_argument)
    return folder


def export_step_graph(model: Any, folder: Path, cache_argument: str) -> StepGraph:
    """Write graph, embedding table and side file of a loaded transformers model (float32) to `folder`.

    The side file comes last and is written atomically: a folder without it is an unfinished export.
    Raises BadInput for a family without a step graph, and for a text side whose layers are not all full attention.
    """
    require_graph(model.config.model_type)
    config = model.config.get_text_config()
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        raise BadInput(f"only full-attention layers can be exported, got {config.layer_types}")
    text = text_side(model)
    layers, kv_heads = config.num_hidden_layers, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    folder.mkdir(parents=True, exist_ok=True)

    AttentionInterface.register(ATTENTION, two_part_attention)
    before, config._attn_implementation = config._attn_implementation, ATTENTION
    try:
        with atomic_path(folder / GRAPH_FILE) as path:
            _export(
                Step(text, model.lm_head, cache_argument),
                layers,
                kv_heads,
                head_dim,
                config.hidden_size,
                path,
            )
    finally:
        config._attn_implementation = before
    with torch.inference_mode(), atomic_path(folder / EMBEDDINGS_FILE) as path, path.open("wb") as file:
        table = text.get_input_embeddings()(torch.arange(config.vocab_size))
        np.save(file, np.ascontiguousarray(table.float().numpy()))
    graph = StepGraph(
        architecture=type(model).__name__,
        opset=OPSET,
        layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=config.hidden_size,
        vocab=model.lm_head.weight.shape[0],
        max_positions=config.max_position_embeddings,
        files={name: file_digest(folder / name) for name in (GRAPH_FILE, EMBEDDINGS_FILE)},
    )
    write_json(folder / SIDE_FILE, graph)
    return graph


def _export(step: Step, layers: int, kv_heads: int, head_dim: int, hidden: int, path: Path) -> None:
    n, past = 3, 5  # n = 1 would be specialised away by the tracer
    rows = [torch.zeros(past, kv_heads, head_dim) for _ in range(layers)]
    arguments = (
        torch.zeros(1, n, hidden),
        torch.arange(past, past + n)[None],
        torch.zeros(1, 1, n, past + n),
        torch.arange(n),
        rows,
        [row.clone() for row in rows],
    )
    auto = torch.export.Dim.AUTO
    dynamic = {
        EMBEDS: {1: auto},
        POSITIONS: {1: auto},
        MASK: {2: auto, 3: auto},
        LOGIT_ROWS: {0: auto},
        "past_keys": [{0: auto}] * layers,
        "past_values": [{0: auto}] * layers,
    }
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)  # it reports every torchvision operator that is not installed
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                step,
                arguments,
                path,
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=dynamic,
                external_data=False,
                verbose=False,
                input_names=[EMBEDS, POSITIONS, MASK, LOGIT_ROWS, *past_names(layers)],
                output_names=[LOGITS, *new_names(layers)],
            )
    finally:
        exporter_log.setLevel(level)
    onnx.save(_divided_norms(_named_axes(onnx.load(path))), path)


def _named_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The tracer numbers its symbols; give the axes of inputs and outputs the contract's names."""
    axes = {
        EMBEDS: {1: "n"},
        POSITIONS: {1: "n"},
        MASK: {2: "n", 3: "past_plus_n"},
        LOGIT_ROWS: {0: "m"},
        LOGITS: {0: "m"},
    }
    for value in [*model.graph.input, *model.graph.output]:
        named = axes.get(value.name) or {0: "past" if value.name.startswith("past_") else "n"}
        for axis, name in named.items():
            value.type.tensor_type.shape.dim[axis].dim_param = name
    return model


def _divided_norms(model: onnx.ModelProto) -> onnx.ModelProto:
    """x * (1 / sqrt(v)) becomes x / sqrt(v): the form that engines recognise as one RMS normalisation."""
    nodes = model.graph.node
    made_by = {output: node for node in nodes for output in node.output}
    uses = Counter(name for node in nodes for name in node.input)
    for node in list(nodes):
        if node.op_type != "Mul":
            continue
        for x, inverse in (node.input, reversed(node.input)):
            found = made_by.get(inverse)
            if found is not None and found.op_type == "Reciprocal" and uses[inverse] == 1:
                node.op_type = "Div"
                del node.input[:]
                node.input.extend([x, found.input[0]])
                nodes.remove(found)
                break
    return model
