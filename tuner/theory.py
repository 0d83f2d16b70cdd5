"""What SAGE's theory (arXiv 2602.00523) should say: confidence, certainty, depth and width, each beside the claim.

`paper_*` functions are the paper's claims as stated, kept so that tests and docs/theory.md can show where they
fail. Nothing else uses them. Probabilities are plain floats, costs are in any one unit, `accepted` counts draft
tokens and the bonus token is the `+ 1` of every speedup.

The rules for depth and width are one rule: a round yields `1 + sum(gains)` tokens for `fixed + sum(costs)`, and
the next item pays exactly when its own gain per cost is above that ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from runtime.policy.signals import entropy

Floats = npt.NDArray[np.float64]


def confidence(probabilities: Sequence[float] | Floats, k: int) -> float:
    """alpha = 1 - H / log k of one distribution [>= k], its k best renormalised (SAGE Eq 7-9); lies in [0, 1]."""
    best = np.sort(np.asarray(probabilities, dtype=np.float64))[::-1]
    with np.errstate(divide="ignore"):  # log 0 is -inf, which the entropy takes as weight 0
        return 1.0 - float(entropy(np.log(best), k))


def top1_bound(alpha: float, k: int) -> float:
    """Lower bound k^(alpha - 1) on the renormalised top-1 probability at confidence `alpha`.

    No entropy is below -log p1 (min-entropy), so -log p1 <= H = (1 - alpha) log k. Equality for 1/m each on m tokens.
    """
    _check_confidence(alpha, k)
    return float(k ** (alpha - 1.0))


def minimal_top1(alpha: float, k: int) -> float:
    """The least renormalised top-1 probability that any distribution over k tokens has at confidence `alpha`.

    Under a cap x on its probabilities a distribution has the least entropy with floor(1/x) tokens at x and the
    rest on one more. That entropy falls with x, so the x at which it equals H is the minimum; found by bisection.
    """
    _check_confidence(alpha, k)
    wanted = (1.0 - alpha) * math.log(k)
    low, high = 1.0 / k, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _least_entropy(middle) > wanted else (low, middle)
    return high


def paper_lemma_4_3(alpha: float, k: int) -> float:
    """Claimed bound p1 >= 1/k + alpha (k - 1) / k.

    False for k > 2: it is the chord of the convex `top1_bound` from alpha = 0 to 1, hence above it in between, and
    the bound is reached (two tokens at 1/2 each: claimed .73 for k = 10).
    """
    _check_confidence(alpha, k)
    return 1.0 / k + alpha * (k - 1.0) / k


def certainty_threshold(k: int, eps: float, top_mass: float = 1.0) -> float:
    """Confidence above which the draft's top token is the target's greedy token for certain.

    `eps` bounds how far any token's probability may differ between draft and target, `top_mass` is the draft's
    probability of its k best together. From `top1_bound`: top_mass * k^(alpha - 1) > 1/2 + eps, so the target
    gives the token more than 1/2. Above 1 no confidence is enough.
    """
    _check_certainty(k, eps, top_mass)
    return 1.0 + math.log((0.5 + eps) / top_mass) / math.log(k)


def exact_certainty_threshold(k: int, eps: float, top_mass: float = 1.0) -> float:
    """The least such threshold; infinite when no confidence is enough. Arguments as in `certainty_threshold`.

    No other token can overtake when top_mass * p1 - eps > top_mass * (1 - p1) + eps, so the renormalised p1 must be
    above x = 1/2 + eps / top_mass. `minimal_top1` is above x exactly when H is below the entropy of (x, 1 - x).
    """
    _check_certainty(k, eps, top_mass)
    needed = 0.5 + eps / top_mass
    return 1.0 - _least_entropy(needed) / math.log(k) if needed < 1.0 else math.inf


def paper_theorem_4_4(k: int, eps: float) -> float:
    """Claimed threshold (k - 2 + 4 eps k) / (2 (k - 1)), where Lemma 4.3 reaches 1/2 + 2 eps.

    False with that lemma. It also leaves out the mass of the top k, which alpha of renormalised probabilities hides.
    """
    return (k - 2 + 4 * eps * k) / (2 * (k - 1))


def reach_probabilities(acceptance: float, depth: int, decay: float = 1.0) -> Floats:
    """Probability that a chain's levels 1..depth are accepted, [depth]: p^l decay^(l (l - 1) / 2).

    `acceptance` p is that of level 1; each further level multiplies it by `decay` (SAGE Thm 4.6, whose terms these
    are). Raises ValueError outside 0 <= p <= 1, 0 < decay <= 1.
    """
    if not 0.0 <= acceptance <= 1.0 or not 0.0 < decay <= 1.0:
        raise ValueError(f"0 <= acceptance <= 1 and 0 < decay <= 1 must hold, got {acceptance} and {decay}")
    level = np.arange(1, depth + 1, dtype=np.float64)
    reach: Floats = acceptance**level * decay ** (level * (level - 1) / 2)
    return reach


def expected_accepted(acceptance: float, depth: int, decay: float = 1.0) -> float:
    """Expected accepted draft tokens of a chain, bonus excluded: the sum of `reach_probabilities` (SAGE Thm 4.6)."""
    return float(reach_probabilities(acceptance, depth, decay).sum())


def speedup(accepted: float, draft_cost: float, target_cost: float) -> float:
    """(accepted + 1) / (draft_cost + target_cost), SAGE Eq 6 with all drafting of the round in `draft_cost`.

    In units of a plain step it is a speedup, in ns it is tokens per ns.
    """
    return (accepted + 1.0) / (draft_cost + target_cost)


def best_prefix(gains: Sequence[float] | Floats, costs: Sequence[float] | Floats, fixed_cost: float) -> int:
    """How many leading items maximise (1 + sum gains) / (fixed_cost + sum costs); the fewest on a tie.

    Going from ratio R to more items raises it exactly when their joint gain / cost is above R (the ratio of sums
    lies between the two). Items are weighed in blocks since the last improvement: with gain / cost falling a block
    is one item, and a measured cost curve with steps is served exactly too. Costs of single items may even be
    negative, as noise makes them; raises ValueError unless every running total is positive.
    """
    if len(gains) != len(costs) or not all(gain >= 0 for gain in gains):
        raise ValueError(f"one cost per gain and gains >= 0 are needed, got {list(gains)} and {len(costs)} costs")
    totals = fixed_cost + np.cumsum([0.0, *costs])
    if not (totals > 0).all():
        raise ValueError(f"costs must stay positive in total, got {totals.tolist()}")
    best, tokens, cost = 0, 1.0, fixed_cost
    gained = spent = 0.0
    for count, (gain, item_cost) in enumerate(zip(gains, costs, strict=True), start=1):
        gained, spent = gained + gain, spent + item_cost
        if gained * cost > tokens * spent:
            best, tokens, cost = count, tokens + gained, cost + spent
            gained = spent = 0.0
    return best


def optimal_depth(acceptance: float, level_costs: Sequence[float], target_cost: float, *, decay: float = 1.0) -> int:
    """The chain depth in 0..len(level_costs) that maximises Eq 6; the shallowest on a tie.

    Deepen while p^(D+1) / c_d > (E_D + 1) / (c_d D + c_t). `level_costs[d - 1]` is all that a round of depth d costs
    more than one of depth d - 1 (draft pass and larger verification), `target_cost` a round of depth 0.
    """
    return best_prefix(reach_probabilities(acceptance, len(level_costs), decay), level_costs, target_cost)


def paper_theorem_4_7(acceptance: float, draft_cost: float, target_cost: float) -> int:
    """Claimed depth floor(log(c_t / c_d) / log(1 / p) - 1). It deepens until p^(D+1) / c_d falls to 1 / c_t, the
    rate of plain decoding, where the rate of the round itself decides; so mostly far too deep."""
    if not 0.0 < acceptance < 1.0:
        raise ValueError(f"0 < acceptance < 1 must hold, got {acceptance}")
    return math.floor(math.log(target_cost / draft_cost) / math.log(1.0 / acceptance) - 1.0)


def optimal_width(rank_acceptance: Sequence[float], node_cost: float, target_cost: float) -> int:
    """How many siblings, best first, maximise (sum q + 1) / (c W + c_t), the one-level case of Eq 6.

    `rank_acceptance[i]` is the probability q that the draft's child of rank i is the target's token. Widen while
    q_{W+1} > (sum q + 1) c / (c W + c_t).
    """
    return best_prefix(rank_acceptance, [node_cost] * len(rank_acceptance), target_cost)


def paper_theorem_4_8(top_rank_acceptance: float, draft_cost: float, beta: float) -> float:
    """Claimed width (q1 / c_d)^(1 / (1 + beta)) for q_i = q1 i^-beta. No derivation holds: c_t is left out, so
    this changes when both costs are given in another unit, which Eq 6 does not."""
    return float((top_rank_acceptance / draft_cost) ** (1.0 / (1.0 + beta)))


def joint_depths(
    reach: Sequence[Sequence[float]] | Floats,
    level_ns: Sequence[float],
    round_ns: float,
    plain_ns: float,
    *,
    shares: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Chain depth per signal bin that makes the whole output fastest; all 0 when plain decoding is.

    `reach` [bins, depth] is the probability that level l of a chain is accepted in a bin (the share of its positions
    with accepted >= l, where that was recorded); `shares` [bins] weighs the bins by their rounds, equal when None.
    `level_ns` [depth] is what each level adds to a round, `round_ns` a round's verification of the root and host
    time, `plain_ns` a step of plain decoding.

    The speedup is a ratio of totals, so a level pays when its gain per ns is above the rate of the *whole* policy:
    going by each bin's own rate drafts too deep in hard bins and too shallow in easy ones. The rate is found by
    Dinkelbach's iteration (1967): take the best depths for a rate, take their rate, repeat. A signal is read off the
    first draft pass, so a policy that drafts at all pays level 1 in every round and uses it.
    """
    chains, costs = np.asarray(reach, dtype=np.float64), np.asarray(level_ns, dtype=np.float64)
    if chains.ndim != 2 or not chains.size or chains.shape[1] != len(costs):
        raise ValueError(f"reach must be [bins, {len(costs)} levels] and not empty, got shape {chains.shape}")
    if not ((chains >= 0) & (chains <= 1)).all():
        raise ValueError(f"reach must hold probabilities, got {chains.tolist()}")
    weights = np.ones(len(chains)) if shares is None else np.asarray(shares, dtype=np.float64)
    if weights.shape != (len(chains),) or (weights < 0).any() or not weights.sum() > 0:
        raise ValueError(f"one share >= 0 per bin, not all 0, is needed, got {weights.tolist()} for {len(chains)} bins")
    tokens = 1.0 + np.cumsum(chains, axis=1)
    cost_ns = round_ns + np.cumsum(costs)
    if not plain_ns > 0 or not (cost_ns > 0).all():
        raise ValueError(f"times must be positive, got plain_ns={plain_ns} and rounds of {cost_ns.tolist()} ns")
    bins, plain_rate = np.arange(len(chains)), 1.0 / plain_ns
    depths, rate = np.zeros(len(chains), dtype=np.int64), plain_rate
    while True:
        levels = np.argmax(tokens - rate * cost_ns, axis=1)
        improved = float((weights @ tokens[bins, levels]) / (weights @ cost_ns[levels]))
        if improved <= rate:
            return tuple(depths.tolist())
        depths, rate = levels + 1, improved


def _least_entropy(cap: float) -> float:
    """Least entropy in nats of a distribution without a probability above `cap`, 0 < cap <= 1."""
    full = math.floor(1.0 / cap)
    rest = max(1.0 - full * cap, 0.0)
    return -full * cap * math.log(cap) - (rest * math.log(rest) if rest > 0 else 0.0)


def _check_certainty(k: int, eps: float, top_mass: float) -> None:
    if k < 2 or not 0.0 <= eps < 0.5 or not 0.0 < top_mass <= 1.0:
        raise ValueError(f"k >= 2, 0 <= eps < 1/2, 0 < top_mass <= 1 must hold, got {k}, {eps}, {top_mass}")


def _check_confidence(alpha: float, k: int) -> None:
    if k < 2 or not 0.0 <= alpha <= 1.0:
        raise ValueError(f"k >= 2 and 0 <= alpha <= 1 must hold, got k={k}, alpha={alpha}")
