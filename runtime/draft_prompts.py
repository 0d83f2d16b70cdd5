"""A draft that reads pictures by rules of its own: other tiles, or another number of placeholders per tile.

Everything above a session counts cache rows by the target's prompt. The session here answers as if the draft's
prompt were just as long, and shifts rows and positions by the difference. Every later token sees the whole prompt
in both countings, so nothing is lost.
"""

from __future__ import annotations

from typing import final

import numpy as np

from runtime.backends.base import Model, Rows, Session
from runtime.policy.tree import BoolArray, IntArray
from runtime.prompts import Prompt


@final
class OwnPromptSession(Session):
    """A session whose own prompt has `inner.length` rows and is shown as `shown` rows."""

    def __init__(self, inner: Session, shown: int) -> None:
        self._inner, self._shown = inner, shown
        self._shift = inner.length - shown
        self.length, self.capacity = shown, inner.capacity - self._shift

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        if not visible[:, : self._shown].all():
            raise ValueError("every token after a prompt must see the whole prompt")
        prompt = np.ones((len(tokens), self._shown + self._shift), dtype=np.bool_)
        return self._inner.forward(
            tokens, positions + self._shift, np.concatenate([prompt, visible[:, self._shown :]], axis=1)
        )

    def _compact(self, base: int, rows: list[int]) -> None:
        if base < self._shown:
            raise ValueError(f"the prompt of {self._shown} rows must be kept, got a base of {base}")
        self._inner.keep(base + self._shift, rows)


@final
class OwnPromptModel(Model):
    """A draft that opens `prompt.draft` where a prompt has one."""

    def __init__(self, model: Model) -> None:
        self.backend, self.backend_version, self.dtype = model.backend, model.backend_version, model.dtype
        self.vocab_size, self.token_limit, self.max_positions = (
            model.vocab_size,
            model.token_limit,
            model.max_positions,
        )
        self._model = model

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        if prompt.draft is None:
            return self._model.open(prompt, capacity, positions)
        self.check_capacity(len(prompt), capacity, positions)
        shift = len(prompt.draft) - len(prompt)
        session, rows = self._model.open(
            prompt.draft, capacity + shift, None if positions is None else positions + shift
        )
        return OwnPromptSession(session, len(prompt)), rows
