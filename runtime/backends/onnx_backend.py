"""ONNX Runtime over an exported step graph (`profiles.graph_contract`): the default engine on a CPU.

The cache is one sequence-first buffer per layer: its past rows are a contiguous block that the engine reads in
place, and only the n new rows of a pass are written behind them. Nothing that is cached is ever copied.
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

VISIBLE, HIDDEN = np.float32(0.0), np.float32(HIDDEN_SCORE)


@final
class OnnxSession(Session):
    def __init__(self, owner: OnnxModel, capacity: int) -> None:
        graph = owner.graph
        self.length, self.capacity = 0, capacity
        self._owner = owner
        # [key/value of every layer, capacity, heads, dim]; filled so that no page is touched first in a timed pass
        self._cache = np.full((2 * graph.layers, capacity, graph.kv_heads, graph.head_dim), 0.0, dtype=np.float32)
        self._layers = list(self._cache)

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        return self.run_embeds(self._owner.embeddings[tokens], positions, visible, np.arange(len(tokens)))

    def run_embeds(self, embeds: FloatArray, positions: IntArray, visible: BoolArray, logit_rows: IntArray) -> Rows:
        """One graph run over embeddings [n, hidden]; logits of `logit_rows` only."""
        owner, past, n = self._owner, self.length, len(embeds)
        feed: dict[str, Any] = {
            EMBEDS: embeds[None],
            POSITIONS: positions[None],
            MASK: np.where(visible, VISIBLE, HIDDEN)[None, None],
            LOGIT_ROWS: logit_rows,
        }
        for name, rows in zip(owner.past, self._layers, strict=True):
            feed[name] = rows[:past]  # a contiguous view: the engine reads it in place
        logits, *new_rows = owner.engine.run(owner.outputs, feed)
        for rows, new in zip(self._layers, new_rows, strict=True):
            rows[past : past + n] = new
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
        self.past = past_names(self.graph.layers)
        self.outputs = [LOGITS, *new_names(self.graph.layers)]
        self.embeddings: FloatArray = np.load(files.graph_folder / EMBEDDINGS_FILE)
        share_threads(files.threads)
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        options.enable_mem_pattern = False  # contexts grow every round: a plan per shape would never be used again
        self.engine: Any = ort.InferenceSession(
            str(files.graph_folder / GRAPH_FILE), options, providers=["CPUExecutionProvider"]
        )
        self._files = files
        self._embedder: Any = None

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        self.check_capacity(prompt.rows, capacity, positions)
        session, n = OnnxSession(self, capacity), prompt.rows
        embeds, kept = self._embed(prompt), np.arange(n)
        if prompt.kept is not None:
            embeds, kept = embeds[prompt.kept], prompt.kept
        rows = session.run_embeds(embeds, kept, causal(n, 0), np.array([n - 1]))
        session.length = n
        return session, rows

    def _embed(self, prompt: Prompt) -> FloatArray:
        if not prompt.vision:
            return self.embeddings[prompt.input_ids]
        if self._embedder is None:
            import torch

            from runtime.backends.torch_backend import load_transformers
            from runtime.vision import PromptEmbedder

            torch.set_num_threads(self._files.threads)
            self._embedder = PromptEmbedder(load_transformers(self._files))
        embeds: FloatArray = self._embedder(prompt)
        return embeds


_shared_threads: int | None = None


def share_threads(threads: int) -> None:
    """One thread pool for all sessions of the process. With a pool each, target and draft would spin against
    each other on the same cores (measured: passes up to four times slower).

    Raises BadInput when the pool already has another size, which the engine cannot change.
    """
    global _shared_threads
    if _shared_threads is None:
        ort.set_global_thread_pool_sizes(threads, 1)
        _shared_threads = threads
    if _shared_threads != threads:
        raise BadInput(
            f"ONNX Runtime has one thread pool per process, here of {_shared_threads} threads; {threads} asked for"
        )


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
