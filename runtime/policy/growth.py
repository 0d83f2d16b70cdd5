"""Growth: the decisions inside a draft. After every level, whether to draft another; at the end, how much to verify.

Gates of the tier and the policy's decision tree are asked here and nowhere else. `features` serves live drafting
and replay alike, so a replayed decision is the live one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from profiles.growth import GO_ON, NO_RIVAL, Feature
from profiles.policy import CompiledPolicy, Tier
from runtime.policy.tree import FloatArray

Floats = npt.NDArray[np.float64]


def features(level: int, width: int, scores: FloatArray, previous_best: Floats) -> dict[Feature, Floats]:
    """What a growth tree may ask about a drafted level, signals excepted.

    `scores` [..., C] of the level's candidates, best first and at least one of them finite; `previous_best`
    [...] is `best` of the level before, 0 at the first. Returns arrays [...].
    """
    top = np.asarray(scores[..., :width], dtype=np.float64)
    best = top[..., 0]
    rival = np.asarray(scores[..., 1], dtype=np.float64) if scores.shape[-1] > 1 else np.full_like(best, -np.inf)
    return {
        "level": np.full_like(best, level),
        "best": best,
        "step": best - previous_best,
        "lead": np.minimum(best - rival, NO_RIVAL),
        "mass": np.exp(top).sum(axis=-1),
    }


class Growth:
    """One round's decisions under a tier and, if the policy has one, its decision tree."""

    def __init__(self, policy: CompiledPolicy, tier: Tier, signals: Mapping[Feature, float]) -> None:
        """`signals` must hold those that the tree asks (`signals.asked`)."""
        self._tier, self._tree, self._sizes = tier, policy.growth, policy.verify_sizes
        self._signals = signals
        self._stops = [log_gate(gate) for gate in tier.gates]
        self._keep = [log_gate(gate) for gate in tier.keep]
        self._best: Floats = np.zeros(())
        self._available = self._kept = 0
        self._ended_with = GO_ON

    def after(self, level: int, scores: FloatArray) -> bool:
        """Whether to draft another level after this one; `scores` [C] are its candidates, best first."""
        tier = self._tier
        self._available += len(scores)
        if not len(scores):
            return False
        if self._keep:
            self._kept += int((scores >= self._keep[level - 1]).sum())
        if self._tree is not None:
            known = features(level, tier.width, scores, self._best)
            self._best = known["best"]
            values = {**self._signals, **{name: float(value) for name, value in known.items()}}
            self._ended_with = self._tree.decide(values)
        if level == tier.depth or self._ended_with != GO_ON:
            return False
        return float(scores[0]) >= self._stops[level - 1]

    def nodes(self) -> int:
        """Candidates to verify, after the last level."""
        if self._tree is None and not self._keep:
            return min(self._tier.nodes, self._available)  # the common case, without arrays
        wanted = self._kept if self._keep else self._tier.nodes
        return int(budget(self._tier, self._sizes, np.int64(self._available), np.int64(wanted), self._ended_with))


def budget(
    tier: Tier, verify_sizes: tuple[int, ...], available: npt.ArrayLike, kept: npt.ArrayLike, ended_with: npt.ArrayLike
) -> npt.NDArray[np.int64]:
    """Candidates to verify, [...]: those above the gate and what the padded pass has room for, or what the leaf of
    the decision tree says; never more than the tier's nodes or than there are.

    `kept` counts candidates that reach the gate of their level, `ended_with` is a leaf value (`GO_ON` for none).
    """
    sizes = np.asarray(verify_sizes)
    wanted = np.asarray(kept)
    if tier.keep:
        wanted = sizes[np.minimum(np.searchsorted(sizes, wanted + 1), len(sizes) - 1)] - 1
    leaf = np.asarray(ended_with)
    wanted = np.where(leaf == GO_ON, wanted, leaf - 1)
    nodes: npt.NDArray[np.int64] = np.minimum(np.minimum(wanted, tier.nodes), available)
    return nodes


def log_gate(gate: float) -> float:
    """A gate on probabilities as one on log-probabilities; 0 lets everything pass."""
    return math.log(gate) if gate else -math.inf
