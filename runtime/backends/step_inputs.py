"""What an engine feeds to a step graph (`profiles.graph_contract`): token embeddings, prompts, positions, masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from profiles.errors import BadInput
from profiles.graph_contract import (
    DEEPSTACK,
    EMBEDDINGS_FILE,
    EMBEDS,
    HIDDEN_SCORE,
    LOGIT_ROWS,
    MASK,
    POSITIONS,
    StepGraph,
)
from runtime.backends.base import ModelFiles
from runtime.policy.tree import BoolArray, FloatArray, IntArray
from runtime.prompts import EmbeddedPrompt, Prompt

VISIBLE, HIDDEN = np.float32(0.0), np.float32(HIDDEN_SCORE)


class StepInputs:
    """The embedding table of a graph folder; pictures are embedded by the family's own vision code in torch, which
    is loaded with the first prompt that has one."""

    def __init__(self, files: ModelFiles, graph: StepGraph, folder: Path) -> None:
        """Raises BadInput when the graph in `folder` has another precision than was asked for."""
        if graph.dtype != files.dtype:
            raise BadInput(f"the step graph in {folder} is {graph.dtype}, {files.dtype} was asked for")
        self.graph = graph
        self._files = files
        self._table = read_embeddings(folder, graph)
        self._embedder: Any = None

    def tokens(self, ids: IntArray) -> FloatArray:
        """[n] token ids -> [n, hidden]."""
        return self._table[ids]

    def prompt(self, prompt: Prompt) -> EmbeddedPrompt:
        """The rows of a prompt that enter the decoder."""
        whole = self._whole(prompt)
        return whole if prompt.kept is None else whole.subset(prompt.kept)

    def _whole(self, prompt: Prompt) -> EmbeddedPrompt:
        if not prompt.vision:
            positions = np.tile(np.arange(len(prompt)), (self.graph.position_axes, 1))
            return EmbeddedPrompt(self.tokens(prompt.input_ids), positions)
        if self._embedder is None:
            import torch

            from runtime.backends.torch_backend import load_transformers
            from runtime.vision import PromptEmbedder

            if self._files.device == "cpu":
                torch.set_num_threads(self._files.threads)
            self._embedder = PromptEmbedder(load_transformers(self._files), self._files.device)
        embedded: EmbeddedPrompt = self._embedder(prompt)
        return embedded

    def feed(
        self,
        embeds: FloatArray,
        positions: IntArray,
        visible: BoolArray,
        logit_rows: IntArray,
        deepstack: FloatArray | None = None,
    ) -> dict[str, Any]:
        """Inputs of one pass but for the cache. Shapes: embeds [n, hidden]; positions [n], or [axes, n] where the
        axes differ; visible [n, past + n]; deepstack [layers, n, hidden], None for zeros."""
        graph, n = self.graph, len(embeds)
        feed = {
            EMBEDS: embeds[None],
            POSITIONS: np.array(np.broadcast_to(positions, (graph.position_axes, n))),
            MASK: np.where(visible, VISIBLE, HIDDEN)[None, None],
            LOGIT_ROWS: logit_rows,
        }
        if graph.deepstack_layers:
            shape = (graph.deepstack_layers, n, graph.hidden)
            # a truncated model takes the features of the layers that it has
            feed[DEEPSTACK] = np.zeros(shape, np.float32) if deepstack is None else deepstack[: shape[0]]
        return feed


def read_embeddings(folder: Path, graph: StepGraph) -> FloatArray:
    """[vocab, hidden] float32. A bfloat16 table is stored as the bits of its values: the upper half of a float32."""
    table = np.load(folder / EMBEDDINGS_FILE)
    if graph.dtype == "bfloat16":
        table = (table.astype(np.uint32) << 16).view(np.float32)
    embeddings: FloatArray = table.astype(np.float32, copy=False)
    return embeddings
