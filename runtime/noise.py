"""The noise of sampling: one Gumbel vector over the vocabulary per position, from the seed and the position alone.

Nothing is carried from one position to the next, so plain and speculative decoding, target and draft, any tree and
any backend see the same numbers (shared randomness: Daliri, Musco, Suresh 2024). The recipe, for another
implementation:

1. Philox4x64-10 (Salmon et al. 2011; numpy's `Philox`) with key words (seed, 0) and counter words (b + 1, t, 0, 0)
   gives the four 64-bit words of tokens 4b .. 4b + 3 at position t.
2. A word w gives u = (w >> 11) * 2^-53 in [0, 1), and e = max(-log(1 - u), 2^-54), both in float64.
3. The noise is g = -log(e), rounded to float32.

`t` is the position of the token that is chosen: the number of tokens before it, the expanded prompt included. A
shorter vocabulary is a prefix of a longer one. The words are the same everywhere; the logarithms of two machines may
differ in the last bit of float64, which the rounding to float32 nearly always hides.
"""

from __future__ import annotations

import numpy as np

from runtime.policy.tree import FloatArray, IntArray

CACHE_BYTES = 128 << 20
"""What one request may keep of noise that it has drawn: a few hundred positions of a large vocabulary."""


def gumbel(seed: int, position: int, vocab: int) -> FloatArray:
    """[vocab] the noise of one position, float32."""
    words = np.random.Philox(
        key=np.array([seed, 0], dtype=np.uint64), counter=np.array([0, position, 0, 0], dtype=np.uint64)
    ).random_raw(vocab)
    words >>= np.uint64(11)
    values = words.astype(np.float64)
    values *= -(2.0**-53)
    values += 1.0  # exact: 1 - u is a multiple of 2^-53
    np.log(values, out=values)
    np.negative(values, out=values)
    np.maximum(values, 2.0**-54, out=values)
    np.log(values, out=values)
    noise: FloatArray = np.negative(values, out=values).astype(np.float32)
    return noise


class GumbelNoise:
    """The noise of one request. Positions that were asked before are kept, the oldest dropped first."""

    def __init__(self, seed: int, vocab: int) -> None:
        self._seed, self._vocab = seed, vocab
        self._kept: dict[int, FloatArray] = {}
        self._capacity = max(CACHE_BYTES // (4 * vocab), 1)

    def rows(self, positions: IntArray, vocab: int) -> FloatArray:
        """[n, vocab] noise at `positions` [n]. `vocab` must not exceed that of the request."""
        if vocab > self._vocab:
            raise ValueError(f"noise was made for {self._vocab} tokens, {vocab} asked for")
        return np.stack([self._at(position)[:vocab] for position in positions.tolist()])

    def _at(self, position: int) -> FloatArray:
        found = self._kept.get(position)
        if found is None:
            found = self._kept[position] = gumbel(self._seed, position, self._vocab)
            if len(self._kept) > self._capacity:
                del self._kept[next(iter(self._kept))]
        return found
