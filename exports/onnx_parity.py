"""Numerical parity of a step graph with the model that it was exported from.

Contexts and trees are random; the model runs them the library's own way (its attention, its cache, its experts),
the graph runs them in ONNX Runtime by the contract. Compared are the logits and the new key/value rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from profiles.errors import ModelOutputError
from profiles.families import text_side
from profiles.frozen import Frozen
from profiles.graph_contract import (
    DEEPSTACK,
    EMBEDS,
    GRAPH_FILE,
    HIDDEN_SCORE,
    LOGIT_ROWS,
    MASK,
    PARITY_FILE,
    POSITIONS,
    GraphDtype,
    StepGraph,
    past_names,
)
from profiles.store import write_json
from runtime.policy.tree import ancestor_mask

Run = Callable[[dict[str, NDArray[Any]]], list[NDArray[Any]]]
TOLERANCE: dict[GraphDtype, float] = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Largest error that is rounding, relative to the largest value of the tensor."""
CASES = ((1, 2), (7, 5), (33, 16))
"""Pairs of context length and tree size; the context is run as a prefill (past 0) and compared as well."""


class ParityCase(Frozen):
    """One pass. Errors are the largest absolute difference, and that over the largest absolute value."""

    past: int
    n: int
    logits_abs: float
    logits_rel: float
    rows_abs: float
    rows_rel: float
    same_argmax: float
    """Share of rows whose most probable token is the same."""


class Parity(Frozen):
    """What a graph's numbers are worth. `engine` ran the graph, `reference` the model."""

    engine: str
    reference: str
    dtype: GraphDtype
    seed: int
    tolerance: float
    cases: tuple[ParityCase, ...]

    @property
    def worst(self) -> float:
        """Largest relative error of all cases, of logits and rows."""
        return max(max(case.logits_rel, case.rows_rel) for case in self.cases)


def check_parity(model: Any, graph: StepGraph, folder: Path, cache_argument: str, seed: int = 0) -> Parity:
    """Compare, and write `parity.json` beside the graph. Raises ModelOutputError when an error is more than
    rounding; the report is written all the same."""
    engine, run = _engine(graph, folder)
    rng = np.random.default_rng(seed)
    cases = [case for past, n in CASES for case in _compare(model, graph, run, cache_argument, rng, past, n)]
    report = Parity(
        engine=engine,
        reference=f"torch {torch.__version__}",
        dtype=graph.dtype,
        seed=seed,
        tolerance=TOLERANCE[graph.dtype],
        cases=tuple(cases),
    )
    write_json(folder / PARITY_FILE, report)
    if not report.worst <= report.tolerance:
        raise ModelOutputError(
            f"the graph's numbers must be the model's within {report.tolerance:g} of the largest value "
            f"({graph.dtype}), they differ by {report.worst:.3g}; see {folder / PARITY_FILE}"
        )
    return report


def _engine(graph: StepGraph, folder: Path) -> tuple[str, Run]:
    """ONNX Runtime on a graph, by name. It has no bfloat16 products on a CPU: such a graph runs as a copy whose
    weights and values are float32, which differs from the graph in rounding alone."""
    name = f"onnxruntime {ort.__version__}"
    if graph.dtype == "bfloat16":
        with tempfile.TemporaryDirectory(dir=folder, prefix=".widened-") as unfinished:
            path = Path(unfinished) / GRAPH_FILE
            onnx.save(_widened(onnx.load(folder / GRAPH_FILE)), path, save_as_external_data=True, location="weights")
            session = _session(path)
        name += " (bfloat16 widened to float32)"
    else:
        session = _session(folder / GRAPH_FILE)
    return name, lambda feed: session.run(graph.outputs, feed)


def _session(path: Path) -> Any:
    """A session on threads of its own, or on the process's shared ones where it has some: the engine allows only the
    one or the other, and cannot be asked which."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    providers = ["CPUExecutionProvider"]
    try:
        return ort.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    except RuntimeError:
        options.use_per_session_threads = False
        return ort.InferenceSession(str(path), options, providers=providers, enable_fallback=0)


def _widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with float32 wherever it has bfloat16."""
    narrow, wide = onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT

    def widen(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == narrow:
            tensor.CopyFrom(onnx.numpy_helper.from_array(_float32(onnx.numpy_helper.to_array(tensor)), tensor.name))

    graph = model.graph
    for value in [*graph.input, *graph.output, *graph.value_info]:
        if value.type.tensor_type.elem_type == narrow:
            value.type.tensor_type.elem_type = wide
    for tensor in graph.initializer:
        widen(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                widen(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == narrow:
                attribute.i = wide
    return model


def _compare(
    model: Any, graph: StepGraph, run: Run, cache_argument: str, rng: np.random.Generator, past: int, n: int
) -> list[ParityCase]:
    """A prefill of `past` rows, then a random tree of `n` nodes over the cache that the model made of it."""
    cache = DynamicCache()
    causal = np.tril(np.ones((past, past), dtype=np.bool_))
    parents = [-1, *(int(rng.integers(0, i)) for i in range(1, n))]
    tree = np.hstack([np.ones((n, past), dtype=np.bool_), ancestor_mask(parents)])
    depths = tree[:, past:].sum(axis=1) - 1
    cases, dtype = [], model.lm_head.weight.dtype
    for done, visible, positions in ((0, causal, np.arange(past)), (past, tree, past + depths)):
        size = len(visible)
        feed = _random_feed(model, graph, rng, visible, positions)
        # both sides are given the model's own cache, so errors do not add up over passes
        cached = [getattr(layer, side)[0].transpose(0, 1) for side in ("keys", "values") for layer in cache.layers]
        cached = cached or [torch.zeros(0, graph.kv_heads, graph.head_dim, dtype=dtype)] * (2 * graph.layers)
        got = run(feed | dict(zip(past_names(graph.layers), (_numpy(rows) for rows in cached), strict=True)))
        logits = _model_pass(model, graph, feed, {cache_argument: cache})
        rows = [getattr(layer, side)[0].transpose(0, 1)[done:] for side in ("keys", "values") for layer in cache.layers]
        errors = [_error(one, _numpy(other)) for one, other in zip(got[1:], rows, strict=True)]
        logits_abs, logits_rel = _error(got[0], logits)
        cases.append(
            ParityCase(
                past=done,
                n=size,
                logits_abs=logits_abs,
                logits_rel=logits_rel,
                rows_abs=max(error for error, _ in errors),
                rows_rel=max(relative for _, relative in errors),
                same_argmax=float((got[0].argmax(-1) == logits.argmax(-1)).mean()),
            )
        )
    return cases


def _random_feed(
    model: Any, graph: StepGraph, rng: np.random.Generator, visible: NDArray[np.bool_], positions: NDArray[np.int64]
) -> dict[str, NDArray[Any]]:
    """Embeddings of random tokens; in a prefill every other row is a picture's: its height and width go their own
    way, and DeepStack adds to it."""
    n, picture = len(visible), (np.arange(len(visible)) % 2 == 1) & (visible.shape[1] == len(visible))
    with torch.inference_mode():
        table = text_side(model).get_input_embeddings()
        embeds = table(torch.from_numpy(rng.integers(0, table.num_embeddings, size=n))).float().numpy()
    axes = np.tile(positions, (graph.position_axes, 1))
    axes[1:, picture] += rng.integers(-3, 4, size=(graph.position_axes - 1, picture.sum()))
    feed = {
        EMBEDS: embeds[None],
        POSITIONS: np.maximum(axes, 0),
        MASK: np.where(visible, 0.0, HIDDEN_SCORE).astype(np.float32)[None, None],
        LOGIT_ROWS: np.arange(n),
    }
    if graph.deepstack_layers:
        scale = np.abs(embeds).mean() * picture[:, None]
        feed[DEEPSTACK] = (rng.standard_normal((graph.deepstack_layers, n, graph.hidden)) * scale).astype(np.float32)
    return feed


def _model_pass(model: Any, graph: StepGraph, feed: dict[str, NDArray[Any]], cache: dict[str, Any]) -> NDArray[Any]:
    """[n, vocab] float32 logits of the model itself; its cache grows by the rows."""
    text, head = text_side(model), model.lm_head
    dtype = head.weight.dtype
    positions = torch.from_numpy(feed[POSITIONS])
    mask = torch.from_numpy(feed[MASK])
    extra = {}
    if graph.deepstack_layers:
        features = torch.from_numpy(feed[DEEPSTACK]).to(dtype)
        picture = features.abs().sum(dim=(0, 2)) > 0
        if picture.any():
            extra = {"visual_pos_masks": picture[None], "deepstack_visual_embeds": list(features[:, picture])}
    with torch.inference_mode():
        out = text(
            inputs_embeds=torch.from_numpy(feed[EMBEDS]).to(dtype),
            position_ids=positions if graph.position_axes == 1 else positions[:, None],
            attention_mask=mask.clamp(min=torch.finfo(dtype).min).to(dtype),
            use_cache=True,
            **extra,
            **cache,
        )
        logits: NDArray[Any] = head(out.last_hidden_state[0]).float().numpy()
    return logits


def _numpy(rows: torch.Tensor) -> NDArray[Any]:
    """Cached rows as the engine takes them: bfloat16, which numpy lacks, as float32."""
    exact: NDArray[Any] = (rows.float() if rows.dtype == torch.bfloat16 else rows).contiguous().numpy()
    return exact


def _float32(array: NDArray[Any]) -> NDArray[np.float32]:
    return array.astype(np.float32)


def _error(got: NDArray[Any], expected: NDArray[Any]) -> tuple[float, float]:
    """Largest absolute difference, and that over the largest absolute value expected."""
    largest = float(np.abs(_float32(got) - _float32(expected)).max())
    return largest, largest / max(float(np.abs(_float32(expected)).max()), 1e-9)
