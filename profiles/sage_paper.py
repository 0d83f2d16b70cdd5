"""The preset `sage-paper`: SAGE's own mapping (arXiv 2602.00523, Eq 7-12) as a policy of ours.

What the paper leaves open is a named option with its default. Two things differ from the text by construction:
depths and widths are clipped to the recorded grid, so that every policy competes on the same budget, and under
N_max the nodes of highest path probability are kept (the paper does not say which).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiles.frozen import Frozen
from profiles.policy import (
    BEAM,
    MAX_DEPTH,
    MAX_NODES,
    MAX_WIDTH,
    DraftRule,
    HistorySpec,
    PolicySource,
    SignalSpec,
    Tier,
    pool_size,
)

FLOOR_PER_LEVEL = 0.1
"""theta_l = 0.1 * l / D(alpha), Eq 12."""
_ROUND = {"nearest": lambda x: math.floor(x + 0.5), "floor": math.floor, "ceil": math.ceil}


class SagePaper(Frozen):
    """SAGE's own policy, a yardstick. Its tapered drafting rule is recorded unless `record` is false."""

    record: Annotated[
        bool, Field(description="record the rule of Eq 12, so that the paper's policy can be replayed")
    ] = True
    depth_min: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="D_min, levels when the draft is least sure")] = 3
    depth_max: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="D_max, levels when it is surest")] = 8
    width_min: Annotated[
        int, Field(ge=1, le=MAX_WIDTH, description="W_min, frontier width when the draft is surest")
    ] = 2
    width_max: Annotated[int, Field(ge=1, le=MAX_WIDTH, description="W_max, frontier width when it is least sure")] = 10
    top_k: Annotated[int, Field(ge=2, le=64, description="k of the confidence")] = 10
    max_nodes: Annotated[int, Field(ge=1, le=MAX_NODES, description="N_max, nodes of the largest tree")] = 64
    rounding: Annotated[
        Literal["nearest", "floor", "ceil"], Field(description="how D and W become whole (open in the paper)")
    ] = "nearest"
    taper_rounding: Annotated[
        Literal["none", "floor", "nearest", "ceil"], Field(description="how W_l becomes whole (open in the paper)")
    ] = "none"
    confidence_of: Annotated[
        Literal["previous_round", "this_round"],
        Field(description="whose root distribution gives alpha; the paper plans from the round before"),
    ] = "previous_round"
    parent: Annotated[
        Literal["own", "path"], Field(description="P_parent as the parent's own or its path's probability (open)")
    ] = "own"
    threshold_on: Annotated[
        Literal["path", "own"],
        Field(description="theta_l bounds the path's probability (Eq 12) or, by one sentence, the candidate's own"),
    ] = "path"
    window: Annotated[int, Field(ge=1, le=32, description="rounds of the moving average")] = 10
    history_low: Annotated[float, Field(ge=0, description="below this mean of accepted tokens depth shrinks")] = 2.0
    history_high: Annotated[float, Field(ge=0, description="above this one it grows")] = 3.0
    history_step: Annotated[int, Field(ge=1, le=8, description="by how many levels (open in the paper)")] = 1

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.depth_min > self.depth_max or self.width_min > self.width_max:
            raise ValueError(f"minimum <= maximum must hold for depth and width, got {self!r}")
        return self

    def source(self, depth: int, widths: Sequence[int], nodes: int) -> PolicySource:
        """The policy on a grid of at most `depth` levels, beams of `widths` and `nodes` verified nodes."""
        edges = self._edges()
        points = [(low + high) / 2 for low, high in zip([0.0, *edges], [*edges, 1.0], strict=True)]
        tiers = [self._tier(1.0 - uncertainty, depth, widths, nodes) for uncertainty in points]
        # clipping to the grid makes neighbours equal
        kept = [i for i in range(len(tiers)) if i == 0 or tiers[i] != tiers[i - 1]]
        return PolicySource(
            name="sage-paper",
            signal=SignalSpec(kind="entropy", top_k=self.top_k, lag=1 if self.confidence_of == "previous_round" else 0),
            edges=tuple(edges[i - 1] for i in kept[1:]),
            tiers=tuple(tiers[i] for i in kept),
            history=HistorySpec(
                window=self.window,
                low=self.history_low,
                high=self.history_high,
                step=self.history_step,
                min_depth=min(self.depth_min, depth),
                max_depth=min(self.depth_max, depth),
            ),
        )

    def rules(self, depth: int, widths: Sequence[int], nodes: int) -> list[DraftRule]:
        """The drafting rules that the policy needs on record, none if it is not recorded."""
        if not self.record:
            return []
        policy = self.source(depth, widths, nodes)
        return list(dict.fromkeys(tier.draft_rule for tier in policy.tiers))

    def _edges(self) -> list[float]:
        """Uncertainties 1 - alpha at which D or W takes another value."""
        shift = {"nearest": 0.5, "floor": 0.0, "ceil": 0.0}[self.rounding]
        edges = set()
        for low, high in ((self.depth_min, self.depth_max), (self.width_min, self.width_max)):
            for whole in range(low, high + 1):
                share = (whole + shift - low) / (high - low) if high > low else 0.0
                edges |= {share, 1.0 - share}
        return sorted({round(edge, 12) for edge in edges if 0.0 < edge < 1.0})

    def _tier(self, alpha: float, depth_cap: int, widths: Sequence[int], nodes_cap: int) -> Tier:
        to_whole = _ROUND[self.rounding]
        depth = min(to_whole(self.depth_min + alpha * (self.depth_max - self.depth_min)), depth_cap)
        wanted = to_whole(self.width_min + (1.0 - alpha) * (self.width_max - self.width_min))
        width = max((w for w in widths if w <= wanted), default=min(widths))
        floors = tuple(FLOOR_PER_LEVEL * level / depth for level in range(1, depth + 1))
        on_path = self.threshold_on == "path"
        return Tier(
            depth=depth,
            width=width,
            nodes=max(min(self.max_nodes, nodes_cap, pool_size(depth, width)), depth),
            stops=floors[:-1] if on_path else (),
            keep=floors if on_path else (),
            rule=BEAM.model_copy(
                update={
                    "kind": "tapered",
                    "cumulative": self.parent == "path",
                    "rounding": self.taper_rounding,
                    "own_floor": 0.0 if on_path else FLOOR_PER_LEVEL / depth,
                }
            ),
        )
