"""A pair that needs no weights: logits are a deterministic function of the visible prefix.

The hash covers every (position, token) a row may attend to, so a wrong mask, position or compaction changes
the logits and is found. The draft follows the target with some noise, so trees are accepted to varied depth.
"""

from __future__ import annotations

import hashlib

import numpy as np

from profiles.policy_profile import ModelRecord, PairRecord
from profiles.registry import ModelSource, PairSpec
from runtime.backends.base import Model, NumpyRows, Rows, Session, causal
from runtime.pair import Pair
from runtime.prompts import Prompt, PromptEncoder

VOCAB = 24
EOS = 0


class FakeSession(Session):
    def __init__(self, owner: FakeModel, capacity: int) -> None:
        self.length, self.capacity = 0, capacity
        self._owner = owner
        self._rows: list[tuple[int, int]] = []

    def _run(self, tokens: np.ndarray, positions: np.ndarray, visible: np.ndarray) -> Rows:
        rows = self._rows + list(zip(positions.tolist(), tokens.tolist(), strict=True))
        logits = np.stack([self._owner.logits([rows[j] for j in np.nonzero(seen)[0]]) for seen in visible])
        self._rows = rows
        return NumpyRows(logits)

    def _compact(self, base: int, rows: list[int]) -> None:
        self._rows = self._rows[:base] + [self._rows[base + row] for row in rows]


class FakeModel(Model):
    backend, backend_version, dtype = "fake", "1.0", "float32"
    vocab_size = token_limit = VOCAB
    max_positions = 4096

    def __init__(self, seed: int, noise: float) -> None:
        self._seed, self._noise = seed, noise

    def logits(self, rows: list[tuple[int, int]]) -> np.ndarray:
        """Shared part from the last six tokens (peaked to a varying degree), own part weighted by `noise`."""
        key = repr((self._seed // 100, sorted(rows)[-6:])).encode()
        shared = np.random.default_rng(int.from_bytes(hashlib.sha256(key).digest()[:8], "big"))
        own = np.random.default_rng(
            int.from_bytes(hashlib.sha256(repr((self._seed, sorted(rows))).encode()).digest()[:8], "big")
        )
        sharpness = 1.0 + 6.0 * shared.random()
        values = sharpness * shared.standard_normal(VOCAB) + self._noise * own.standard_normal(VOCAB)
        values[EOS] -= 6.0
        return values.astype(np.float32)

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        self.check_capacity(len(prompt), capacity, positions)
        session = FakeSession(self, capacity)
        n = len(prompt)
        rows = session.forward(prompt.input_ids, np.arange(n), causal(n, 0))
        return session, NumpyRows(rows.logits()[-1:])


class FakeTokenizer:
    """One lower-case letter per id."""

    chat_template = None

    def __len__(self) -> int:
        return VOCAB

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [1 + ord(letter) % (VOCAB - 1) for letter in text]}

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        return "".join("" if t == EOS and skip_special_tokens else chr(96 + t) for t in tokens)


def fake_pair(seed: int = 100, noise: float = 1.0) -> Pair:
    model = ModelRecord(source="fake", revision=None, config_digest=str(seed), weights_digest=str(noise))
    source = ModelSource(hub="fake")
    return Pair(
        spec=PairSpec(name="fake", target=source, draft=source, modalities=("text",), weights_gib=0.1),
        target=FakeModel(seed, 0.0),
        draft=FakeModel(seed + 1, noise),
        encoder=PromptEncoder(FakeTokenizer(), None),
        eos_ids=frozenset({EOS}),
        record=PairRecord(name="fake", target=model, draft=model, tokenizer_digest="", processor_digest=""),
        threads=1,
        device="cpu",
    )


def fake_prompt(seed: int, length: int = 5) -> Prompt:
    ids = np.random.default_rng(seed).integers(1, VOCAB, size=length)
    return Prompt(ids, {}, "text")
