"""Sampling as greedy decoding: a pair whose sessions return logits that already are penalised, filtered and perturbed.

Whatever decodes, drafts or records on a shaped pair samples, without knowing it. Both models see the same noise at
the same position, so what the target will draw is what the draft ranks first wherever the two agree (the acceptance
of a single child is at least (1 - TV) / (1 + TV), TV the total variation distance of the two distributions).

Signals, gates and growth trees read the perturbed scores too. They are what decides acceptance, and one set of
scores is on record: replay needs no second one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, final

import numpy as np

from profiles.sampling import Sampling, SamplingRegime
from runtime.backends.base import Model, Rows, Session
from runtime.noise import GumbelNoise
from runtime.pair import Pair
from runtime.policy.tree import BoolArray, FloatArray, IntArray
from runtime.prompts import Prompt


class Noise(Protocol):
    """Noise by position; `rows` returns [n, vocab] for `positions` [n]."""

    def rows(self, positions: IntArray, vocab: int) -> FloatArray: ...


def resolved(pair: Pair, sampling: Sampling) -> Sampling:
    """The same with the pair's own repetition penalty where none is given."""
    if sampling.repetition_penalty is not None:
        return sampling
    return sampling.model_copy(update={"repetition_penalty": pair.repetition_penalty})


def shaped(pair: Pair, sampling: Sampling) -> Pair:
    """A pair for one request on which greedy decoding is decoding under `sampling`; the pair itself when its logits
    are taken as they are. Noise that was drawn is kept in it, so a timed request needs a pair of its own."""
    settings = resolved(pair, sampling)
    if not settings.sampled and settings.repetition_penalty == 1.0:
        return pair
    noise = GumbelNoise(settings.seed, max(pair.target.token_limit, pair.draft.token_limit))
    target, draft = (ShapedModel(model, settings, noise) for model in (pair.target, pair.draft))
    return replace(pair, target=target, draft=draft, repetition_penalty=1.0)


@final
class ShapedModel(Model):
    """A model under a regime. `regime.repetition_penalty` None means none."""

    def __init__(self, model: Model, regime: SamplingRegime, noise: Noise) -> None:
        self.backend, self.backend_version, self.dtype = model.backend, model.backend_version, model.dtype
        self.vocab_size, self.token_limit, self.max_positions = model.vocab_size, model.token_limit, model.max_positions
        self.device_map, self.devices = model.device_map, model.devices
        self._model, self._regime, self._noise = model, regime, noise

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        session, rows = self._model.open(prompt, capacity, positions)
        opened = ShapedSession(session, self, prompt.input_ids)
        everything = np.ones((1, len(prompt)), dtype=np.bool_)
        return opened, self.shape(rows, np.array([len(prompt)]), prompt.input_ids, everything)

    def shape(self, rows: Rows, positions: IntArray, cached: IntArray, visible: BoolArray) -> Rows:
        """Rows that choose the tokens at `positions` [n]; `cached` [m] are the tokens of the cache and `visible`
        [n, m] says which of them come before a row's token."""
        regime = self._regime
        penalty = regime.repetition_penalty
        if penalty is not None and penalty != 1.0:
            row, slot = np.nonzero(visible & (cached < self.token_limit))
            rows = rows.penalised(row, cached[slot], penalty)
        if regime.sampled:
            rows = rows.perturbed(regime, self._noise.rows(positions, self.token_limit))
        return rows


@final
class ShapedSession(Session):
    """A session that shapes what its passes return, and remembers the token of every cache row."""

    def __init__(self, inner: Session, owner: ShapedModel, prompt: IntArray) -> None:
        self.length, self.capacity = inner.length, inner.capacity
        self._inner, self._owner = inner, owner
        self._tokens = np.zeros(inner.capacity, dtype=np.int64)
        self._tokens[: self.length] = prompt

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        rows = self._inner.forward(tokens, positions, visible)
        self._tokens[self.length : self.length + len(tokens)] = tokens
        return self._owner.shape(rows, positions + 1, self._tokens[: visible.shape[1]], visible)

    def prompt_attention(self, prompt: Prompt) -> FloatArray:
        return self._inner.prompt_attention(prompt)

    def _compact(self, base: int, rows: list[int]) -> None:
        self._inner.keep(base, rows)
        self._tokens[base : base + len(rows)] = self._tokens[[base + row for row in rows]]
