"""Signals: scalars of a next-token distribution, each in [0, 1] and rising with uncertainty.

`entropy` is the normalised top-k entropy H_k / log k, that is 1 - confidence of SAGE (arXiv 2602.00523,
Eq 7-9): the k best probabilities are renormalised, H_k is taken in nats.
"""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import numpy.typing as npt

from profiles.growth import Feature, GrowthTree
from profiles.policy import CompiledPolicy, SignalKind

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


def entropy_nats(top_logprobs: Array) -> npt.NDArray[np.float64]:
    """[..., K] best log-probabilities -> [...] entropy in nats, all other tokens counted as one.

    Splitting the rest could only add: this is the entropy of the whole distribution where the K best hold its
    mass, and a lower bound elsewhere.
    """
    logprobs = np.maximum(np.asarray(top_logprobs, dtype=np.float64), -700.0)
    p = np.exp(logprobs)
    rest = np.maximum(1.0 - p.sum(axis=-1), 0.0)
    value: npt.NDArray[np.float64] = -(p * logprobs).sum(axis=-1) - rest * np.log(np.where(rest > 0.0, rest, 1.0))
    return value


def of_target(kind: SignalKind) -> bool:
    """True for a signal of the target's distribution at the bonus token, False for one of the draft's root."""
    return kind == "target_entropy"


def is_entropy(kind: SignalKind) -> bool:
    """True for a signal that depends on `top_k`."""
    return kind in ("entropy", "target_entropy")


def compute(kind: SignalKind, top_logprobs: Array, top_k: int) -> npt.NDArray[np.float64]:
    """One signal from sorted log-probabilities [..., >= max(2, k)] of the model it belongs to; returns [...]."""
    if is_entropy(kind):
        return entropy(top_logprobs, top_k)
    top = np.exp(np.asarray(top_logprobs[..., :2], dtype=np.float64))
    value = 1.0 - top[..., 0] if kind == "one_minus_top1" else 1.0 - (top[..., 0] - top[..., 1])
    clipped: npt.NDArray[np.float64] = np.clip(value, 0.0, 1.0)
    return clipped


def asked(tree: GrowthTree | None) -> list[SignalKind]:
    """The signals that a growth tree asks about."""
    return [kind for kind in get_args(SignalKind) if tree is not None and kind in tree.features]


def needs_target(policy: CompiledPolicy) -> bool:
    """True when a decision of the policy depends on the target's distribution at the bonus token."""
    return any(of_target(kind) for kind in (policy.signal.kind, *asked(policy.growth)))


def of_round(
    policy: CompiledPolicy, draft_logprobs: Array, target_logprobs: Array | None
) -> tuple[float, dict[Feature, float]]:
    """The policy's own signal, and those that its growth tree asks, from sorted log-probabilities [k] of the draft's
    root distribution and of the target at the bonus token (needed only if `needs_target`)."""

    def value(kind: SignalKind, top_k: int) -> float:
        source = target_logprobs if of_target(kind) else draft_logprobs
        if source is None:
            raise ValueError(f"signal '{kind}' needs the target's log-probabilities")
        return float(compute(kind, source, top_k))

    tree = policy.growth
    return value(policy.signal.kind, policy.signal.top_k), {
        kind: value(kind, tree.top_k) for kind in asked(tree) if tree is not None
    }
