"""The best lowering of a policy, by replay: every form that an engine can run, on one record.

Chosen on the tuning prompts like every yardstick, reported on prompts that no choice has seen. What an engine can run
is said by `profiles.lowering.Abilities`; which engine that is, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from profiles.errors import BadInput, EnvelopeError
from profiles.lowering import Abilities, Lowered, LoweringNumbers, PositionRate, Replayed, fixed
from profiles.measurement import Interval
from profiles.policy import CompiledPolicy, Tier
from profiles.trace_schema import CHAIN
from runtime.decode import OFF
from tuner.cost_model import Floats
from tuner.drafts import Ints
from tuner.replay import Walk
from tuner.statistics import clustered_mean, ratio_interval
from tuner.yardsticks.base import Arena, Contestant, PositionRule, TablePolicy
from tuner.yardsticks.chains import Chains, at_tuning, chains
from tuner.yardsticks.single import chain_tiers, grid_tiers

QUANTILES = np.linspace(0.02, 0.98, 25)
"""Thresholds that are tried: these quantiles of the draft's own probabilities at the tuning positions."""


@dataclass(frozen=True)
class Candidate:
    """One form that the engine can run, and its rounds."""

    lowered: Lowered
    contestant: Contestant


@dataclass(frozen=True)
class LoweringSearch:
    """All candidates of one engine on one record."""

    arena: Arena
    abilities: Abilities
    truncated: Lowered
    """What one gets without a search; it competes, so a search never does worse on the prompts it looks at."""

    @cached_property
    def candidates(self) -> list[Candidate]:
        safe = self.truncated.source.safe
        every = grid_tiers(self.arena.grid) if self.abilities.room != "chain" else chain_tiers(self.arena.grid)
        tiers = [OFF, *(tier for tier in every if self.abilities.holds(tier)), self.truncated.tier]
        shapes = [self._shape(fixed(tier, safe)) for tier in dict.fromkeys(tiers)]
        return [*shapes, *self._confident(safe)]

    @cached_property
    def best(self) -> Candidate:
        """The fastest on the tuning prompts."""
        tune = self.arena.tune
        return max(self.candidates, key=lambda one: self.arena.speedup(one.contestant.walk(tune), tune))

    def contestant(self, lowered: Lowered) -> Contestant:
        """A lowered policy on this record. Raises EnvelopeError when the record cannot replay it."""
        if not lowered.confidence:
            return self._shape(lowered).contestant
        found = chains(self.arena)
        if found is None:
            raise EnvelopeError("a stop by confidence needs recorded chains, the grid has none (widths without 1)")
        levels = lowered.tier.depth if lowered.capped else found.longest
        if levels > found.longest:
            raise EnvelopeError(f"chains of {found.longest} tokens were recorded, {lowered.label()} needs {levels}")
        return self._rule(found, lowered, levels)

    @property
    def left_out(self) -> int:
        """Thresholds whose drafts go on beyond the record somewhere."""
        return len(self._thresholds) - len(self._kept) if self.abilities.confidence == "uncapped" else 0

    def _shape(self, lowered: Lowered) -> Candidate:
        return Candidate(lowered, TablePolicy(lowered.label(), lowered.source, self.arena))

    def _confident(self, safe: Tier) -> Iterable[Candidate]:
        found = chains(self.arena)
        if self.abilities.confidence == "none" or found is None:
            return []
        capped = self.abilities.confidence == "capped"
        depths = range(2, found.longest + 1) if capped else [found.longest]
        wanted = [
            fixed(Tier(depth=depth, width=1, nodes=depth), safe, confidence, capped)
            for confidence in (self._thresholds if capped else self._kept)
            for depth in depths
        ]
        return [Candidate(lowered, self.contestant(lowered)) for lowered in wanted]

    @cached_property
    def _own(self) -> Floats:
        """[N, L] log-probability of every drafted token by itself; NaN where none was drafted."""
        scores = self.arena.replay.record.draft(CHAIN).scores[:, :, 0].astype(np.float64)
        before = np.concatenate([np.zeros((len(scores), 1)), scores[:, :-1]], axis=1)
        with np.errstate(invalid="ignore"):
            own: Floats = scores - before
        return own

    @cached_property
    def _thresholds(self) -> list[float]:
        seen = np.exp(at_tuning(self.arena, self._own))
        values = np.quantile(seen[np.isfinite(seen)], QUANTILES)
        return sorted({float(f"{value:.3g}") for value in values if 0.0 < float(f"{value:.3g}") < 1.0})

    @cached_property
    def _kept(self) -> list[float]:
        """Thresholds that end every recorded draft by themselves."""
        return [value for value in self._thresholds if self._distrusted(value, False).any(axis=1).all()]

    def _distrusted(self, confidence: float, capped: bool) -> np.ndarray:
        """[N, L] levels after which drafting ends. An engine without a cap (OpenVINO GenAI) also stops after a token
        of which it is certain (log-probability 0), so that a loop cannot go on for ever."""
        ends = ~(np.exp(self._own) >= confidence)
        return ends if capped else ends | (self._own >= 0.0)

    def _rule(self, found: Chains, lowered: Lowered, levels: int) -> PositionRule:
        distrusted = self._distrusted(lowered.confidence, lowered.capped)[:, :levels]
        if not lowered.capped and not distrusted.any(axis=1).all():
            raise EnvelopeError(f"{lowered.label()} drafts beyond the {levels} recorded levels")
        return PositionRule(lowered.label(), "", found.stopped(distrusted), self.arena)


def lowering_numbers(search: LoweringSearch, full: CompiledPolicy, lowered: Lowered, trace: str) -> LoweringNumbers:
    """The full policy and its lowering on the record's report prompts; `trace` is the record's digest.

    Raises BadInput with fewer than two report prompts: there is no interval over one.
    """
    arena = search.arena
    report = arena.replay.record.split_samples("report")
    if len(report) < 2:
        raise BadInput(f"a loss needs at least 2 report prompts on the record, found {len(report)}")
    walks = [
        arena.replay.walk(full, report),
        search.contestant(lowered).walk(report),
        search.contestant(search.truncated).walk(report),
    ]
    times = [walk.time_by_sample(report) for walk in walks]
    kept = ratio_interval(times[0], times[1], "replayed")
    return LoweringNumbers(
        full=_replayed(arena, full_label(full), walks[0], report),
        lowered=_replayed(arena, lowered.label(), walks[1], report),
        truncated=_replayed(arena, search.truncated.label(), walks[2], report),
        loss=Interval(
            median=1 - kept.median, low=1 - kept.high, high=1 - kept.low, mark="replayed", prompts=kept.prompts
        ),
        positions=position_rates(walks[1]),
        tried=len(search.candidates),
        trace_digest=trace,
    )


def full_label(policy: CompiledPolicy) -> str:
    """A policy in a few words."""
    cells = {cell for row in policy.table for cell in row}
    text = " | ".join(policy.tiers[cell].label() for cell in sorted(cells))
    if len(cells) > 2:
        text = f"{len(cells)} tiers in {len(policy.table)} bins"
    return text + (f", tree of {len(policy.growth.leaves)} leaves" if policy.growth else "")


def position_rates(walk: Walk) -> tuple[PositionRate, ...]:
    """Share of rounds that accept each level."""
    rates = []
    for level in range(1, int(walk.accepted.max(initial=0)) + 1):
        rate, low, high = clustered_mean((walk.accepted >= level).astype(np.float64), walk.samples, 1.0)
        rates.append(PositionRate(rate=rate, low=low, high=high))
    return tuple(rates)


def acceptance_interval(arena: Arena, walk: Walk, samples: Ints) -> Interval:
    """Tokens per round, bonus included, over prompts."""
    record = arena.replay.record
    tokens = (record.end - record.start)[samples].astype(np.float64)
    rounds = np.bincount(walk.samples, minlength=int(samples.max()) + 1)[samples].astype(np.float64)
    return ratio_interval(tokens, rounds, "replayed")


def _replayed(arena: Arena, label: str, walk: Walk, samples: Ints) -> Replayed:
    return Replayed(
        label=label,
        speedup=ratio_interval(arena.replay.plain_time_ns(samples), walk.time_by_sample(samples), "replayed"),
        acceptance_length=acceptance_interval(arena, walk, samples),
        rounds=walk.rounds,
    )
