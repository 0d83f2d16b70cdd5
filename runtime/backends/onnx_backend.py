"""ONNX Runtime over an exported step graph (`profiles.graph_contract`): the default engine on a CPU.

The cache is one sequence-first buffer per layer; past rows are bound by pointer and new rows are written by
the graph right behind them, so a pass copies nothing of what is already cached.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
import onnxruntime as ort

from profiles.errors import BadInput, HardwareMissing, ProfileError
from profiles.graph_contract import (
    CONTRACT_VERSION,
    EMBEDDINGS_FILE,
    EMBEDS,
    GRAPH_FILE,
    HIDDEN_SCORE,
    LOGIT_ROWS,
    LOGITS,
    MASK,
    POSITIONS,
    SIDE_FILE,
    StepGraph,
    new_names,
    past_names,
)
from profiles.provenance import file_digest
from profiles.store import read_json
from runtime.backends.base import Model, ModelFiles, NumpyRows, Rows, Session, causal
from runtime.policy.tree import BoolArray, FloatArray, IntArray
from runtime.prompts import Prompt


@final
class OnnxSession(Session):
    def __init__(self, owner: OnnxModel, capacity: int) -> None:
        graph = owner.graph
        self.length, self.capacity = 0, capacity
        self._owner = owner
        # [key/value of every layer, capacity, heads, dim]; filled so that no page is touched first in a timed pass
        self._cache = np.full((2 * graph.layers, capacity, graph.kv_heads, graph.head_dim), 0.0, dtype=np.float32)
        self._row_bytes = graph.kv_heads * graph.head_dim * 4
        self._starts = [self._cache[i].ctypes.data for i in range(2 * graph.layers)]

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        return self.run_embeds(self._owner.embeddings[tokens], positions, visible, np.arange(len(tokens)))

    def run_embeds(self, embeds: FloatArray, positions: IntArray, visible: BoolArray, logit_rows: IntArray) -> Rows:
        """One graph run over embeddings [n, hidden]; logits of `logit_rows` only."""
        owner, past, n = self._owner, self.length, len(embeds)
        graph = owner.graph
        mask = np.where(visible, np.float32(0.0), np.float32(HIDDEN_SCORE))
        logits = np.empty((len(logit_rows), graph.vocab), dtype=np.float32)
        binding = owner.engine.io_binding()
        for name, array in ((EMBEDS, embeds[None]), (MASK, mask[None, None])):
            binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        positions, logit_rows = np.ascontiguousarray(positions, np.int64), np.ascontiguousarray(logit_rows)
        for name, ids in ((POSITIONS, positions[None]), (LOGIT_ROWS, logit_rows)):
            binding.bind_input(name, "cpu", 0, np.int64, ids.shape, ids.ctypes.data)
        past_shape, new_shape = (
            (past, graph.kv_heads, graph.head_dim),
            (n, graph.kv_heads, graph.head_dim),
        )
        offset = past * self._row_bytes
        for past_name, new_name, start in zip(owner.past, owner.new, self._starts, strict=True):
            binding.bind_input(past_name, "cpu", 0, np.float32, past_shape, start)
            binding.bind_output(new_name, "cpu", 0, np.float32, new_shape, start + offset)
        binding.bind_output(LOGITS, "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        owner.engine.run_with_iobinding(binding)
        return NumpyRows(logits[:, : owner.token_limit])

    def _compact(self, base: int, rows: list[int]) -> None:
        if rows != list(range(len(rows))):
            self._cache[:, base : base + len(rows)] = self._cache[:, [base + row for row in rows]]


@final
class OnnxModel(Model):
    """A step graph with its embedding table; pictures are embedded by the family's own vision code."""

    backend = "onnx"
    backend_version = ort.__version__

    def __init__(self, files: ModelFiles) -> None:
        if files.device != "cpu":
            raise HardwareMissing(f"the onnx backend runs on the CPU, '{files.device}' was asked for")
        if files.dtype != "float32":
            raise BadInput(f"the onnx backend runs float32, '{files.dtype}' was asked for")
        if files.graph_folder is None:
            raise BadInput(f"the onnx backend needs the exported step graph of {files.source}")
        self.dtype = files.dtype
        self.graph = read_graph(files.graph_folder)
        self.vocab_size = self.token_limit = self.graph.vocab
        self.max_positions = self.graph.max_positions
        self.past, self.new = past_names(self.graph.layers), new_names(self.graph.layers)
        self.embeddings: FloatArray = np.load(files.graph_folder / EMBEDDINGS_FILE)
        options = ort.SessionOptions()
        options.intra_op_num_threads = files.threads
        options.inter_op_num_threads = 1
        # two models share the cores: a pool that spins while the other one runs would steal its time
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.engine: Any = ort.InferenceSession(
            str(files.graph_folder / GRAPH_FILE), options, providers=["CPUExecutionProvider"]
        )
        self._files = files
        self._embedder: Any = None

    def open(self, prompt: Prompt, capacity: int) -> tuple[Session, Rows]:
        self.check_capacity(len(prompt), capacity)
        session = OnnxSession(self, capacity)
        n = len(prompt)
        rows = session.run_embeds(self._embed(prompt), np.arange(n), causal(n, 0), np.array([n - 1]))
        session.length = n
        return session, rows

    def _embed(self, prompt: Prompt) -> FloatArray:
        if not prompt.vision:
            return self.embeddings[prompt.input_ids]
        if self._embedder is None:
            from runtime.backends.torch_backend import load_transformers
            from runtime.vision import PromptEmbedder

            self._embedder = PromptEmbedder(load_transformers(self._files))
        embeds: FloatArray = self._embedder(prompt)
        return embeds


def read_graph(folder: Path) -> StepGraph:
    """Side file of a graph folder, with every named file present and unchanged. Raises ProfileError."""
    graph = read_json(folder / SIDE_FILE, StepGraph)
    if graph.contract != CONTRACT_VERSION:
        raise ProfileError(f"{folder} has graph contract {graph.contract}, this release reads {CONTRACT_VERSION}")
    for name, saved in graph.files.items():
        if not (folder / name).exists():
            raise ProfileError(f"{folder} is incomplete: {name} is missing")
        if file_digest(folder / name) != saved:
            raise ProfileError(f"{folder / name} was changed since it was exported; delete the folder to rebuild")
    return graph
