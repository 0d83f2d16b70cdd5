"""Prompt lookup: a draft without weights, which expects what followed the same few tokens earlier in the sequence.

Source: prompt lookup decoding (Saxena 2023) and LLMA (arXiv 2304.04487), which copy one continuation. Here every
node has a distribution, so that trees, signals and gates work as they do with a model. It is an n-gram model of the
node's own visible prefix x_1 .. x_L (the node is x_L), smoothed from short suffixes to long ones with a Dirichlet
prior (MacKay & Peto 1995):

    p_{m-1}(v) = 1 / V                                        V tokens, m = `min_ngram`
    p_n(v)     = (c_n(v) + prior * p_{n-1}(v)) / (C_n + prior)    n = m .. `max_ngram`

c_n(v) sums the weights of the places i < L where x_{i-n+1} .. x_i equals the last n tokens and x_{i+1} = v; C_n is
their sum over v. The latest such place weighs 1, the one before it `recency`, then recency squared, and so on. Where
C_n = 0 nothing matched and p_n = p_{n-1}.

The longest match wins: its latest follower weighs at least 1, everything that shorter ones say at most `prior` <= 1.
Equal followers are told apart by shorter matches, then by their ids. One match of length n whose shorter suffixes
agree gives 1 - (prior / (1 + prior))^(n - m + 1), so longer and repeated matches mean more confidence, and no match
at all is uniform: entropy 1, and a best child that no gate lets pass.

Everything is computed row by row in float64 from the row's own prefix, so it does not depend on what else is in a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from profiles.draft_kinds import LOOKUP, LOOKUP_VERSION, LookupSettings
from profiles.sampling import SamplingRegime
from runtime.backends.base import Model, NumpyRows, Rows, Session
from runtime.policy.tree import BoolArray, FloatArray, IntArray
from runtime.prompts import Prompt

NOWHERE = -1
"""Stands left of a prefix that is shorter than others of its pass; no token has this id."""


@final
class LookupRows(Rows):
    """Distributions of n rows: the few tokens that followed a match, and one probability for each of the others."""

    def __init__(self, followers: Sequence[tuple[IntArray, FloatArray]], rest: FloatArray, vocab: int) -> None:
        """Per row the tokens that followed a match and their log-probabilities, best first, equal ones by id; `rest`
        [n] is the log-probability of every other token of the `vocab`."""
        self._followers, self._rest, self._vocab = followers, rest, vocab

    def argmax(self) -> IntArray:
        return self.top(1)[0][:, 0]

    def top(self, k: int) -> tuple[IntArray, FloatArray]:
        tokens = np.empty((len(self._rest), k), dtype=np.int64)
        logprobs = np.repeat(self._rest[:, None], k, axis=1)
        for row, (found, values) in enumerate(self._followers):
            n = min(len(found), k)
            tokens[row, :n], logprobs[row, :n] = found[:n], values[:n]
            if n < k:
                # the lowest ids that did not follow: n of k + n ids at most are taken
                free = np.setdiff1d(np.arange(min(k + n, self._vocab)), found, assume_unique=True)
                tokens[row, n:] = free[: k - n]
        return tokens, logprobs

    def row(self, i: int) -> Rows:
        return LookupRows(self._followers[i : i + 1], self._rest[i : i + 1], self._vocab)

    def penalised(self, rows: IntArray, tokens: IntArray, penalty: float) -> Rows:
        return NumpyRows(self.logits()).penalised(rows, tokens, penalty)

    def perturbed(self, regime: SamplingRegime, noise: FloatArray) -> Rows:
        return NumpyRows(self.logits()).perturbed(regime, noise)

    def logits(self) -> FloatArray:
        dense = np.repeat(self._rest[:, None], self._vocab, axis=1)
        for row, (tokens, logprobs) in zip(dense, self._followers, strict=True):
            row[tokens] = logprobs
        return dense


@final
class LookupSession(Session):
    """Remembers the token of every cache row; that is all its cache."""

    def __init__(self, owner: LookupModel, capacity: int) -> None:
        self.length, self.capacity = 0, capacity
        self._owner = owner
        self._tokens = np.zeros(capacity, dtype=np.int64)

    def prefill(self, tokens: IntArray) -> Rows:
        """Take in a prompt; the rows of its last position alone."""
        self._tokens[: len(tokens)] = tokens
        self.length = len(tokens)
        return self._owner.rows(tokens[None])

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        self._tokens[self.length : self.length + len(tokens)] = tokens
        return self._owner.rows(prefixes(self._tokens[: visible.shape[1]], visible))

    def _compact(self, base: int, rows: list[int]) -> None:
        self._tokens[base : base + len(rows)] = self._tokens[[base + row for row in rows]]


@final
class LookupModel(Model):
    """A draft of no weights for a target with `vocab_size` ids. Positions play no part: rows are in their order."""

    backend, backend_version = LOOKUP, str(LOOKUP_VERSION)

    def __init__(self, settings: LookupSettings, vocab_size: int, max_positions: int, dtype: str) -> None:
        """`max_positions` and `dtype` are the target's: a lookup has no limit and no precision of its own."""
        self.vocab_size = self.token_limit = vocab_size
        self.max_positions, self.dtype = max_positions, dtype
        self._settings = settings

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        self.check_capacity(prompt.rows, capacity, positions)
        session = LookupSession(self, capacity)
        return session, session.prefill(prompt.read_ids)

    def rows(self, paths: IntArray) -> Rows:
        """The distribution after each of `paths` [n, L], which end in their last column (`prefixes`)."""
        settings, vocab = self._settings, self.token_limit
        matches = suffix_matches(paths, settings.max_ngram)[settings.min_ngram - 1 :]
        # ids that are never proposed are nobody's followers
        matches = [found & (paths[:, 1:] < vocab) for found in matches]
        # a longer match is a shorter one too, so the shortest kind has every follower
        row, place = np.nonzero(matches[0]) if matches else (np.empty(0, dtype=np.int64),) * 2
        keys, slot = np.unique(row * vocab + paths[row, place + 1], return_inverse=True)
        owner, token = np.divmod(keys, vocab)
        slots = np.zeros((len(paths), max(paths.shape[1] - 1, 0)), dtype=np.int64)
        slots[row, place] = slot
        rest = np.full(len(paths), 1.0 / vocab)
        probability = rest[owner]
        for found in matches:
            count = self._counts(found, slots, len(keys))
            total = np.bincount(owner, weights=count, minlength=len(paths))
            share = settings.prior / (total + settings.prior)
            probability = np.where(
                total[owner] > 0, (count + settings.prior * probability) / (total[owner] + settings.prior), probability
            )
            rest = np.where(total > 0, rest * share, rest)
        logprobs = np.log(probability).astype(np.float32)
        order = np.lexsort((token, -logprobs, owner))
        ends = np.searchsorted(owner, np.arange(1, len(paths)))
        followers = zip(np.split(token[order], ends), np.split(logprobs[order], ends), strict=True)
        return LookupRows(list(followers), np.log(rest).astype(np.float32), vocab)

    def _counts(self, found: BoolArray, slots: IntArray, n: int) -> npt.NDArray[np.float64]:
        """[n] weight of every follower: places of a match [rows, L - 1], each with the slot of its follower."""
        row, place = np.nonzero(found)
        later = found.sum(axis=1)[row] - np.cumsum(found, axis=1)[row, place]
        weights = np.cumprod(np.full(found.shape[1] + 1, self._settings.recency)) / self._settings.recency
        return np.bincount(slots[row, place], weights=weights[later], minlength=n).astype(np.float64, copy=False)


def prefixes(tokens: IntArray, visible: BoolArray) -> IntArray:
    """[n, L] what each of n rows may see of cached `tokens` [m], in their order and ending in the last column;
    `visible` [n, m]. Shorter ones have `NOWHERE` on their left."""
    counts = visible.sum(axis=1)
    longest = int(counts.max())
    paths = np.full((len(visible), longest), NOWHERE, dtype=np.int64)
    row, column = np.nonzero(visible)
    # what is seen of a row comes in ascending order, so its k-th token is that many places after its first
    place = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    paths[row, place + longest - counts[row]] = tokens[column]
    return paths


def suffix_matches(paths: IntArray, longest: int) -> list[BoolArray]:
    """For n = 1 .. `longest`: [rows, L - 1] where the last n tokens of a path end a second time, earlier."""
    found = np.ones((len(paths), max(paths.shape[1] - 1, 0)), dtype=np.bool_)
    matches = []
    for n in range(1, min(longest, found.shape[1]) + 1):
        found = found.copy()
        found[:, : n - 1] = False
        own = paths[:, -n, None]
        found[:, n - 1 :] &= (paths[:, : paths.shape[1] - n] == own) & (own != NOWHERE)
        matches.append(found)
    return matches
