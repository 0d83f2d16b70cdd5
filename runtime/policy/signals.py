"""Signals: scalars of the draft's root distribution, each in [0, 1] and rising with uncertainty.

`entropy` is the normalised top-k entropy H_k / log k, that is 1 - confidence of SAGE (arXiv 2602.00523,
Eq 7-9): the k best probabilities are renormalised, H_k is taken in nats.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from profiles.policy import SignalKind

Array = npt.NDArray[np.floating]


def entropy(top_logprobs: Array, top_k: int) -> npt.NDArray[np.float64]:
    """[..., >=k] log-probabilities sorted best first -> [...] normalised entropy of the best k."""
    logprobs = np.asarray(top_logprobs[..., :top_k], dtype=np.float64)
    if logprobs.shape[-1] < top_k:
        raise ValueError(f"top-{top_k} entropy needs {top_k} log-probabilities, got {logprobs.shape[-1]}")
    # an impossible token (-inf) weighs nothing; the floor keeps 0 * inf out of the sum
    gaps = np.maximum(logprobs - logprobs[..., :1], -700.0)
    weights = np.exp(gaps)
    total = weights.sum(axis=-1)
    # H = log(sum w) - sum(w log w) / sum w, with log w = gap to the best
    inner = (weights * gaps).sum(axis=-1)
    value: npt.NDArray[np.float64] = np.clip((np.log(total) - inner / total) / math.log(top_k), 0.0, 1.0)
    return value


def compute(kind: SignalKind, top_logprobs: Array, top_k: int) -> npt.NDArray[np.float64]:
    """One signal from sorted log-probabilities [..., >= max(2, k)]; returns [...]."""
    if kind == "entropy":
        return entropy(top_logprobs, top_k)
    top = np.exp(np.asarray(top_logprobs[..., :2], dtype=np.float64))
    value = 1.0 - top[..., 0] if kind == "one_minus_top1" else 1.0 - (top[..., 0] - top[..., 1])
    clipped: npt.NDArray[np.float64] = np.clip(value, 0.0, 1.0)
    return clipped
