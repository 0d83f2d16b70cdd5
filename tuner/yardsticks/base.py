"""What every yardstick is: a named rule, fitted on the tuning prompts of a record, that can be walked over any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from profiles.config import GridConfig
from profiles.measurement import CostTable
from profiles.policy import CompiledPolicy, PolicySource
from profiles.pruning import Pruning
from runtime.policy.compile import compile_policy
from tuner.drafts import Ints
from tuner.outcomes import Record
from tuner.replay import Agent, Replay, Walk


@dataclass(frozen=True)
class Arena:
    """One record, one cost table, one grid of tiers: the same for all, so that nobody has a larger budget."""

    replay: Replay
    grid: GridConfig
    pruning: Pruning | None = None
    """The one pruning of every policy here (`under`); None leaves it to each policy."""

    @classmethod
    def measured(cls, record: Record, table: CostTable, grid: GridConfig) -> Arena:
        """The arena of a run. Sizes that ran out of memory were not timed, so nobody may ask for them."""
        return cls(Replay(record, table), grid.restricted(table.sizes("verify")))

    @property
    def prunings(self) -> tuple[Pruning, ...]:
        """What a policy may choose from."""
        return self.replay.record.manifest.prunings if self.pruning is None else (self.pruning,)

    def under(self, pruning: Pruning) -> Arena:
        """The arena where the draft always reads under this pruning."""
        return Arena(self.replay.under(pruning), self.grid, pruning)

    @cached_property
    def tune(self) -> Ints:
        """Samples that a yardstick may be fitted on."""
        return self.replay.record.split_samples("tune")

    def compiled(self, source: PolicySource) -> CompiledPolicy:
        return compiled(source, self.grid, self.replay)

    def speedup(self, walk: Walk, samples: Ints) -> float:
        return float(self.replay.plain_time_ns(samples).sum() / walk.time_ns.sum())


def compiled(source: PolicySource, grid: GridConfig, replay: Replay) -> CompiledPolicy:
    """Compile for the grid's verify sizes and the record's contexts."""
    return compile_policy(source, grid.verify_sizes, replay.record.context_max)


class Contestant(Protocol):
    """A fitted yardstick or policy."""

    @property
    def name(self) -> str: ...

    @property
    def detail(self) -> str:
        """Its fitted parameters, for a table."""

    def walk(self, samples: Ints) -> Walk:
        """Its rounds over samples of the record."""


Fit = Callable[[Arena], Contestant | None]
"""Fits a yardstick on the arena's tuning prompts; None when the grid has no room for it."""


@dataclass(frozen=True)
class TablePolicy:
    """A policy that the runtime can run as it is, live as in replay."""

    name: str
    source: PolicySource
    arena: Arena = field(repr=False)

    def __post_init__(self) -> None:
        if self.arena.pruning is not None:
            object.__setattr__(self, "source", self.source.model_copy(update={"pruning": self.arena.pruning}))

    @cached_property
    def policy(self) -> CompiledPolicy:
        return self.arena.compiled(self.source)

    @property
    def labels(self) -> tuple[str, ...]:
        """Its distinct tiers, its growth tree and its pruning."""
        growth, pruning = self.source.growth, self.source.pruning.label()
        tiers = dict.fromkeys(tier.label() for tier in self.source.tiers)
        return (
            *tiers,
            *([f"tree of {len(growth.leaves)} leaves"] if growth else []),
            *([f"pruning {pruning}"] if pruning else []),
        )

    @property
    def detail(self) -> str:
        return " | ".join(self.labels)

    def walk(self, samples: Ints) -> Walk:
        return self.arena.replay.walk(self.policy, samples)


@dataclass(frozen=True)
class PositionRule:
    """A rule whose round depends on the position alone: `rows` [N] are registered kinds of round. Replay only: the
    runtime decides by tables, gates and growth trees and has no such rule."""

    name: str
    detail: str
    rows: Ints = field(repr=False)
    arena: Arena = field(repr=False)

    def walk(self, samples: Ints) -> Walk:
        return self.arena.replay.walk_chosen(self.rows, samples)


@dataclass(frozen=True)
class LearningRule:
    """A rule that learns while it decodes: a fresh agent for every walk, outputs in order. Replay only: a frozen
    profile has nothing that learns."""

    name: str
    detail: str
    agent: Callable[[], Agent] = field(repr=False)
    arena: Arena = field(repr=False)

    def walk(self, samples: Ints) -> Walk:
        return self.arena.replay.walk_agent(self.agent(), samples)


def best_of(contestants: Sequence[Contestant], arena: Arena) -> Contestant:
    """The fastest on the tuning prompts. `best` means this everywhere."""
    return max(contestants, key=lambda found: arena.speedup(found.walk(arena.tune), arena.tune))
