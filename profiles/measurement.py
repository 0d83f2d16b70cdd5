"""Numbers and what they are: measured, replayed or estimated; intervals; the cost table of a machine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiles.policy import Frozen

Mark = Literal["measured", "replayed", "estimated"]


class Interval(Frozen):
    """Median of a statistic with its 95 % bootstrap interval over prompts."""

    median: float
    low: float
    high: float
    mark: Mark
    prompts: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.high:
            raise ValueError(f"low <= high must hold, got low={self.low}, high={self.high}")
        return self

    def text(self) -> str:
        return f"{self.median:.2f} [{self.low:.2f}, {self.high:.2f}]"


class PassTime(Frozen):
    """Time of one kind of model pass: `n` tokens over a context of `context` cached tokens."""

    model: Literal["draft", "target"]
    n: Annotated[int, Field(ge=1)]
    context: Annotated[int, Field(ge=0)]
    median_ns: Annotated[float, Field(gt=0)]
    p10_ns: Annotated[float, Field(gt=0)]
    p90_ns: Annotated[float, Field(gt=0)]
    samples: Annotated[int, Field(ge=1)]


class HostTime(Frozen):
    """Time of a round outside model passes, fitted on live rounds: `plain` for a round without a draft,
    `round + level * levels` for a drafting round (levels = draft passes made)."""

    plain_ns: Annotated[float, Field(ge=0)]
    round_ns: Annotated[float, Field(ge=0)]
    level_ns: Annotated[float, Field(ge=0)]
    rounds: Annotated[int, Field(ge=0)]


class CostTable(Frozen):
    """What a round is charged: every pass size that the runtime can make, on a grid of context lengths."""

    mark: Literal["measured", "estimated"]
    threads: Annotated[int, Field(ge=1)]
    passes: tuple[PassTime, ...]
    host: HostTime

    @model_validator(mode="after")
    def _full_grid(self) -> Self:
        for model in ("draft", "target"):
            cells = [(p.n, p.context) for p in self.passes if p.model == model]
            sizes, contexts = {n for n, _ in cells}, {c for _, c in cells}
            if len(cells) != len(set(cells)) or len(cells) != len(sizes) * len(contexts):
                raise ValueError(f"{model} passes must form a full grid of sizes x contexts, got {cells}")
        return self

    def sizes(self, model: Literal["draft", "target"]) -> list[int]:
        return sorted({p.n for p in self.passes if p.model == model})

    def contexts(self) -> list[int]:
        return sorted({p.context for p in self.passes})

    def cost_ratio(self) -> float:
        """Target-to-draft cost: one-token target pass over one-token draft pass, mean over contexts."""
        one = {
            model: [p.median_ns for p in self.passes if p.model == model and p.n == 1] for model in ("target", "draft")
        }
        return (sum(one["target"]) / len(one["target"])) / (sum(one["draft"]) / len(one["draft"]))


class CurvePoint(Frozen):
    """Acceptance at one bin of a signal, with a 95 % interval clustered by prompt."""

    low_edge: float
    high_edge: float
    positions: Annotated[int, Field(ge=0)]
    signal_mean: float
    top1_acceptance: float
    top1_low: float
    top1_high: float
    accepted_mean: float
    """Mean accepted draft tokens (bonus excluded) of the reference tier."""
    accepted_low: float
    accepted_high: float


class Curve(Frozen):
    """Entropy-acceptance curve of one signal and modality, and how much the signal explains."""

    signal: str
    modality: str
    reference_tier: str
    rank_correlation: float
    """Spearman correlation of the signal with the reference tier's accepted tokens."""
    points: tuple[CurvePoint, ...]


class PolicyResult(Frozen):
    """One row of the final table: a policy replayed on the record and, for finalists, measured live."""

    name: str
    tiers: tuple[str, ...]
    verdict: Literal["adaptive", "static", "off"]
    acceptance_length: float
    """Tokens per round, bonus included."""
    rounds: int
    speedup_replayed: float
    speedup_measured: Interval | None = None
