"""Tree policies as they are written down: the readable source and the compiled table.

A policy is a total, finite function `(signal bin x history state) -> tier`. `PolicySource` says it the way a
person does (edges, a depth map, a width map); `CompiledPolicy` is the integer table that the runtime obeys.
The lowering between the two is `runtime.policy.compile`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiles.frozen import Frozen
from profiles.growth import GrowthTree
from profiles.guard import Guard
from profiles.pruning import NO_PRUNING, Pruning

MAX_DEPTH = 32
MAX_WIDTH = 32
MAX_NODES = 256

HISTORY_STATES = ("low", "mid", "high")
"""Order of the history axis of every table."""


RuleKind = Literal["beam", "margin", "tapered"]


class DraftRule(Frozen):
    """Which candidates of a level form its frontier, and which children a frontier node may propose.

    - `beam`: the `width` best candidates of the level; every node proposes `width` children.
    - `margin`: of those, the ones whose cumulative probability is at least `mu` times the level's best (TALON,
      arXiv 2601.07353).
    - `tapered`: the beam, where from level 2 on a node proposes its child of rank r only if
      r < width / level * (0.5 + P) with P the node's own probability (SAGE, arXiv 2602.00523, Eq 12).
      `cumulative` takes P along the whole path, `rounding` rounds the right side, and a child whose own
      probability is not above `own_floor * level` is dropped as well.

    A trace holds one record per rule, so that every rule replays exactly.
    """

    kind: RuleKind = "beam"
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)] = 1
    mu: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    cumulative: bool = False
    rounding: Literal["none", "floor", "nearest", "ceil"] = "none"
    own_floor: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    @model_validator(mode="after")
    def _no_idle_knob(self) -> Self:
        plain = DraftRule.model_construct(kind=self.kind, width=self.width)
        if (self.kind == "margin") != (self.mu > 0.0):
            raise ValueError(f"mu > 0 belongs to margin rules and to no other, got {self.kind} with mu={self.mu}")
        taper = (self.cumulative, self.rounding, self.own_floor)
        if self.kind != "tapered" and taper != (plain.cumulative, plain.rounding, plain.own_floor):
            raise ValueError(f"cumulative, rounding and own_floor belong to tapered rules, got {self!r}")
        return self

    def stem(self) -> str:
        """Name of the rule's columns in a trace."""
        if self.kind == "beam":
            return f"beam_{self.width}"
        if self.kind == "margin":
            return f"margin{self.mu:g}_{self.width}"
        path = "path" if self.cumulative else "own"
        floor = f"_floor{self.own_floor:g}" if self.own_floor else ""
        return f"tapered_{path}_{self.rounding}{floor}_{self.width}"


BEAM = DraftRule()
"""The default rule; its width is given by the tier."""


class Tier(Frozen):
    """The shape budget of one round. Depth 0 is a plain autoregressive step.

    `depth` levels are drafted under `rule` with a frontier of at most `width` nodes; the `nodes` best candidates
    are verified (the root is not counted). Two kinds of gates, both on cumulative path probabilities, make the
    tree follow the draft's own certainty:

    - `stop`: drafting ends once the frontier's best falls below it; `stops` gives one value per level instead.
    - `keep`: one value per level; only as many nodes are verified as candidates reach the value of their level,
      and then as many more as the padded verification pass has room for.
    """

    depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)] = 1
    nodes: Annotated[int, Field(ge=0, le=MAX_NODES)]
    stop: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    stops: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = ()
    keep: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = ()
    rule: DraftRule = BEAM

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.depth == 0:
            if self.nodes or self.width != 1 or self.stop or self.stops or self.keep or self.rule != BEAM:
                raise ValueError(f"a tier of depth 0 has width 1, 0 nodes, no gates and no rule, got {self!r}")
            return self
        pool = pool_size(self.depth, self.width)
        if not self.depth <= self.nodes <= pool:
            raise ValueError(
                f"depth <= nodes <= pool must hold (a level that can never be verified, or a node that can "
                f"never be drafted, is a knob that turns nothing); got depth={self.depth}, "
                f"nodes={self.nodes}, pool={pool} for width={self.width}"
            )
        if self.stops and (self.stop or len(self.stops) != self.depth - 1):
            raise ValueError(
                f"stops replaces stop and has one value per level but the last ({self.depth - 1}), got "
                f"stop={self.stop}, stops={self.stops}"
            )
        if self.keep and len(self.keep) != self.depth:
            raise ValueError(f"keep has one value per level ({self.depth}), got {self.keep}")
        if self.rule.width != 1:
            raise ValueError(f"the width of a tier stands in the tier, not in its rule, got {self.rule!r}")
        return self

    @property
    def draft_rule(self) -> DraftRule:
        """The rule with the tier's width: the key of its record in a trace."""
        return self.rule.model_copy(update={"width": self.width})

    @property
    def gates(self) -> tuple[float, ...]:
        """Value of `stop` after each level but the last, [depth - 1]."""
        return self.stops or (self.stop,) * max(self.depth - 1, 0)

    @property
    def reacts(self) -> bool:
        """True when the tree varies from round to round within this tier."""
        return bool(self.stop or any(self.stops) or any(self.keep) or self.rule.kind != "beam")

    def label(self) -> str:
        """`depth,width,nodes` with the rule and gates appended where there are any; `off` for depth 0."""
        if self.depth == 0:
            return "off"
        text = f"{self.depth},{self.width},{self.nodes}"
        if self.rule.kind != "beam":
            text += f",{self.rule.kind}" + (f" {self.rule.mu:g}" if self.rule.mu else "")
        if self.stop:
            text += f",stop {self.stop:g}"
        return text + (",gated" if any(self.stops) or any(self.keep) else "")


def pool_size(depth: int, width: int) -> int:
    """Most candidates that are drafted: `width` at level 1, `width` children of `width` nodes at each later one."""
    return 0 if depth == 0 else width + (depth - 1) * width * width


SignalKind = Literal["entropy", "one_minus_top1", "one_minus_margin", "target_entropy"]
"""Every signal lies in [0, 1] and rises with uncertainty. `target_entropy` is that of the target at the bonus
token, known before the draft runs; the others are of the draft's root distribution."""


class SignalSpec(Frozen):
    """Which scalar, known before the tree is built, chooses the tier.

    `top_k` renormalises an entropy over the k most probable tokens (SAGE Eq 7-9, arXiv 2602.00523); `lag` 1
    uses the value of the round before, as the paper does, and 0 the value of this round; `smoothing` s replaces
    it by its exponential mean over the rounds of the output, m <- s * m + (1 - s) * value, begun at the first.
    """

    kind: SignalKind = "entropy"
    top_k: Annotated[int, Field(ge=2, le=64)] = 10
    lag: Annotated[int, Field(ge=0, le=1)] = 0
    smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0

    @property
    def has_state(self) -> bool:
        """True when the value depends on earlier rounds, not on the position alone."""
        return bool(self.lag or self.smoothing)


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
    growth: GrowthTree | None = None
    pruning: Pruning = NO_PRUNING

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
    """What the runtime obeys: `tiers[table[bin][history_state]]`, plus the caps that buffers are sized by.

    With `growth` the tier is the cap of a round, and the decision tree says after every level whether to go on
    and how much to verify.
    """

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
    growth: GrowthTree | None = None
    pruning: Pruning = NO_PRUNING
    """Visual tokens that the draft does without; one choice per request, made when its prompt is read."""
    guard: Guard | None = None

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
        if self.guard is not None and (len(self.guard.level_price), len(self.guard.verify_price)) != (
            len(self.tiers),
            len(self.verify_sizes),
        ):
            raise ValueError(f"a guard has one price per tier and per verify size, got {self.guard!r}")
        if self.growth is not None:
            self.growth.check_sizes(self.verify_sizes)
        return self

    def drafts(self) -> bool:
        """False when every cell is depth 0: then no draft pass is made at all."""
        return any(self.tiers[cell].depth for row in self.table for cell in row)

    def verdict(self) -> Literal["adaptive", "static", "off"]:
        """What kind of policy this is: one whose tree reacts (to signal, history or its own scores, through
        gates or a decision tree), one tree for all rounds, or plain decoding."""
        if not self.drafts():
            return "off"
        cells = {cell for row in self.table for cell in row}
        reacts = len(cells) > 1 or self.growth is not None or any(self.tiers[cell].reacts for cell in cells)
        return "adaptive" if reacts else "static"
