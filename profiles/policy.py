"""Tree policies as they are written down: the readable source and the compiled table.

A policy is a total, finite function `(signal bin x history state) -> tier`. `PolicySource` says it the way a
person does (edges, a depth map, a width map); `CompiledPolicy` is the integer table that the runtime obeys.
The lowering between the two is `runtime.policy.compile`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_DEPTH = 32
MAX_WIDTH = 32
MAX_NODES = 256

HISTORY_STATES = ("low", "mid", "high")
"""Order of the history axis of every table."""


class Frozen(BaseModel):
    """Base of everything written down: immutable, closed against unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Tier(Frozen):
    """The shape budget of one round. Depth 0 is a plain autoregressive step.

    `depth` levels are drafted with a frontier of `width` nodes; the `nodes` best candidates are verified
    (the root is not counted). Drafting ends early once the best cumulative probability of the frontier
    falls below `stop`; 0 never stops.
    """

    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)] = 1
    nodes: Annotated[int, Field(ge=0, le=MAX_NODES)]
    stop: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.depth == 0:
            if self.nodes or self.width != 1 or self.stop:
                raise ValueError(f"a tier of depth 0 has width 1, 0 nodes and stop 0, got {self!r}")
            return self
        pool = pool_size(self.depth, self.width)
        if not self.depth <= self.nodes <= pool:
            raise ValueError(
                f"depth <= nodes <= pool must hold (a level that can never be verified, or a node that can "
                f"never be drafted, is a knob that turns nothing); got depth={self.depth}, "
                f"nodes={self.nodes}, pool={pool} for width={self.width}"
            )
        return self

    def label(self) -> str:
        """`depth,width,nodes` with the stop appended when there is one; `off` for depth 0."""
        if self.depth == 0:
            return "off"
        text = f"{self.depth},{self.width},{self.nodes}"
        return f"{text},stop {self.stop:g}" if self.stop else text


def pool_size(depth: int, width: int) -> int:
    """Candidates drafted by a beam: `width` at level 1, `width` children of `width` nodes at each later one."""
    return 0 if depth == 0 else width + (depth - 1) * width * width


SignalKind = Literal["entropy", "one_minus_top1", "one_minus_margin"]
"""Every signal lies in [0, 1] and rises with the draft's uncertainty."""


class SignalSpec(Frozen):
    """Which scalar of the root distribution chooses the tier.

    `top_k` renormalises the entropy over the k most probable tokens (SAGE Eq 7-9, arXiv 2602.00523);
    `lag` 1 uses the value of the round before, as the paper does, and 0 the value of this round.
    """

    kind: SignalKind = "entropy"
    top_k: Annotated[int, Field(ge=2, le=64)] = 10
    lag: Annotated[int, Field(ge=0, le=1)] = 0


class HistorySpec(Frozen):
    """Moving mean of `accepted` over the last `window` drafting rounds, cut into low, mid and high.

    Below `low` the depth cap shrinks by `step`, above `high` it grows by `step`; leaving a state needs the
    mean to come back past its threshold by `hysteresis`. Depths are clamped to [min_depth, max_depth].
    """

    window: Annotated[int, Field(ge=1, le=32)] = 10
    low: Annotated[float, Field(ge=0.0, le=MAX_DEPTH)] = 2.0
    high: Annotated[float, Field(ge=0.0, le=MAX_DEPTH)] = 3.0
    step: Annotated[int, Field(ge=1, le=8)] = 1
    hysteresis: Annotated[float, Field(ge=0.0, le=4.0)] = 0.0
    min_depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = 1
    max_depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)] = 8

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low < high must hold, got low={self.low}, high={self.high}")
        if self.low + self.hysteresis > self.high - self.hysteresis:
            raise ValueError(f"low + hysteresis <= high - hysteresis must hold (else no mean is 'mid'), got {self!r}")
        if self.min_depth > self.max_depth:
            raise ValueError(f"min_depth <= max_depth must hold, got {self.min_depth} > {self.max_depth}")
        return self


class PolicySource(Frozen):
    """A policy as a person writes it: one tier per signal bin, bent by the acceptance history.

    `tiers[i]` serves signals in `[edges[i-1], edges[i])`. With `monotone` depth does not rise and width does
    not fall with the signal, which is the paper's claim; `monotone=false` lets data decide.
    """

    name: str = "unnamed"
    signal: SignalSpec = SignalSpec()
    edges: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...] = ()
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1)]
    history: HistorySpec | None = None
    safe: Tier = Tier(depth=0, nodes=0)
    monotone: bool = True

    @model_validator(mode="after")
    def _shape(self) -> Self:
        if len(self.tiers) != len(self.edges) + 1:
            raise ValueError(
                f"one tier more than edges must be given, got {len(self.tiers)} tiers for {len(self.edges)} edges"
            )
        if any(b <= a for a, b in pairwise(self.edges)):
            raise ValueError(f"edges must be strictly increasing, got {self.edges}")
        if self.monotone:
            drafted = [t for t in self.tiers if t.depth]
            depths = [t.depth for t in self.tiers]
            widths = [t.width for t in drafted]
            if depths != sorted(depths, reverse=True) or widths != sorted(widths):
                raise ValueError(
                    "monotone policies need depth non-increasing and width non-decreasing in the signal, got "
                    f"depths {depths}, widths {widths}; set monotone=false to test the claim"
                )
        return self


class CompiledPolicy(Frozen):
    """What the runtime obeys: `tiers[table[bin][history_state]]`, plus the caps that buffers are sized by."""

    signal: SignalSpec
    edges: tuple[float, ...]
    table: tuple[tuple[int, int, int], ...]
    tiers: tuple[Tier, ...]
    safe: int
    history: HistorySpec | None
    verify_sizes: tuple[int, ...]
    """Sizes (tokens with the root) that a verification pass is padded to, ascending."""
    max_depth: int
    max_width: int
    max_nodes: int
    context_max: int
    """Largest context (tokens) that was tuned; beyond it the safe tier is used and counted."""

    @model_validator(mode="after")
    def _total(self) -> Self:
        if len(self.table) != len(self.edges) + 1:
            raise ValueError(f"the table needs {len(self.edges) + 1} rows, got {len(self.table)}")
        if any(b <= a for a, b in pairwise(self.edges)):
            raise ValueError(f"edges must be strictly increasing, got {self.edges}")
        if list(self.verify_sizes) != sorted(set(self.verify_sizes)) or self.verify_sizes[:1] != (1,):
            raise ValueError(f"verify sizes must ascend from 1, got {self.verify_sizes}")
        cells = [cell for row in self.table for cell in row] + [self.safe]
        if any(not 0 <= cell < len(self.tiers) for cell in cells):
            raise ValueError(f"table cells must index {len(self.tiers)} tiers, got {cells}")
        for tier in self.tiers:
            if tier.depth > self.max_depth or tier.width > self.max_width or tier.nodes > self.max_nodes:
                raise ValueError(f"tier {tier.label()} exceeds the caps of the policy")
            if tier.nodes + 1 > self.verify_sizes[-1]:
                raise ValueError(f"tier {tier.label()} needs more than verify size {self.verify_sizes[-1]}")
        return self

    def drafts(self) -> bool:
        """False when every cell is depth 0: then no draft pass is made at all."""
        return any(self.tiers[cell].depth for row in self.table for cell in row)

    def verdict(self) -> Literal["adaptive", "static", "off"]:
        """What kind of policy this is: one whose tree reacts (to signal, history or its own scores, through
        `stop`), one tree for all rounds, or plain decoding."""
        if not self.drafts():
            return "off"
        cells = {cell for row in self.table for cell in row}
        reacts = len(cells) > 1 or any(self.tiers[cell].stop for cell in cells)
        return "adaptive" if reacts else "static"
