"""Step graphs: the text side of a transformers model as ONNX, by the contract of `profiles.graph_contract`.

Any decoder of transformers whose layers all attend to everything is accepted: every vision-language family's
text side, text-only models, and a model cut after its first layers. Its precision is the graph's.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from exports.onnx_parity import check_parity
from exports.step_modules import Step, traced_as
from profiles.errors import BadInput
from profiles.families import text_side
from profiles.graph_contract import (
    CONTRACT_VERSION,
    DEEPSTACK,
    EMBEDDINGS_FILE,
    EMBEDS,
    GRAPH_DTYPES,
    GRAPH_FILE,
    LOGIT_ROWS,
    MASK,
    POSITIONS,
    SIDE_FILE,
    WEIGHTS_FILE,
    StepGraph,
    axis_names,
)
from profiles.provenance import digest, file_digest
from profiles.store import cache_root, write_json

OPSET = 20
"""What every engine here reads. Later ones export as well: no operator newer than this is needed, since attention is
written out (the Attention operator of opset 23 is one that TensorRT-RTX parses and then fails to build)."""
EXTERNAL_FROM_BYTES = 1900 << 20
"""Weights from here on get a file of their own: a protobuf message ends at 2 GiB."""
EXPORTER_VERSION = 4
"""Rises whenever this file writes another graph for the same weights, so that cached graphs are rebuilt."""


def graph_key(weights_digest: str, config_digest: str, dtype: str = "float32", opset: int = OPSET) -> str:
    """Name of a graph in a cache: it changes with the weights, the contract, the opset and the exporter."""
    made_by = [CONTRACT_VERSION, EXPORTER_VERSION, dtype, opset, torch.__version__]
    return digest([weights_digest, config_digest, *made_by])[:16]


def cached_step_graph(name: str, key: str, load: Callable[[], tuple[Any, str]], opset: int = OPSET) -> Path:
    """Folder of a step graph, exported on first use. `load` returns the transformers model and the name of its
    cache argument; it is called only when the graph is missing."""
    folder = cache_root() / "graphs" / f"{name}-{key}"
    if not (folder / SIDE_FILE).exists():
        model, cache_argument = load()
        export_step_graph(model, folder, cache_argument, opset)
    return folder


def export_step_graph(
    model: Any,
    folder: Path,
    cache_argument: str,
    opset: int = OPSET,
    external_from_bytes: int = EXTERNAL_FROM_BYTES,
) -> StepGraph:
    """Write graph, embedding table, parity report and side file of a loaded transformers model to `folder`.

    The side file comes last and is written atomically: a folder without it is an unfinished export.
    Raises BadInput for a text side whose layers are not all full attention and for another precision than the
    contract's, ModelOutputError when the graph's numbers are not the model's (`exports.onnx_parity`).
    """
    config = model.config.get_text_config()
    if set(getattr(config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        raise BadInput(f"only full-attention layers can be exported, got {config.layer_types}")
    text, dtype = text_side(model), str(model.lm_head.weight.dtype).removeprefix("torch.")
    if dtype not in GRAPH_DTYPES:
        raise BadInput(f"a step graph is {', '.join(GRAPH_DTYPES)}, the model is {dtype}")
    facts = StepGraph(
        architecture=type(model).__name__,
        opset=opset,
        dtype=dtype,
        layers=len(text.layers),
        kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        hidden=config.hidden_size,
        vocab=model.lm_head.weight.shape[0],
        max_positions=config.max_position_embeddings,
        position_axes=3 if "mrope_section" in (getattr(config, "rope_parameters", None) or {}) else 1,
        deepstack_layers=min(deepstack_layers(model.config), len(text.layers)),
        files={},
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SIDE_FILE).unlink(missing_ok=True)
    external = sum(p.nbytes for p in Step(text, model.lm_head, cache_argument, 1).parameters()) >= external_from_bytes
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as unfinished:
        _export(model, facts, cache_argument, Path(unfinished), external)
        _write_embeddings(text, config.vocab_size, Path(unfinished) / EMBEDDINGS_FILE)
        for path in Path(unfinished).iterdir():
            shutil.move(path, folder / path.name)
    names = [GRAPH_FILE, EMBEDDINGS_FILE, *([WEIGHTS_FILE] if external else [])]
    graph = facts.model_copy(update={"files": {name: file_digest(folder / name) for name in names}})
    check_parity(model, graph, folder, cache_argument)
    write_json(folder / SIDE_FILE, graph)
    return graph


def deepstack_layers(config: Any) -> int:
    """Layers after which a family adds picture features to the hidden states; 0 for families that never do."""
    return len(getattr(getattr(config, "vision_config", None), "deepstack_visual_indexes", None) or ())


def _write_embeddings(text: Any, vocab: int, path: Path) -> None:
    """[vocab, hidden] in the graph's precision; bfloat16, which numpy lacks, as the bits of its values (uint16)."""
    with torch.inference_mode():
        table = text.get_input_embeddings()(torch.arange(vocab)).contiguous()
    np.save(path, (table.view(torch.uint16) if table.dtype == torch.bfloat16 else table).numpy())


def _export(model: Any, facts: StepGraph, cache_argument: str, folder: Path, external: bool) -> None:
    n, past = 3, 5  # n = 1 would be specialised away by the tracer
    text, dtype = text_side(model), model.lm_head.weight.dtype
    step = Step(text, model.lm_head, cache_argument, facts.position_axes)
    row = torch.zeros(past, facts.kv_heads, facts.head_dim, dtype=dtype)
    rows = {f"past_{kind}": [row.clone() for _ in range(facts.layers)] for kind in ("keys", "values")}
    arguments: dict[str, Any] = {
        EMBEDS: torch.zeros(1, n, facts.hidden),
        POSITIONS: torch.arange(past, past + n).expand(facts.position_axes, n).clone(),
        MASK: torch.zeros(1, 1, n, past + n),
        LOGIT_ROWS: torch.arange(n),
        DEEPSTACK: torch.zeros(facts.deepstack_layers, n, facts.hidden) if facts.deepstack_layers else None,
        **rows,
    }
    auto = torch.export.Dim.AUTO
    dynamic = {
        name: None
        if value is None
        else [{0: auto}] * facts.layers
        if isinstance(value, list)
        else dict.fromkeys(axis_names(name), auto)
        for name, value in arguments.items()
    }
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)  # it reports every torchvision operator that is not installed
    try:
        with torch.inference_mode(), warnings.catch_warnings(), traced_as(text, bool(facts.deepstack_layers)):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                step,
                tuple(arguments.values()),
                dynamo=True,
                opset_version=facts.opset,
                dynamic_shapes=dynamic,
                verbose=False,
                input_names=facts.inputs,
                output_names=facts.outputs,
            )
    finally:
        exporter_log.setLevel(level)
    path = folder / GRAPH_FILE
    program.save(path, external_data=external)
    # the weights of a large graph stay in their own file while its nodes are edited
    onnx.save(_divided_norms(_named_axes(_without_traces(onnx.load(path, load_external_data=False)))), path)


def _without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without the source lines that the exporter notes at every node: they name folders of this machine, and with
    them the same weights would be another file on another one."""
    graph = model.graph
    for part in [model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        del part.metadata_props[:]
        part.ClearField("doc_string")
    return model


def _named_axes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The tracer numbers its symbols; give the axes of inputs and outputs the contract's names."""
    for value in [*model.graph.input, *model.graph.output]:
        for axis, name in axis_names(value.name).items():
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
