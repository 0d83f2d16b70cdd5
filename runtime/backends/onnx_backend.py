"""ONNX Runtime over an exported step graph (`profiles.graph_contract`): the default engine on a CPU.

The cache is one sequence-first buffer per layer: its past rows are a contiguous block that the engine reads in
place, and only the n new rows of a pass are written behind them. Nothing that is cached is ever copied.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
import onnxruntime as ort

from profiles.errors import BadInput, HardwareMissing
from profiles.graph_contract import GRAPH_FILE, past_names, read_graph
from runtime.backends.base import Model, ModelFiles, NumpyRows, Rows, Session, causal
from runtime.backends.step_inputs import StepInputs
from runtime.policy.tree import BoolArray, FloatArray, IntArray
from runtime.prompts import EmbeddedPrompt, Prompt


@final
class OnnxSession(Session):
    def __init__(self, owner: OnnxModel, capacity: int, rope_delta: int) -> None:
        graph = owner.inputs.graph
        self.length, self.capacity = 0, capacity
        self._owner, self._rope_delta = owner, rope_delta
        # [key/value of every layer, capacity, heads, dim]; filled so that no page is touched first in a timed pass
        self._cache = np.full((2 * graph.layers, capacity, graph.kv_heads, graph.head_dim), 0.0, dtype=np.float32)
        self._layers = list(self._cache)

    def prefill(self, prompt: EmbeddedPrompt, visible: BoolArray) -> Rows:
        """Run a prompt into the empty cache; logits of its last position only."""
        n = len(prompt)
        rows = self.run_embeds(prompt.embeds, prompt.positions, visible, np.array([n - 1]), prompt.deepstack)
        self.length = n
        return rows

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        embeds = self._owner.inputs.tokens(tokens)
        return self.run_embeds(embeds, positions + self._rope_delta, visible, np.arange(len(tokens)))

    def run_embeds(
        self,
        embeds: FloatArray,
        positions: IntArray,
        visible: BoolArray,
        logit_rows: IntArray,
        deepstack: FloatArray | None = None,
    ) -> Rows:
        """One graph run over embeddings [n, hidden] at rotary positions [n] or [axes, n]; logits of `logit_rows`."""
        owner, past, n = self._owner, self.length, len(embeds)
        feed = owner.inputs.feed(embeds, positions, visible, logit_rows, deepstack)
        for name, rows in zip(owner.past, self._layers, strict=True):
            feed[name] = rows[:past]  # a contiguous view: the engine reads it in place
        logits, *new_rows = owner.engine.run(owner.inputs.graph.outputs, feed)
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
        graph = read_graph(files.graph_folder)
        self.inputs = StepInputs(files, graph, files.graph_folder)
        self.vocab_size = self.token_limit = graph.vocab
        self.max_positions = graph.max_positions
        self.past = past_names(graph.layers)
        share_threads(files.threads)
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        options.enable_mem_pattern = False  # contexts grow every round: a plan per shape would never be used again
        self.engine: Any = ort.InferenceSession(
            str(files.graph_folder / GRAPH_FILE), options, providers=["CPUExecutionProvider"]
        )

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        self.check_capacity(prompt.rows, capacity, positions)
        embedded = self.inputs.prompt(prompt)
        session = OnnxSession(self, capacity, embedded.rope_delta)
        return session, session.prefill(embedded, causal(len(embedded), 0))


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
