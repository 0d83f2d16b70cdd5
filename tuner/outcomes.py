"""Outcomes: what a round does at every recorded position, computed from the trace by array work."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from profiles.errors import EnvelopeError, ProfileError
from profiles.growth import Feature, GrowthTree
from profiles.policy import DraftRule, SignalKind, SignalSpec, Tier
from profiles.pruning import NO_PRUNING, Pruning
from profiles.sampling import Sampling
from profiles.trace_schema import SampleRecord, TraceManifest, draft_prefix
from runtime.policy.signals import asked, compute, is_entropy, of_target
from tuner.calibration import Split
from tuner.drafts import Ints, Outcome, RuleRecord

SHARED = ("position", "target_logprobs")
"""Columns that do not depend on the draft."""


class Record:
    """A trace in memory: all samples' positions one after the other. Outcomes are cached."""

    def __init__(
        self,
        manifest: TraceManifest,
        samples: list[SampleRecord],
        frame: pl.DataFrame,
        pruning: Pruning = NO_PRUNING,
    ) -> None:
        """`pruning` says which of the recorded drafts is looked at (`under`)."""
        self.manifest, self.samples, self.pruning = manifest, samples, pruning
        lengths = np.array([max(len(s.output) - 1, 0) for s in samples], dtype=np.int64)
        self.end = np.cumsum(lengths)
        self.start = self.end - lengths
        self.sample_of = np.repeat(np.arange(len(samples)), lengths)
        if len(frame) != len(self.sample_of):
            raise ProfileError(f"the trace has {len(frame)} positions, its outputs need {len(self.sample_of)}")
        self.positions = len(frame)
        self.context = np.array([s.prompt_tokens for s in samples])[self.sample_of] + frame["position"].to_numpy()
        """Cached rows before the verification pass of a round that starts here (the root is not cached)."""
        dropped = [s.dropped[manifest.prunings.index(pruning)] if s.dropped else 0 for s in samples]
        self.draft_context = self.context - np.array(dropped, dtype=np.int64)[self.sample_of]
        """The same as the draft reads it: without the visual tokens that it does without."""
        self._frame, self._prefix = frame, draft_prefix(pruning)
        self._views = {pruning: self}
        self._drafts: dict[DraftRule, RuleRecord] = {}
        self._signals: dict[tuple[SignalKind, int], npt.NDArray[np.float64]] = {}
        self._outcomes: dict[tuple[Tier, GrowthTree | None, tuple[int, ...]], Outcome] = {}

    def under(self, pruning: Pruning) -> Record:
        """The same outputs with what the draft proposed under a pruning. Raises EnvelopeError for one that was not
        recorded."""
        if pruning not in self.manifest.prunings:
            raise EnvelopeError(
                f"pruning {pruning.stem()} is outside the record ({[p.stem() for p in self.manifest.prunings]}); "
                "profile again with a larger grid"
            )
        if pruning not in self._views:
            self._views[pruning] = Record(self.manifest, self.samples, self._frame, pruning)
        return self._views[pruning]

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

    def sampling(self, sample: int) -> Sampling:
        """How a sample's output was decoded, with the seed of that sample."""
        return self.manifest.sampling.for_sample(self.samples[sample].id)

    def column(self, name: str) -> npt.NDArray[Any]:
        """A column by its name without prefix."""
        return self._frame[name if name in SHARED else f"{self._prefix}{name}"].to_numpy()

    @property
    def default_top_k(self) -> int:
        """The default k of an entropy, or as many log-probabilities as were recorded where they are fewer."""
        return min(SignalSpec().top_k, self.manifest.signal_logprobs)

    def signal(self, kind: SignalKind, top_k: int) -> npt.NDArray[np.float64]:
        """[N] a signal where a round starts, without lag or smoothing. Raises EnvelopeError for too large a k."""
        kept = self.manifest.signal_logprobs
        if is_entropy(kind) and top_k > kept:
            raise EnvelopeError(f"top_k <= {kept} recorded log-probabilities must hold, the policy asks for {top_k}")
        key = (kind, top_k if is_entropy(kind) else 2)
        if key not in self._signals:
            column = "target_logprobs" if of_target(kind) else "root_logprobs"
            self._signals[key] = compute(kind, self.column(column), key[1])
        return self._signals[key]

    def draft(self, rule: DraftRule) -> RuleRecord:
        """What was recorded under a drafting rule. Raises EnvelopeError for one that was not recorded."""
        if rule not in self.manifest.rules:
            raise EnvelopeError(
                f"drafting rule {rule.stem()} is outside the record ({[r.stem() for r in self.manifest.rules]}); "
                "profile again with a larger grid"
            )
        if rule not in self._drafts:
            columns = {name: self.column(f"{rule.stem()}.{name}") for name in RuleRecord.COLUMNS}
            self._drafts[rule] = RuleRecord(rule, self.manifest.depth, columns)
        return self._drafts[rule]

    def outcome(self, tier: Tier, verify_sizes: tuple[int, ...] = (), growth: GrowthTree | None = None) -> Outcome:
        """A tier at every position at once. `verify_sizes` matter to tiers with `keep` and to growth trees only.

        Raises EnvelopeError when the record does not contain the tier's tree.
        """
        key = (tier, growth, verify_sizes if tier.keep or growth else ())
        found = self._outcomes.get(key)
        if found is None:
            found = self._outcomes[key] = self._compute(tier, verify_sizes, growth)
        return found

    def _compute(self, tier: Tier, verify_sizes: tuple[int, ...], growth: GrowthTree | None) -> Outcome:
        if tier.depth == 0:
            zeros, ones = np.zeros(self.positions, dtype=np.int64), np.ones(self.positions, dtype=np.int64)
            return Outcome(zeros, zeros, ones, ones, ())
        if tier.depth > self.manifest.depth:
            raise EnvelopeError(
                f"tier {tier.label()} is outside the record (depth <= {self.manifest.depth}); profile again with a "
                "larger grid"
            )
        if tier.keep and not verify_sizes:
            raise ValueError(f"tier {tier.label()} is sized by its verify sizes, none were given")
        draft = self.draft(tier.draft_rule)
        drafted, nodes = draft.grown(tier, verify_sizes, growth, self._tree_signals(growth))
        return draft.outcome(drafted, nodes)

    def _tree_signals(self, growth: GrowthTree | None) -> dict[Feature, npt.NDArray[np.float64]]:
        if growth is None:
            return {}
        return {kind: self.signal(kind, growth.top_k) for kind in asked(growth)}
