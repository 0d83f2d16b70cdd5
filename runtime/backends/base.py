"""What an inference engine must offer: a model that opens sessions, and sessions that run masked passes.

A session is one sequence's cache plus the passes over it. `forward` appends one cache row per token; `keep`
drops the rows that were not accepted. That is all a backend knows of speculation: trees, policies and
acceptance live above. `tests/conformance.py` is the kit that every backend must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from profiles.errors import BadInput, CapacityError, ModelOutputError
from profiles.sampling import SamplingRegime
from runtime import filters
from runtime.policy.tree import BoolArray, FloatArray, IntArray
from runtime.prompts import Prompt


@dataclass(frozen=True)
class ModelFiles:
    """Where a model is and how to run it."""

    source: str
    """Local folder or hub id."""
    revision: str | None
    dtype: str
    device: str
    threads: int
    graph_folder: Path | None = None
    """Folder of the exported step graph, or of the engine built from it, for backends that need one."""
    device_map: str | None = None
    """How transformers spreads the layers over devices; None puts the model on `device` alone."""


class Rows(ABC):
    """Logits of the rows of one pass, read on demand so that an engine may keep them on its device."""

    @abstractmethod
    def argmax(self) -> IntArray:
        """[n] most probable token of every row. Raises ModelOutputError on NaN."""

    @abstractmethod
    def top(self, k: int) -> tuple[IntArray, FloatArray]:
        """Tokens [n, k] and log-probabilities [n, k] (float32), best first. Raises ModelOutputError on NaN."""

    @abstractmethod
    def row(self, i: int) -> Rows:
        """One row alone, so that reading it costs nothing for the others."""

    @abstractmethod
    def penalised(self, rows: IntArray, tokens: IntArray, penalty: float) -> Rows:
        """With a repetition penalty on the (row, token) pairs."""

    @abstractmethod
    def perturbed(self, regime: SamplingRegime, noise: FloatArray) -> Rows:
        """(logits after temperature and filters + `noise` [n, vocab]) / lambda. Raises ModelOutputError on NaN."""

    @abstractmethod
    def logits(self) -> FloatArray:
        """[n, vocab] float32."""


@final
class NumpyRows(Rows):
    """Rows that already are on the host."""

    def __init__(self, logits: FloatArray) -> None:
        self._logits = logits

    def argmax(self) -> IntArray:
        best: IntArray = self._logits.argmax(axis=-1)
        # numpy's argmax stops at the first NaN, so the value there tells whether the row has one
        if not np.isfinite(self._logits[np.arange(len(best)), best]).all():
            raise ModelOutputError("the model produced logits that are not finite; the pass cannot be trusted")
        return best

    def top(self, k: int) -> tuple[IntArray, FloatArray]:
        logits = self._logits
        peak = logits.max(axis=-1, keepdims=True)
        if not np.isfinite(peak).all():
            raise ModelOutputError("the model produced logits that are not finite; the pass cannot be trusted")
        normaliser = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=-1))
        vocab = logits.shape[-1]
        row = np.arange(len(logits))[:, None]
        some = np.argpartition(logits, vocab - k, axis=-1)[:, vocab - k :] if k < vocab else row * 0 + np.arange(vocab)
        values = logits[row, some]
        # equal logits keep the order of their ids
        order = np.lexsort((some, -values), axis=-1)
        tokens, values = some[row, order], values[row, order]
        return tokens, np.minimum(values - normaliser[:, None], np.float32(0.0))

    def row(self, i: int) -> Rows:
        return NumpyRows(self._logits[i : i + 1])

    def penalised(self, rows: IntArray, tokens: IntArray, penalty: float) -> Rows:
        return NumpyRows(filters.penalised(self._logits, rows, tokens, penalty))

    def perturbed(self, regime: SamplingRegime, noise: FloatArray) -> Rows:
        if not np.isfinite(self._logits.max(axis=-1)).all():
            raise ModelOutputError("the model produced logits that are not finite; the pass cannot be trusted")
        return NumpyRows(filters.perturbed(self._logits, regime, noise))

    def logits(self) -> FloatArray:
        return self._logits


class Session(ABC):
    """One sequence on one model. `length` counts the cache rows, committed and drafted."""

    length: int
    capacity: int

    @final
    def forward(self, tokens: Sequence[int] | IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        """Run n tokens at absolute `positions` [n]; `visible` [n, length + n] says what each may attend to.

        Returns when the device is done. The n new cache rows are appended. Raises CapacityError when they
        do not fit.
        """
        n = len(tokens)
        if self.length + n > self.capacity:
            raise CapacityError(
                f"cache rows <= capacity must hold, got {self.length} + {n} rows for a capacity of {self.capacity}"
            )
        if visible.shape != (n, self.length + n):
            raise ValueError(f"visible must be [{n}, {self.length + n}], got {list(visible.shape)}")
        rows = self._run(np.asarray(tokens, dtype=np.int64), positions, visible)
        self.length += n
        return rows

    @final
    def keep(self, base: int, rows: Sequence[int]) -> None:
        """Keep the first `base` cache rows and, of those after, the offsets `rows` (ascending), in order."""
        if not 0 <= base <= self.length or any(not 0 <= r < self.length - base for r in rows):
            raise ValueError(f"rows {list(rows)} after {base} are not all within the {self.length} cached")
        if any(b <= a for a, b in pairwise(rows)):
            raise ValueError(f"rows must ascend, got {list(rows)}")
        self._compact(base, list(rows))
        self.length = base + len(rows)

    def prompt_attention(self, prompt: Prompt) -> FloatArray:
        """[L] attention that the text after a prompt's last picture pays to each of its rows, mean over layers,
        heads and queries. The session must have been opened with this prompt.

        Raises BadInput for an engine that gives no attention weights.
        """
        raise BadInput(
            "this engine gives no attention weights: verifier-guided pruning needs the torch backend, uniform pruning "
            "works on every one"
        )

    @abstractmethod
    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        """The pass itself; `length` is still the number of rows before it."""

    @abstractmethod
    def _compact(self, base: int, rows: list[int]) -> None:
        """Move the kept rows to `base`; `length` is updated by the caller."""


class Model(ABC):
    """Loaded weights. Opening a session is the only way to run them."""

    backend: str
    backend_version: str
    dtype: str
    vocab_size: int
    token_limit: int
    """Ids from here on are never proposed: padding of the head, or unknown to the other model."""
    max_positions: int
    gives_attention: bool = False
    """Whether its sessions answer `prompt_attention`."""
    device_map: str | None = None
    """How its layers were spread over devices, None for a model on one device."""
    devices: int = 1
    """Devices that its layers are on."""

    @abstractmethod
    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        """Prefill a prompt; returns the session and the logits of the prompt's last position ([1, vocab]). The
        session holds `prompt.rows` rows: those that a prompt leaves out never enter the decoder, and the others keep
        their positions.

        `capacity` bounds the cache rows, `positions` the positions that will be used. Nodes of a tree share
        positions, so there may be fewer of them; without it every row counts as one. Raises CapacityError when
        the prompt does not fit, or the positions exceed `max_positions`.
        """

    @final
    def check_capacity(self, prompt_tokens: int, capacity: int, positions: int | None) -> None:
        longest = capacity if positions is None else positions
        if longest > self.max_positions:
            raise CapacityError(
                f"prompt + new tokens + tree depth <= maximal positions of the model must hold, got {longest} > "
                f"{self.max_positions}"
            )
        if prompt_tokens > capacity:
            raise CapacityError(f"the prompt has {prompt_tokens} tokens, the cache holds {capacity}")


def causal(n: int, past: int) -> BoolArray:
    """[n, past + n] visibility of n consecutive tokens after `past` rows."""
    mask: npt.NDArray[np.bool_] = np.arange(past + n) <= np.arange(past, past + n)[:, None]
    return mask
