"""Numbers and what they are: measured, replayed or estimated; intervals; the cost table of a machine."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiles.frozen import Frozen

Mark = Literal["measured", "replayed", "estimated"]


class Interval(Frozen):
    """A statistic over all prompts (`median`, the name that schema version 1 gave it) with its 95 % interval by
    prompts. A speedup is the ratio of total times."""

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

    def text(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


PassKind = Literal["plain", "verify", "catch_up", "frontier"]
"""What a pass is for. Its time depends on that, not only on its size: a target pass between draft passes finds
its weights gone from the cache, a catch-up pass finds the draft's gone, a frontier pass finds them there."""
PASS_KINDS: tuple[PassKind, ...] = ("plain", "verify", "catch_up", "frontier")


class PassTime(Frozen):
    """Time of a pass of `n` tokens over a context of `context` cached tokens.

    `plain` is the target's one-token pass of plain decoding, `verify` a target pass of a drafting round;
    `catch_up` and `frontier` are draft passes.
    """

    kind: PassKind
    n: Annotated[int, Field(ge=1)]
    context: Annotated[int, Field(ge=0)]
    time_ns: Annotated[float, Field(gt=0)]
    """Fitted mean at this context, outliers left out: a line over context through all samples of kind and size."""
    p10_ns: Annotated[float, Field(gt=0)]
    p90_ns: Annotated[float, Field(gt=0)]
    samples: Annotated[int, Field(ge=0)]
    """Passes of this kind and size, over all contexts; 0 when the time was estimated."""


class HostTime(Frozen):
    """Time of a round outside its model passes, fitted on live rounds.

    `plain_ns` for a round without a draft, `round_ns + level_ns * levels` for a drafting one (levels = draft
    passes made). A prefill leaves caches cold for the rounds of the model, so the first rounds of an output take
    longer: `plain_cold_ns` and `draft_cold_ns` are the extra of round 0, 1, ...
    """

    plain_ns: Annotated[float, Field(ge=0)]
    round_ns: Annotated[float, Field(ge=0)]
    level_ns: Annotated[float, Field(ge=0)]
    plain_cold_ns: tuple[Annotated[float, Field(ge=0)], ...] = ()
    draft_cold_ns: tuple[Annotated[float, Field(ge=0)], ...] = ()
    rounds: Annotated[int, Field(ge=0)]


FREE_SLACK = 0.1
"""A verify pass that costs at most this share more than the smallest one is as good as free."""


class CostTable(Frozen):
    """What a round is charged: every pass size that the runtime can make, on a grid of context lengths."""

    mark: Literal["measured", "estimated"]
    threads: Annotated[int, Field(ge=1)]
    passes: tuple[PassTime, ...]
    host: HostTime
    dropped_sizes: tuple[int, ...] = ()
    """Verify sizes that were asked for and ran out of memory. They have no passes here, so no policy can use them."""

    @model_validator(mode="after")
    def _full_grid(self) -> Self:
        for kind in PASS_KINDS:
            cells = [(p.n, p.context) for p in self.passes if p.kind == kind]
            sizes, contexts = {n for n, _ in cells}, {c for _, c in cells}
            if len(cells) != len(set(cells)) or len(cells) != len(sizes) * len(contexts):
                raise ValueError(f"{kind} passes must form a full grid of sizes x contexts, got {cells}")
        return self

    def sizes(self, kind: PassKind) -> list[int]:
        return sorted({p.n for p in self.passes if p.kind == kind})

    def contexts(self) -> list[int]:
        return sorted({p.context for p in self.passes})

    def mean_ns(self, kind: PassKind, n: int) -> float:
        """Time of a pass at the mean of the timed contexts. Raises ValueError for a size that was not timed."""
        times = [p.time_ns for p in self.passes if (p.kind, p.n) == (kind, n)]
        if not times:
            raise ValueError(f"{kind} passes of {n} tokens were not timed; have {self.sizes(kind)}")
        return sum(times) / len(times)

    def cost_ratio(self) -> float:
        """Target-to-draft cost c_t / c_d: the smallest verification pass over the smallest frontier pass (catch-up
        when no frontier was timed), mean over contexts. Both are passes of drafting rounds, so caches are alike."""
        kind: PassKind = "frontier" if self.sizes("frontier") else "catch_up"
        return self.mean_ns("verify", self.sizes("verify")[0]) / self.mean_ns(kind, self.sizes(kind)[0])

    def free_width(self, slack: float = FREE_SLACK) -> int:
        """The largest timed verify size (root counted) whose pass costs at most `slack` more than the smallest one,
        mean over contexts. Up to there a pass is bound by reading weights, and more tokens cost next to nothing."""
        sizes = self.sizes("verify")
        limit = (1 + slack) * self.mean_ns("verify", sizes[0])
        return max(size for size in sizes if self.mean_ns("verify", size) <= limit)


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


class Association(Frozen):
    """How much a signal says about the draft tokens that the reference tier accepts (bonus excluded)."""

    rank_correlation: Interval
    """Spearman."""
    information_nats: Interval
    """Mutual information of the signal, in bins, and `accepted`; what chance alone would show is subtracted."""
    share: Interval
    """The same over the entropy of `accepted`: 0 says nothing, 1 says all."""
    entropy_nats: Annotated[float, Field(ge=0)]
    """Entropy of `accepted`."""
    chance_nats: Annotated[float, Field(ge=0)]
    """What 95 % of signals of other positions show above what chance alone would: more than that is no luck."""


CurvePart = Literal["all", "early", "late", "short", "middle", "long"]
"""Positions of a curve: all, the two halves of positions in the output, the three thirds of context lengths."""


class Curve(Frozen):
    """Entropy-acceptance curve of one signal, one modality and one part of the positions."""

    signal: str
    modality: str
    reference_tier: str
    rank_correlation: float
    """Spearman correlation of the signal with the reference tier's accepted tokens."""
    points: tuple[CurvePoint, ...]
    part: CurvePart = "all"
    bounds: tuple[int, int] | None = None
    """First and last position in the output (early, late) or context length (short, middle, long) of the part."""
    association: Association | None = None
    """None where fewer than three prompts contribute."""


class PolicyResult(Frozen):
    """One row of the final table: a policy or yardstick replayed on the record and, for finalists, measured live."""

    name: str
    tiers: tuple[str, ...]
    """Labels of its tiers, or the fitted parameters of a rule that is no table."""
    verdict: Literal["adaptive", "static", "off"]
    kind: Literal["policy", "rule", "bound"] = "policy"
    """A `policy` can run live as it is, a `rule` is only replayed, a `bound` knows what nobody can know."""
    acceptance_length: float
    """Tokens per round, bonus included."""
    rounds: int
    speedup_replayed: float
    """Time of plain decoding over its own, for all prompts together."""
    speedup_interval: Interval | None = None
    """The same, replayed, with its interval over prompts."""
    gain_over_static: Interval | None = None
    """Replayed time of the best static tier over its own."""
    share_of_oracle: Interval | None = None
    """Replayed time of the oracle over its own; 1 minus this is the regret."""
    speedup_measured: Interval | None = None
