"""The output of a request as it grows: end-of-sequence, the exact token limit, stop strings, streamed text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from profiles.errors import BadInput
from runtime.records import Finished

TextCallback = Callable[[str], None]


class Output:
    """Takes tokens in commit order and says when to stop. A token after the end is never taken."""

    def __init__(
        self,
        tokenizer: Any,
        eos_ids: frozenset[int],
        max_new_tokens: int,
        stop_strings: Sequence[str] = (),
        on_text: TextCallback | None = None,
    ) -> None:
        if max_new_tokens < 1:
            raise BadInput(f"max_new_tokens >= 1 must hold, got {max_new_tokens}")
        if any(not stop for stop in stop_strings):
            raise BadInput("a stop string must not be empty")
        self.tokens: list[int] = []
        self.finished: Finished | None = None
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._max_new_tokens = max_new_tokens
        self._stop_strings = tuple(stop_strings)
        self._on_text = on_text
        self._text = ""
        self._settled = 0  # tokens whose text is final
        self._streamed = 0  # characters already handed out

    def take(self, tokens: Sequence[int]) -> int:
        """Append tokens up to the end of the output; returns how many were taken."""
        taken = 0
        for token in tokens:
            if self.finished is not None:
                break
            self.tokens.append(token)
            taken += 1
            if token in self._eos_ids:
                self.finished = "eos"
            elif len(self.tokens) == self._max_new_tokens:
                self.finished = "length"
            if self._stop_strings and self._stop_found():
                self.finished = "stop"
        return taken

    def text(self) -> str:
        """All text, special tokens left out, cut before a stop string."""
        full = self._decode(self.tokens)
        cuts = [full.index(stop) for stop in self._stop_strings if stop in full]
        return full[: min(cuts)] if cuts else full

    def stream(self) -> None:
        """Hand out text that can no longer change: no half characters, nothing that may start a stop string."""
        if self._on_text is None:
            return
        text = self.text()
        if self.finished is None:
            text = text.rstrip("\ufffd")
            held = max((len(stop) - 1 for stop in self._stop_strings), default=0)
            text = text[: max(len(text) - held, 0)]
        if len(text) > self._streamed:
            self._on_text(text[self._streamed :])
            self._streamed = len(text)

    def _stop_found(self) -> bool:
        text = self._decode(self.tokens)
        return any(stop in text for stop in self._stop_strings)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))
