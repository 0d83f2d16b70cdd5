"""The rules are optimal and the bounds hold, each beside the claim of SAGE that fails; docs/theory.md says the same."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner import theory

DOC = Path(__file__).resolve().parent.parent / "docs" / "theory.md"
TWO_EQUAL = [0.5, 0.5, *[0.0] * 8]

shares = st.floats(0.0, 1.0)
weights = st.lists(st.floats(0.001, 1.0), min_size=3, max_size=14)
costs = st.floats(0.001, 1.5)


def depths_of(
    acceptance: list[float],
    levels: list[float],
    round_ns: float,
    plain_ns: float,
    *,
    shares: list[float] | None = None,
    decay: float = 1.0,
) -> tuple[int, ...]:
    """Joint depths of bins whose chains have one acceptance per token each."""
    reach = [theory.reach_probabilities(p, len(levels), decay) for p in acceptance]
    return theory.joint_depths(np.array(reach), levels, round_ns, plain_ns, shares=shares)


def rates(gains: list[float], level_costs: list[float], fixed: float) -> np.ndarray:
    """Tokens per cost of every prefix, the empty one first: what the rules are compared with."""
    return (1 + np.cumsum([0.0, *gains])) / (fixed + np.cumsum([0.0, *level_costs]))


def assert_best(chosen: int, all_rates: np.ndarray) -> None:
    assert all_rates[chosen] == pytest.approx(all_rates.max(), rel=1e-12)


# confidence and the top-1 probability


def test_lemma_4_3_fails_where_two_tokens_share_the_mass() -> None:
    alpha = theory.confidence(TWO_EQUAL, 10)
    assert alpha == pytest.approx(0.699, abs=5e-4)
    assert theory.paper_lemma_4_3(alpha, 10) == pytest.approx(0.729, abs=5e-4)
    assert theory.paper_lemma_4_3(alpha, 10) > max(TWO_EQUAL)
    assert theory.top1_bound(alpha, 10) == pytest.approx(0.5)


@given(weights)
def test_bounds_hold_for_every_distribution(values: list[float]) -> None:
    k = len(values)
    alpha = theory.confidence(values, k)
    top1 = max(values) / sum(values)
    assert theory.top1_bound(alpha, k) <= theory.minimal_top1(alpha, k) + 1e-9
    assert theory.minimal_top1(alpha, k) <= top1 + 1e-6


@given(shares, st.integers(2, 64))
def test_the_minimum_is_attained_and_never_below_the_bound(alpha: float, k: int) -> None:
    least = theory.minimal_top1(alpha, k)
    full = min(int(1 / least), k)
    witness = [*[least] * full, max(1 - full * least, 0.0), *[0.0] * k]
    assert theory.confidence(witness, k) == pytest.approx(alpha, abs=1e-9)
    assert theory.top1_bound(alpha, k) <= least + 1e-12


@pytest.mark.parametrize("k", [3, 10, 50])
def test_the_claim_is_the_chord_of_the_bound(k: int) -> None:
    inside = np.linspace(0, 1, 21)[1:-1]
    assert all(theory.paper_lemma_4_3(a, k) > theory.top1_bound(a, k) for a in inside)
    for end in (0.0, 1.0):
        assert theory.paper_lemma_4_3(end, k) == pytest.approx(theory.top1_bound(end, k))
    # one counter-example per number of equal tokens
    for equal in range(2, k):
        alpha = theory.confidence([1 / equal] * equal + [0.0] * (k - equal), k)
        assert theory.paper_lemma_4_3(alpha, k) > 1 / equal + 1e-3 / k


def test_where_the_claim_is_false_for_ten_tokens() -> None:
    # on a grid of thousandths; the ends lie at .0054 and .7888
    false = [a for a in np.linspace(0, 1, 1001) if theory.paper_lemma_4_3(a, 10) > theory.minimal_top1(a, 10) + 1e-9]
    assert (min(false), max(false)) == (pytest.approx(0.006), pytest.approx(0.788))


def test_confidence_is_of_the_best_k_in_any_order() -> None:
    assert theory.confidence([0.1, 0.4, 0.0, 0.4], 2) == pytest.approx(0.0)
    assert theory.confidence([0.0, 0.3, 0.0], 3) == pytest.approx(1.0)


# certainty


def test_theorem_4_4_fails_for_a_target_that_is_near() -> None:
    draft, target, eps = np.array(TWO_EQUAL), np.array([0.48, 0.52, *[0.0] * 8]), 0.05
    gap = np.abs(draft - target)
    divergence = float((target[:2] * np.log(target[:2] / draft[:2])).sum())
    assert max(gap.max(), gap.sum(), divergence) < eps  # near in any of the usual distances
    assert theory.confidence(draft, 10) > theory.paper_theorem_4_4(10, eps)
    assert draft.argmax() != target.argmax()
    assert theory.confidence(draft, 10) < theory.exact_certainty_threshold(10, eps)


def test_thresholds_for_ten_tokens() -> None:
    assert theory.paper_theorem_4_4(10, 0.05) == pytest.approx(0.556, abs=5e-4)
    assert theory.certainty_threshold(10, 0.05) == pytest.approx(0.740, abs=5e-4)
    assert theory.exact_certainty_threshold(10, 0.05) == pytest.approx(0.701, abs=5e-4)


@given(weights, st.floats(0, 0.2), st.integers(2, 6))
def test_above_the_threshold_no_target_within_eps_disagrees(values: list[float], eps: float, sharpness: int) -> None:
    draft = np.sort(np.array(values) ** sharpness)[::-1]
    draft /= draft.sum()
    k = 3
    alpha, top_mass = theory.confidence(draft, k), min(float(draft[:k].sum()), 1.0)
    exact = theory.exact_certainty_threshold(k, eps, top_mass)
    assert exact <= theory.certainty_threshold(k, eps, top_mass) + 1e-12 or exact == math.inf
    if alpha > theory.certainty_threshold(k, eps, top_mass) + 1e-9:
        assert draft[0] - eps > 0.5
    if alpha > exact + 1e-9:
        assert draft[0] - eps > draft[1] + eps  # the worst target within eps


@given(st.floats(0.001, 0.2), st.floats(0.6, 1.0), st.integers(3, 20))
def test_below_the_exact_threshold_a_target_within_eps_disagrees(eps: float, top_mass: float, k: int) -> None:
    top1 = 0.5 + eps / top_mass - 1e-4
    draft = top_mass * np.array([top1, 1 - top1])
    alpha = theory.confidence([*draft, *[0.0] * k], k)
    assert alpha < theory.exact_certainty_threshold(k, eps, top_mass)
    assert draft[0] - eps < draft[1] + eps


def test_mass_outside_the_top_k_can_rule_certainty_out() -> None:
    assert theory.certainty_threshold(10, 0.05, top_mass=0.5) > 1
    assert theory.exact_certainty_threshold(10, 0.05, top_mass=0.5) < 1
    assert theory.exact_certainty_threshold(10, 0.05, top_mass=0.1) == math.inf


# depth

VECTORS = [
    (0.8, 0.05, 8, 12),
    (0.8, 0.02, 11, 16),
    (0.8, 0.1, 6, 9),
    (0.9, 0.05, 13, 27),
    (0.9, 0.1, 10, 20),
    (0.7, 0.05, 6, 7),
    (0.6, 0.05, 4, 4),
    (0.5, 0.1, 2, 2),
]


@pytest.mark.parametrize(("p", "cost", "best", "claimed"), VECTORS)
def test_depth_check_vectors(p: float, cost: float, best: int, claimed: int) -> None:
    assert theory.optimal_depth(p, [cost] * 64, 1.0) == best
    assert theory.paper_theorem_4_7(p, cost, 1.0) == claimed
    at = [theory.speedup(theory.expected_accepted(p, d), cost * d, 1.0) for d in (best, claimed)]
    assert at[1] == at[0] if claimed == best else at[1] < at[0]


@given(shares, st.lists(costs, min_size=1, max_size=24), st.floats(0.5, 1.0), costs)
def test_depth_is_the_brute_force_optimum(p: float, levels: list[float], decay: float, target_cost: float) -> None:
    reach = [p**d * decay ** (d * (d - 1) / 2) for d in range(1, len(levels) + 1)]
    assert_best(theory.optimal_depth(p, levels, target_cost, decay=decay), rates(reach, levels, target_cost))


@given(st.floats(0.01, 0.97), st.floats(0.005, 0.9))
def test_the_local_rule_is_enough_when_levels_cost_the_same(p: float, cost: float) -> None:
    depth, accepted = 0, 0.0
    while depth < 200 and p ** (depth + 1) / cost > (accepted + 1) / (cost * depth + 1):
        depth += 1
        accepted += p**depth
    found = theory.optimal_depth(p, [cost] * 200, 1.0)
    all_rates = rates([p**d for d in range(1, 201)], [cost] * 200, 1.0)
    assert all_rates[found] == pytest.approx(all_rates[depth], rel=1e-12)
    # the theorem is one too shallow at the worst, and never faster
    claimed = max(theory.paper_theorem_4_7(p, cost, 1.0), 0)
    assert claimed >= found - 1
    assert theory.speedup(theory.expected_accepted(p, claimed), cost * claimed, 1.0) <= all_rates[found] * (1 + 1e-12)


def test_the_local_rule_stops_short_of_a_costly_first_level() -> None:
    levels = [1.2, *[0.1] * 9]
    assert 0.9 / levels[0] < 1  # level 1 alone does not pay against a bare round
    assert_best(theory.optimal_depth(0.9, levels, 1.0), rates([0.9**d for d in range(1, 11)], levels, 1.0))
    assert theory.optimal_depth(0.9, levels, 1.0) > 1


def test_theorem_4_7_errs_to_both_sides() -> None:
    assert theory.paper_theorem_4_7(0.5, 0.4, 1.0) == 0 < theory.optimal_depth(0.5, [0.4] * 9, 1.0)
    assert theory.paper_theorem_4_7(0.9, 0.1, 1.0) == 2 * theory.optimal_depth(0.9, [0.1] * 64, 1.0)


def test_expected_accepted_is_that_of_a_simulated_chain() -> None:
    p, decay, depth = 0.8, 0.9, 6
    hit = np.random.default_rng(0).random((200_000, depth)) < p * decay ** np.arange(depth)
    assert theory.expected_accepted(p, depth, decay) == pytest.approx(np.cumprod(hit, axis=1).sum(axis=1).mean(), 0.01)
    assert theory.expected_accepted(0.0, 3) == 0.0 and theory.expected_accepted(1.0, 3) == 3.0


# width


@given(st.lists(st.floats(0.0, 1.0), max_size=16), costs, costs)
def test_width_is_the_brute_force_optimum(values: list[float], cost: float, target_cost: float) -> None:
    q = sorted((value / max(sum(values), 1.0) for value in values), reverse=True)
    all_rates = rates(q, [cost] * len(q), target_cost)
    assert_best(theory.optimal_width(q, cost, target_cost), all_rates)
    width = 0
    while width < len(q) and q[width] > (sum(q[:width]) + 1) * cost / (cost * width + target_cost):
        width += 1
    assert_best(width, all_rates)


def test_a_tie_goes_to_the_smaller_tree() -> None:
    assert theory.optimal_width([1.0], 1.0, 1.0) == 0
    assert theory.optimal_width([1.0, 0.5, 0.0], 0.5, 1.5) == 1


def test_theorem_4_8_changes_with_the_unit_of_cost_and_misses_the_optimum() -> None:
    q1, beta, cost = 0.3, 1.0, 0.02
    q = [q1 / rank**beta for rank in range(1, 11)]
    assert theory.optimal_width(q, cost, 1.0) == theory.optimal_width(q, 1000 * cost, 1000.0) == 9
    claimed = theory.paper_theorem_4_8(q1, cost, beta)
    assert claimed == pytest.approx(3.87, abs=5e-3)
    assert theory.paper_theorem_4_8(q1, 1000 * cost, beta) < 1
    best = rates(q, [cost] * 10, 1.0)
    assert max(best[3], best[4]) < 0.97 * best[9]


# depths of bins


@given(
    st.lists(st.lists(shares, min_size=4, max_size=4), min_size=1, max_size=3),
    st.lists(costs, min_size=4, max_size=4),
    st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3),
    costs,
    costs,
)
def test_joint_depths_are_the_brute_force_optimum(
    acceptance: list[list[float]], levels: list[float], weight: list[float], round_cost: float, plain: float
) -> None:
    reach = np.cumprod(acceptance, axis=1)
    weight = weight[: len(reach)]

    def rate(depths: tuple[int, ...]) -> float:
        tokens = sum(w * (1 + r[:d].sum()) for w, r, d in zip(weight, reach, depths, strict=True))
        return float(tokens / sum(w * (round_cost + sum(levels[:d])) for w, d in zip(weight, depths, strict=True)))

    best = max(rate(depths) for depths in itertools.product(range(1, 5), repeat=len(reach)))
    chosen = theory.joint_depths(reach, levels, round_cost, plain, shares=weight)
    if any(chosen):
        assert min(chosen) >= 1 and rate(chosen) == pytest.approx(best, rel=1e-12) and best > 1 / plain
    else:
        assert best <= 1 / plain * (1 + 1e-12)


def test_a_bin_counts_by_its_share_of_rounds() -> None:
    chain, levels = [0.9, 0.6], [0.1] * 20
    mostly_easy = depths_of(chain, levels, 1.0, 1.0, shares=[99, 1])
    mostly_hard = depths_of(chain, levels, 1.0, 1.0, shares=[1, 99])
    # a bin that is nearly all rounds gets its own optimum; the other one deepens while p^d / 0.1 is above that rate
    assert mostly_easy[0] == theory.optimal_depth(0.9, levels, 1.0) and mostly_easy[1] == 2
    assert mostly_hard[1] == theory.optimal_depth(0.6, levels, 1.0) and mostly_hard[0] == 16


def test_going_by_the_rate_of_each_bin_is_slower() -> None:
    levels = [0.1] * 20
    together = depths_of([0.95, 0.5, 0.2], levels, 1.0, 1.0)
    alone = tuple(depths_of([p], levels, 1.0, 1.0)[0] for p in (0.95, 0.5, 0.2))
    assert (together, alone) == ((20, 1, 1), (15, 2, 1))


@given(shares, st.lists(costs, min_size=1, max_size=12), costs)
def test_one_bin_gets_the_optimal_depth_or_none(p: float, levels: list[float], round_ns: float) -> None:
    chains = rates([p**d for d in range(1, len(levels) + 1)], levels, round_ns)
    for plain_ns, pays in ((1.001 / chains[1:].max(), True), (0.999 / chains[1:].max(), False)):
        (depth,) = depths_of([p], levels, round_ns, plain_ns)
        assert (chains[depth] == pytest.approx(chains[1:].max(), rel=1e-9) and depth >= 1) if pays else depth == 0


@given(st.lists(shares, min_size=2, max_size=6), st.lists(costs, min_size=3, max_size=8), st.floats(0.6, 1.0))
def test_depths_rise_with_acceptance(acceptance: list[float], levels: list[float], decay: float) -> None:
    depths = depths_of(sorted(acceptance), levels, 1.0, 1.1, decay=decay)
    assert list(depths) == sorted(depths)


def test_depths_do_not_depend_on_the_clock_unit() -> None:
    acceptance, levels = [0.9, 0.6], [3.0, *[1.0] * 7]
    ms = depths_of(acceptance, levels, 8.0, 7.0, shares=[1, 3], decay=0.95)
    ns = depths_of(acceptance, [1e6 * c for c in levels], 8e6, 7e6, shares=[1, 3], decay=0.95)
    assert ms == ns and ms[0] > ms[1] >= 1


# refusals


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: theory.top1_bound(1.2, 10), "0 <= alpha <= 1 must hold, got k=10, alpha=1.2"),
        (lambda: theory.minimal_top1(0.5, 1), "k >= 2 .* got k=1"),
        (lambda: theory.certainty_threshold(10, 0.5), "eps < 1/2"),
        (lambda: theory.reach_probabilities(1.1, 3), "got 1.1 and 1.0"),
        (lambda: theory.paper_theorem_4_7(1.0, 0.1, 1.0), "0 < acceptance < 1 must hold, got 1.0"),
        (lambda: theory.best_prefix([0.5], [0.1, 0.2], 1.0), r"got \[0.5\] and 2 costs"),
        (lambda: theory.best_prefix([math.nan], [0.1], 1.0), r"gains >= 0 are needed, got \[nan\]"),
        (lambda: theory.best_prefix([0.5], [-2.0], 1.0), r"positive in total, got \[1.0, -1.0\]"),
        (lambda: theory.joint_depths([[0.5]], [1.0, 1.0], 1.0, 1.0), r"got shape \(1, 1\)"),
        (lambda: theory.joint_depths([[1.5]], [1.0], 1.0, 1.0), r"probabilities, got \[\[1.5\]\]"),
        (lambda: depths_of([], [1.0], 1.0, 1.0), "not empty"),
        (lambda: depths_of([0.5], [1.0], 1.0, 1.0, shares=[0.0]), r"not all 0, is needed, got \[0.0\]"),
        (lambda: depths_of([0.5], [1.0], 1.0, 0.0), "got plain_ns=0.0"),
    ],
)
def test_impossible_arguments_are_refused(call: object, rule: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=rule):
        call()


# docs/theory.md


def test_the_table_of_the_docs_is_what_the_functions_say() -> None:
    rows = re.findall(r"^\| (0\.\d+) \| (0\.\d+) \| (\d+) \| (\d+) \| ([\d.]+) % \|$", DOC.read_text("utf-8"), re.M)
    assert [(float(p), float(cost), int(best), int(claim)) for p, cost, best, claim, _ in rows] == sorted(VECTORS)
    for p, cost, best, claimed, lost in rows:
        at = [
            theory.speedup(theory.expected_accepted(float(p), int(d)), float(cost) * int(d), 1.0)
            for d in (best, claimed)
        ]
        assert 100 * (1 - at[1] / at[0]) == pytest.approx(float(lost), abs=0.051)


def test_links_of_the_docs_lead_to_files() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", DOC.read_text("utf-8"))
    assert {"theory_bounds.svg", "theory_depth.svg"} <= set(links)
    for link in links:
        assert (DOC.parent / link).is_file(), link
