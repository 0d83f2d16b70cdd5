"""Draft-side visual pruning: which visual tokens of a prompt the draft reads. The target always reads all of them,
so the output never changes.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiles.frozen import Frozen

MAX_RATIO = 0.95


class Pruning(Frozen):
    """The share `ratio` of visual tokens that the draft does without, and who chooses them.

    - `none`: the draft reads every token.
    - `uniform`: evenly spaced tokens stay.
    - `verifier`: tokens that the target's text queries attend to stay, up to a share of the attention mass, and
      evenly spaced ones of the rest (SpecVLM, arXiv 2508.16201).
    """

    kind: Literal["none", "uniform", "verifier"] = "none"
    ratio: Annotated[float, Field(ge=0.0, le=MAX_RATIO)] = 0.0

    @model_validator(mode="after")
    def _no_idle_knob(self) -> Self:
        if (self.kind == "none") != (self.ratio == 0.0):
            raise ValueError(f"ratio > 0 belongs to uniform and verifier, got {self.kind} with ratio {self.ratio}")
        return self

    def stem(self) -> str:
        """Name of what was recorded under it: `none`, `uniform0.9`."""
        return "none" if self.kind == "none" else f"{self.kind}{self.ratio:g}"

    def label(self) -> str:
        """`uniform 0.9`; empty without pruning."""
        return "" if self.kind == "none" else f"{self.kind} {self.ratio:g}"


NO_PRUNING = Pruning()


class PruningGrid(Frozen):
    """Draft-side visual pruning that is recorded and searched besides none."""

    kinds: Annotated[
        tuple[Literal["uniform", "verifier"], ...],
        Field(min_length=1, description="who chooses the tokens that stay: uniform, verifier (torch backend only)"),
    ] = ("uniform",)
    ratios: Annotated[
        tuple[Annotated[float, Field(gt=0.0, le=MAX_RATIO)], ...],
        Field(description="shares of visual tokens that the draft does without; recording takes a turn for each"),
    ] = ()

    def settings(self) -> tuple[Pruning, ...]:
        """Every pruning on the grid, none first."""
        return (NO_PRUNING, *(Pruning(kind=kind, ratio=ratio) for kind in self.kinds for ratio in self.ratios))
