"""A draft that reads a prompt otherwise than the target: by picture rules of its own, or without some visual rows.

Everything above a session counts cache rows by the target's prompt. The session here answers as if the draft's
prompt were just as long, and shifts rows and positions by the difference. The two shifts differ where rows were
left out: those that stay keep their positions. Every later token sees the whole prompt in both countings, so
nothing is lost.
"""

from __future__ import annotations

from typing import final

import numpy as np

from runtime.backends.base import Model, Rows, Session
from runtime.policy.tree import BoolArray, IntArray
from runtime.prompts import Prompt


@final
class OwnPromptSession(Session):
    """A session whose own prompt has `inner.length` rows and is shown as `shown` rows; the token after it stands
    `position_shift` positions later than is shown."""

    def __init__(self, inner: Session, shown: int, position_shift: int) -> None:
        self._inner, self._shown, self._position_shift = inner, shown, position_shift
        self._shift = inner.length - shown
        self.length, self.capacity = shown, inner.capacity - self._shift

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        if not visible[:, : self._shown].all():
            raise ValueError("every token after a prompt must see the whole prompt")
        prompt = np.ones((len(tokens), self._shown + self._shift), dtype=np.bool_)
        return self._inner.forward(
            tokens, positions + self._position_shift, np.concatenate([prompt, visible[:, self._shown :]], axis=1)
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
        row_shift, position_shift = prompt.draft.rows - len(prompt), len(prompt.draft) - len(prompt)
        longest = capacity if positions is None else positions
        session, rows = self._model.open(prompt.draft, capacity + row_shift, longest + position_shift)
        return OwnPromptSession(session, len(prompt), position_shift), rows
