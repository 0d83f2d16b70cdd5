"""Losslessness and exactness: two outputs token for token, and live rounds against replayed rounds.

Passes of different shape round differently, so a decision between two nearly equal numbers may fall either
way. Such a near tie is shown with its margin and counted; anything else is a bug.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiles.errors import LosslessError
from profiles.growth import Feature, GrowthTree
from profiles.policy import CompiledPolicy, Tier
from profiles.sampling import GREEDY, Sampling, SamplingRegime
from runtime.backends.base import causal
from runtime.filters import filtered
from runtime.noise import gumbel
from runtime.pair import Pair
from runtime.policy.controller import smoothed
from runtime.policy.growth import log_gate
from runtime.policy.signals import asked
from runtime.prompts import Prompt
from runtime.records import StepRecord
from runtime.sampling import resolved, shaped
from tuner.outcomes import Record
from tuner.replay import Walk

NEAR_TIE = 1e-5
"""Margin in nats below which a decision may fall either way in float32: about five spacings of its numbers at a logit
of 16."""
TIE_SPACINGS = 4.0
"""The same in spacings of a half-precision number at the largest logit of the row, where the result of a pass is
rounded most coarsely. Measured on SmolLM2-135M in bfloat16 between passes of one token and of many: half of the margins
move by at most half a spacing, 99 % by 2.5, none of 672 by more than 4."""
STORED_BITS = {"bfloat16": 7, "float16": 10}
"""Bits of the fraction: a number of [2^e, 2^(e+1)) is 2^(e - bits) away from the next."""


def near_tie(dtype: str, largest_logit: float) -> float:
    """Margin in nats below which a decision may fall either way in a dtype, for a row with logits up to
    `largest_logit` in size."""
    if dtype not in STORED_BITS:
        return NEAR_TIE
    exponent = math.frexp(largest_logit)[1] - 1
    return TIE_SPACINGS * math.ldexp(1.0, exponent - STORED_BITS[dtype])


@dataclass(frozen=True)
class Divergence:
    """First position where two outputs differ, and by how much the target's logits would have to move there for another
    token to be chosen."""

    position: int
    margin: float
    top2: tuple[int, int]
    tolerance: float = NEAR_TIE
    """Margin below which it is a near tie (`near_tie`)."""

    @property
    def verdict(self) -> str:
        return "tie" if self.margin < self.tolerance else "bug"


def first_divergence(
    pair: Pair, prompt: Prompt, plain: list[int], other: list[int], sampling: Sampling = GREEDY
) -> Divergence | None:
    """Compare an output with plain decoding under the same sampling; None when they are equal."""
    if plain == other:
        return None
    shared = min(len(plain), len(other))
    position = next((i for i in range(shared) if plain[i] != other[i]), shared)
    settings = resolved(pair, sampling)
    target = shaped(pair, GREEDY.model_copy(update={"repetition_penalty": settings.repetition_penalty})).target
    session, rows = target.open(prompt, len(prompt) + position + 1)
    if position:
        start = session.length
        rows = session.forward(plain[:position], np.arange(start, start + position), causal(position, start))
    logits = rows.logits()[-1]
    tolerance = near_tie(pair.target.dtype, float(np.abs(logits).max()))
    if not settings.sampled:
        return Divergence(position, *_lead(logits.astype(np.float64)), tolerance)
    noise = gumbel(settings.seed, len(prompt) + position, len(logits))
    return Divergence(position, *sampled_margin(logits, settings, noise), tolerance)


def sampled_margin(
    logits: npt.NDArray[np.float32], regime: SamplingRegime, noise: npt.NDArray[np.float32]
) -> tuple[float, tuple[int, int]]:
    """By how many nats logits [vocab] must move for another token to be drawn, and the two best tokens.

    Another token is drawn when the perturbed order changes, or when top-k or top-p takes in or leaves out a token at
    its edge; such a change counts only where it changes the draw.
    """
    scaled = filtered(logits[None], regime)[0].astype(np.float64)
    lead, top2 = _lead(scaled + noise)
    everything = logits.astype(np.float64) / regime.temperature
    order = np.argsort(-everything, kind="stable")
    kept = int(np.isfinite(scaled).sum())
    # how far the filters are from keeping another number of tokens
    sizes = {kept: 0.0}
    if 0 < regime.top_k <= kept < len(order):
        # tokens that tie with the k-th are kept as well
        sizes |= {
            regime.top_k: 0.0,
            regime.top_k + 1: float(everything[order[regime.top_k - 1]] - everything[order[regime.top_k]]),
        }
    if regime.top_p < 1:
        by_top_k = filtered(logits[None], regime.model_copy(update={"top_p": 1.0}))[0].astype(np.float64)[order]
        weights = np.exp(by_top_k - by_top_k[0])
        mass = np.cumsum(weights) / weights.sum()
        # moving logits by x moves the mass m of a set by at most 2 m (1 - m) x <= x / 2
        if kept < np.isfinite(by_top_k).sum():
            sizes[kept + 1] = 2 * float(mass[kept - 1] - regime.top_p)
        if kept > 1:
            sizes[kept - 1] = 2 * float(regime.top_p - mass[kept - 2])
    for size, gap in sizes.items():
        # the last token in may change places with the first one out
        swapped = [(order[:size], gap)]
        if size < len(order):
            gap = max(gap, float(everything[order[size - 1]] - everything[order[size]]))
            swapped.append((np.append(order[: size - 1], order[size]), gap))
        for tokens, distance in swapped:
            if tokens[(everything + noise)[tokens].argmax()] != top2[0]:
                lead = min(lead, distance)
    return lead * regime.temperature, top2


def _lead(scores: npt.NDArray[np.float64]) -> tuple[float, tuple[int, int]]:
    """Lead of the best score over the second, and their tokens."""
    second, best = np.argsort(scores, kind="stable")[-2:]
    return float(scores[best] - scores[second]), (int(best), int(second))


def require_equal(
    pair: Pair, prompt: Prompt, plain: list[int], other: list[int], what: str, sampling: Sampling = GREEDY
) -> bool:
    """True when equal, False for a near tie. Raises LosslessError for anything else."""
    found = first_divergence(pair, prompt, plain, other, sampling)
    if found is None:
        return True
    if found.verdict == "tie":
        return False
    raise LosslessError(
        f"{what}: output differs from plain decoding at token {found.position}; the target's margin there is "
        f"{found.margin:.2e} nats (top 2: {found.top2}), a near tie in {pair.target.dtype} is below "
        f"{found.tolerance:.2g}, so this is a bug and no number of it counts"
    )


@dataclass(frozen=True)
class RoundComparison:
    """Live rounds of one generation against its replayed rounds."""

    rounds: int
    equal: int
    """Rounds with the same position, tier, accepted, nodes and levels."""
    first_margin: float | None
    """Margin of the first differing decision; later rounds of that generation are not comparable."""


def compare_rounds(
    live: list[StepRecord], policy: CompiledPolicy, walk: Walk, sample: int, record: Record
) -> RoundComparison:
    """Round by round. `walk` must contain `sample`, an index into the record."""
    record = record.under(policy.pruning) if policy.drafts() else record
    mine = np.nonzero(walk.samples == sample)[0]
    for i, step in enumerate(live):
        if i >= len(mine):
            return RoundComparison(len(live), i, 0.0)
        row = mine[i]
        replayed = (
            int(walk.at[row] - record.start[sample]),
            policy.tiers[walk.choice[row]],
            int(walk.accepted[row]),
            int(walk.nodes[row]),
            int(walk.levels[row]),
        )
        if replayed != (step.position, step.tier, step.accepted, step.nodes, step.levels):
            asked = (live[i - 1].signal if i else math.inf) if policy.signal.lag else step.signal
            return RoundComparison(i + 1, i, _margin(step.tier, asked, policy, record, int(walk.at[row])))
    if len(live) != len(mine):
        return RoundComparison(max(len(live), len(mine)), min(len(live), len(mine)), math.inf)
    return RoundComparison(len(live), len(live), None)


def least_margin(policy: CompiledPolicy, walk: Walk, sample: int, record: Record) -> float:
    """How close the closest decision of a sample's replayed rounds was, in nats of the logits: what differs between
    machines by less than this changes no round. `walk` must contain `sample`."""
    spec, mean, previous, margins = policy.signal, math.nan, math.inf, [math.inf]
    values = record.signal(spec.kind, spec.top_k) if policy.edges else None
    for row in np.nonzero(walk.samples == sample)[0]:
        at = int(walk.at[row])
        here = math.inf if values is None else float(values[at])
        if spec.smoothing and values is not None:
            here = mean = smoothed(here if math.isnan(mean) else mean, here, spec.smoothing)
        asked_for, previous = (previous if spec.lag else here), here
        margins.append(_margin(policy.tiers[walk.choice[row]], asked_for, policy, record, at))
    return min(margins)


def _margin(tier: Tier, signal: float, policy: CompiledPolicy, record: Record, at: int) -> float:
    """How close the closest decision of a round was: signal to edge, frontier to stop, and the scores on either
    side of every cut (the frontier of each level, the node budget). Scores are counted in nats of the logits."""
    gaps = [abs(signal - edge) for edge in policy.edges]
    if tier.depth:
        draft = record.draft(tier.draft_rule)
        levels = draft.scores[at, : tier.depth].astype(np.float64)
        gaps += [_cut(scores, int(rows)) for scores, rows in zip(levels, draft.frontier[at], strict=False) if rows]
        ranked = np.sort(levels.reshape(-1))[::-1]
        gaps += [_cut(ranked, size - 1) for size in policy.verify_sizes[1:]] + [_cut(ranked, tier.nodes)]
        for gates in (tier.gates, tier.keep):
            for scores, gate in zip(levels, gates, strict=False):
                gaps += np.abs(scores[np.isfinite(scores)] - log_gate(gate)).tolist()
        if policy.growth is not None:
            gaps += _tree_gaps(policy.growth, tier, record, at)
    return min(gaps, default=math.inf) * record.manifest.sampling.logit_scale


def _tree_gaps(tree: GrowthTree, tier: Tier, record: Record, at: int) -> list[float]:
    """Distance of everything the decision tree could ask in this round to its thresholds."""
    signals: dict[Feature, float] = {kind: record.signal(kind, tree.top_k)[at] for kind in asked(tree)}
    gaps = []
    for level in range(1, tier.depth + 1):
        values: dict[Feature, float] = dict(signals)
        values |= {name: v[at] for name, v in record.draft(tier.draft_rule).level_features(level).items()}
        pairs = zip(tree.features, tree.thresholds, strict=True)
        gaps += [abs(float(values[f]) - threshold) for f, threshold in pairs if np.isfinite(values[f])]
    return gaps


def _cut(scores: npt.NDArray[np.float64], kept: int) -> float:
    """Gap between the last kept and the first dropped of sorted scores."""
    if kept >= len(scores) or not np.isfinite(scores[kept]):
        return math.inf
    return float(scores[kept - 1] - scores[kept])
