"""Outcomes: what one tier does at every recorded position, computed from the trace by array work.

A tier's tree is contained in the deepest recorded tree of its width. The place of the true path's node among
all candidates of levels 1..D decides whether a node budget reaches it, so acceptance is a comparison of
integers; nothing is estimated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from profiles.errors import EnvelopeError, ProfileError
from profiles.policy import SignalSpec, Tier, pool_size
from profiles.trace_schema import SampleRecord, TraceManifest
from tuner.calibration import Split

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """Per recorded position [N]: accepted draft tokens (bonus excluded), verified nodes, draft passes, and the
    committed tokens the draft has not seen when the next round starts."""

    accepted: Ints
    nodes: Ints
    levels: Ints
    unseen: Ints


class Record:
    """A trace in memory: all samples' positions one after the other. Outcomes are cached per tier."""

    def __init__(self, manifest: TraceManifest, samples: list[SampleRecord], frame: pl.DataFrame) -> None:
        self.manifest, self.samples = manifest, samples
        lengths = np.array([max(len(s.output) - 1, 0) for s in samples], dtype=np.int64)
        self.end = np.cumsum(lengths)
        self.start = self.end - lengths
        self.sample_of = np.repeat(np.arange(len(samples)), lengths)
        if len(frame) != len(self.sample_of):
            raise ProfileError(f"the trace has {len(frame)} positions, its outputs need {len(self.sample_of)}")
        self.positions = len(frame)
        self.context = np.array([s.prompt_tokens for s in samples])[self.sample_of] + frame["position"].to_numpy()
        """Cached rows before the verification pass of a round that starts here (the root is not cached)."""
        self._frame = frame
        self._places: dict[int, npt.NDArray[np.int32]] = {}
        self._outcomes: dict[Tier, Outcome] = {}

    @property
    def context_max(self) -> int:
        """Largest number of committed tokens at the start of a recorded round."""
        return int(self.context.max()) + 1

    def split_samples(self, split: Split) -> Ints:
        """Indices of the samples of a split that have at least one round."""
        return np.array(
            [i for i, s in enumerate(self.samples) if s.split == split and self.end[i] > self.start[i]],
            dtype=np.int64,
        )

    def column(self, name: str) -> npt.NDArray[np.float64]:
        return self._frame[name].to_numpy()

    def signal(self, spec: SignalSpec) -> npt.NDArray[np.float64]:
        """[N] the signal of every position's root distribution. Raises EnvelopeError for another k."""
        if spec.kind == "entropy" and spec.top_k != self.manifest.signal_top_k:
            raise EnvelopeError(
                f"entropy was recorded with top_k={self.manifest.signal_top_k}, the policy asks for {spec.top_k}"
            )
        return self.column(spec.kind)

    def check_envelope(self, tier: Tier) -> None:
        """Raises EnvelopeError when the record does not contain the tier's tree."""
        widths = [rule.width for rule in self.manifest.rules]
        if tier.depth and (tier.width not in widths or tier.depth > self.manifest.depth):
            raise EnvelopeError(
                f"tier {tier.label()} is outside the record (widths {widths}, depth <= {self.manifest.depth}); "
                "profile again with a larger grid"
            )

    def outcome(self, tier: Tier) -> Outcome:
        """The tier at every position at once."""
        found = self._outcomes.get(tier)
        if found is None:
            found = self._outcomes[tier] = self._compute(tier)
        return found

    def _compute(self, tier: Tier) -> Outcome:
        n = self.positions
        if tier.depth == 0:
            zeros = np.zeros(n, dtype=np.int64)
            return Outcome(zeros, zeros, np.ones(n, dtype=np.int64), np.ones(n, dtype=np.int64))
        self.check_envelope(tier)
        drafted = self._drafted_levels(tier)
        places = self._places_of(tier.width)
        at = np.arange(n)
        alive, accepted = np.ones(n, dtype=np.bool_), np.zeros(n, dtype=np.int64)
        for level in range(1, tier.depth + 1):
            place = places[at, level - 1, drafted - 1]
            alive &= (place >= 0) & (place < tier.nodes)
            accepted += alive
        in_frontier = self._array(tier.width, "in_frontier")
        expanded = (accepted < drafted) & in_frontier[at, np.maximum(accepted, 1) - 1]
        unseen = 1 + ((accepted > 0) & ~expanded)
        pools = np.array([pool_size(d, tier.width) for d in range(tier.depth + 1)])
        return Outcome(accepted, np.minimum(tier.nodes, pools[drafted]), drafted, unseen.astype(np.int64))

    def _drafted_levels(self, tier: Tier) -> Ints:
        """Levels drafted before `stop` ended it: the first level whose best frontier score is below log(stop)."""
        levels = np.full(self.positions, tier.depth, dtype=np.int64)
        if tier.stop == 0.0:
            return levels
        best = self._array(tier.width, "frontier_best")[:, : tier.depth].astype(np.float64)
        stopped = best < math.log(tier.stop)
        return np.where(stopped.any(axis=1), stopped.argmax(axis=1) + 1, levels)

    def _places_of(self, width: int) -> npt.NDArray[np.int32]:
        """[N, level, D] place of the true path's node of `level` among all candidates of levels 1..D, by score
        (ties by level, then order within it); -1 where it is absent or D is smaller than its level."""
        if width not in self._places:
            pool = self._array(width, "pool_scores").reshape(self.positions, self.manifest.depth, -1)
            score, own = self._array(width, "score"), self._array(width, "rank_in_level")
            depth = self.manifest.depth
            places = np.full((self.positions, depth, depth), -1, dtype=np.int32)
            for level in range(depth):
                before = own[:, level].astype(np.int64)
                mine = score[:, level, None]
                for earlier in range(level):
                    before = before + (pool[:, earlier] >= mine).sum(axis=1)
                present = own[:, level] >= 0
                for last in range(level, depth):
                    if last > level:
                        before = before + (pool[:, last] > mine).sum(axis=1)
                    places[:, level, last] = np.where(present, before, -1)
            self._places[width] = places
        return self._places[width]

    def _array(self, width: int, name: str) -> npt.NDArray[Any]:
        return self.column(f"beam_{width}.{name}")
