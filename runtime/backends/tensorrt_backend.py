"""TensorRT over a built engine (`profiles.engine_contract`): persistent device buffers, one CUDA graph per size.

Every pass is padded to a size that the engine was tuned for, and its context to a multiple of `CONTEXT_STEP`, so that
the rounds of a request repeat a small set of passes whose buffers never move: each is captured once and replayed.
Caches are kept and lent to one session after another for the same reason.
"""

from __future__ import annotations

import weakref
from typing import final

import numpy as np
import torch

from profiles.engine_contract import CONTEXT_STEP, read_engine
from profiles.errors import BadInput, CapacityError
from profiles.graph_contract import LOGIT_ROWS, LOGITS, POSITIONS, new_names, past_names
from runtime.backends.base import Model, ModelFiles, Rows, Session, causal
from runtime.backends.step_inputs import StepInputs
from runtime.backends.tensorrt_plan import PlanRunner
from runtime.backends.torch_backend import TorchRows
from runtime.policy.tree import BoolArray, FloatArray, IntArray
from runtime.prompts import EmbeddedPrompt, Prompt


@final
class TensorrtSession(Session):
    def __init__(self, owner: TensorrtModel, capacity: int, rope_delta: int) -> None:
        self.length, self.capacity = 0, capacity
        self._owner, self._rope_delta = owner, rope_delta
        self._slot = owner.take_slot()
        weakref.finalize(self, owner.free.append, self._slot)

    def prefill(self, prompt: EmbeddedPrompt) -> Rows:
        """Run a prompt into the empty cache, piece by piece; logits of its last position only."""
        owner, n = self._owner, len(prompt)
        logits = torch.empty(0)
        for start in range(0, n, owner.piece):
            rows = np.arange(start, min(start + owner.piece, n))
            part, last = prompt.subset(rows), np.array([len(rows) - 1])
            mask = causal(len(rows), start)
            logits = owner.run(
                len(owner.sizes), self._slot, start, part.embeds, part.positions, mask, last, part.deepstack
            )
        self.length = n
        return TorchRows(logits[:, : owner.token_limit])

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        owner, past, largest = self._owner, self.length, self._owner.sizes[-1]
        parts = []
        for start in range(0, len(tokens), largest):
            end = min(start + largest, len(tokens))
            if visible[start:end, past + end :].any():
                raise ValueError("a token may only see tokens before it: passes in pieces cannot look ahead")
            profile = next(i for i, size in enumerate(owner.sizes) if size >= end - start)
            logits = owner.run(
                profile,
                self._slot,
                past + start,
                owner.inputs.tokens(tokens[start:end]),
                positions[start:end] + self._rope_delta,
                visible[start:end, : past + end],
                np.arange(end - start),
            )
            parts.append(logits[:, : owner.token_limit])
        return TorchRows(torch.cat(parts))

    def _compact(self, base: int, rows: list[int]) -> None:
        if rows != list(range(len(rows))):
            cache = self._owner.slots[self._slot]
            index = torch.tensor(rows, device=cache.device) + base
            cache[:, base : base + len(rows)] = cache.index_select(1, index)


@final
class TensorrtModel(Model):
    """A plan with its embedding table; pictures are embedded by the family's own vision code."""

    backend = "tensorrt"

    def __init__(self, files: ModelFiles) -> None:
        """Raises BadInput without an engine folder or for another precision, HardwareMissing as `PlanRunner` does."""
        if files.graph_folder is None:
            raise BadInput(f"the tensorrt backend needs a built engine of {files.source}")
        record = read_engine(files.graph_folder)
        graph = record.graph
        self.inputs = StepInputs(files, graph, files.graph_folder)
        self.runner = PlanRunner(record, files.graph_folder, files.device)
        self.backend_version = f"{record.builder} {record.builder_version}"
        self.dtype = files.dtype
        self.vocab_size = self.token_limit = graph.vocab
        self.max_past = record.max_past
        self.max_positions = min(graph.max_positions, record.max_past)
        self.sizes, self.piece = record.step_sizes, record.shapes[-1].n[2]
        self.slots: list[torch.Tensor] = []
        """[2 * layers, rows, heads, dim] caches; keys of all layers first."""
        self.free: list[int] = []
        """Numbers of the caches that no session holds."""
        # every tensor of a pass is the head of a buffer that is as long as the largest pass needs
        largest, kinds = max(*self.sizes, self.piece), {POSITIONS: torch.int64, LOGIT_ROWS: torch.int64}
        self._buffers = {
            name: torch.zeros(
                int(np.prod(graph.shape(name, largest, self.sizes[-1], self.max_past))),
                dtype=kinds.get(name, torch.float32),
                device=self.runner.device,
            )
            for name in (*graph.inputs, LOGITS)
            if not name.startswith("past_")
        }
        row = 2 * graph.layers * graph.kv_heads * graph.head_dim
        self._new_rows = torch.zeros(largest * row, dtype=getattr(torch, graph.dtype), device=self.runner.device)

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        self.check_capacity(prompt.rows, capacity, positions)
        if capacity > self.max_past:
            raise CapacityError(f"cache rows <= rows of the engine must hold, got {capacity} > {self.max_past}")
        embedded = self.inputs.prompt(prompt)
        session = TensorrtSession(self, capacity, embedded.rope_delta)
        return session, session.prefill(embedded)

    def take_slot(self) -> int:
        """Number of a cache that no other session holds; a new one when all are lent."""
        if not self.free:
            graph = self.inputs.graph
            shape = (2 * graph.layers, self.max_past, graph.kv_heads, graph.head_dim)
            # zeros: a hidden row has weight 0, but 0 times a NaN that is left in memory is none
            self.slots.append(torch.zeros(shape, dtype=getattr(torch, graph.dtype), device=self.runner.device))
            return len(self.slots) - 1
        number = self.free.pop()
        self.slots[number].zero_()
        return number

    def run(
        self,
        profile: int,
        slot: int,
        past: int,
        embeds: FloatArray,
        positions: IntArray,
        visible: BoolArray,
        logit_rows: IntArray,
        deepstack: FloatArray | None = None,
    ) -> torch.Tensor:
        """One padded pass of n tokens over `past` rows of a cache, which gains theirs; [m, vocab] logits."""
        graph, n, m = self.inputs.graph, len(embeds), len(logit_rows)
        step = profile < len(self.sizes)
        size = self.sizes[profile] if step else n
        context = max(-(-past // CONTEXT_STEP), 1) * CONTEXT_STEP
        added = size - n
        mask = np.zeros((size, context + size), dtype=np.bool_)
        mask[:n, :past], mask[:n, context : context + n] = visible[:, :past], visible[:, past:]
        # a padding row sees itself: a row that sees nothing would be an average over everything
        mask[np.arange(n, size), context + np.arange(n, size)] = True
        feed = self.inputs.feed(
            np.pad(embeds, ((0, added), (0, 0))),
            np.pad(np.broadcast_to(positions, (graph.position_axes, n)), ((0, 0), (0, added))),
            mask,
            np.pad(logit_rows, (0, added)) if step else logit_rows,
            None if deepstack is None else np.pad(deepstack, ((0, 0), (0, added), (0, 0))),
        )
        rows = size if step else m
        tensors = {name: self._view(name, graph.shape(name, size, rows, context)) for name in self._buffers}
        for name, value in feed.items():
            tensors[name].copy_(torch.from_numpy(value))
        cache, row = self.slots[slot], (graph.kv_heads, graph.head_dim)
        new = self._new_rows[: 2 * graph.layers * size * row[0] * row[1]].view(2 * graph.layers, size, *row)
        tensors |= {name: cache[i, :context] for i, name in enumerate(past_names(graph.layers))}
        tensors |= {name: new[i] for i, name in enumerate(new_names(graph.layers))}
        self.runner.run(profile, tensors, (slot, profile, context) if step else None)
        cache[:, past : past + n] = new[:, :n]
        # the buffer is overwritten by the next pass, which may come before these logits are read
        logits = tensors[LOGITS][:m].clone()
        self.runner.synchronize()
        return logits

    def _view(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return self._buffers[name][: int(np.prod(shape))].view(shape)
