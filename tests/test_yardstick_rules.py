"""Each yardstick against its own definition: brute force, check values, scalar versions, planted behaviour."""

from __future__ import annotations

import itertools
import math
import pathlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import EnvelopeError
from profiles.measurement import CostTable
from profiles.policy import DraftRule, Tier
from profiles.sampling import AS_MADE, Sampling
from runtime.policy.signals import entropy_nats
from runtime.sampling import shaped
from tests.fakes import fake_pair, fake_prompt
from tests.records import SAMPLED, chance_costs, chance_record, record_of
from tests.reference import logprobs, next_logits
from tests.strategies import SIGNAL_LOGPROBS, VERIFY_SIZES
from tests.test_replay import costs
from tests.test_yardsticks import GRID, RULES, SEEDS, SPLITS
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.yardsticks.acceptance_ema import INTERVAL, WARM_UP, EmaAgent
from tuner.yardsticks.adaedl import MEMORY, RATE_MEMORY, STEP, AdaEdlAgent
from tuner.yardsticks.bandit import UcbAgent
from tuner.yardsticks.base import Arena
from tuner.yardsticks.chains import Chains, chains
from tuner.yardsticks.ladder import Rung, ladders
from tuner.yardsticks.opt_tree import expected_accepted, levels_until
from tuner.yardsticks.rank_tree import EAGLE_PATHS, Path, RankTree, clipped, fixed_tree, rank_tree
from tuner.yardsticks.sequoia import MeanCosts, best_first, rank_acceptance, sequoia
from tuner.yardsticks.smart import grown

EAGLE = RankTree(EAGLE_PATHS)


@pytest.fixture(scope="module", params=[AS_MADE, SAMPLED], ids=["greedy", "sampled"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    return record_of(tmp_path_factory.mktemp("trace"), RULES, SPLITS, SEEDS, request.param)


@pytest.fixture(scope="module")
def by_chance(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return chance_record(tmp_path_factory.mktemp("trace"), RULES, SPLITS, seed=5)


def arena_of(record: Record, table: CostTable | None = None) -> Arena:
    return Arena(Replay(record, table or costs()), GRID)


# rank trees


def drafted_paths(tree: RankTree, sample: int, committed: list[int], sampling: Sampling) -> dict[tuple[int, ...], Path]:
    """Token paths of a tree drafted for real: every node that has children is run alone, from scratch. A node whose
    rank the draft's filters leave out is padding, and so is what would be below it."""
    pair, prompt = shaped(fake_pair(), sampling), fake_prompt(SEEDS[sample])
    tokens: dict[Path, tuple[int, ...]] = {(): ()}
    for path in sorted(tree.paths, key=len):
        parent = tokens.get(path[:-1])
        if parent is None:
            continue
        scores = logprobs(next_logits(pair.draft, prompt, [*committed, *parent]))
        token = int(np.argsort(-scores, kind="stable")[path[-1]])
        if np.isfinite(scores[token]):
            tokens[path] = (*parent, token)
    return {tokens[path]: path for path in tree.paths if path in tokens}


@pytest.mark.parametrize("tree", [RankTree(((0,), (1,), (0, 0), (0, 2), (1, 0), (0, 0, 1))), RankTree(((2,), (2, 0)))])
def test_a_rank_tree_accepts_what_drafting_it_would(record: Record, tree: RankTree) -> None:
    outcome = tree.outcome(record)
    for sample in (0, 5):
        output = list(record.samples[sample].output)
        for at in range(int(record.start[sample]), int(record.end[sample])):
            i = at - int(record.start[sample])
            drafted = drafted_paths(tree, sample, output[: i + 1], record.sampling(sample))
            accepted: Path = ()
            for length in range(1, len(output) - i):
                found = drafted.get(tuple(output[i + 1 : i + 1 + length]))
                if found is None:
                    break
                accepted = found
            assert outcome.accepted[at] == len(accepted)
            is_leaf = bool(accepted) and not any(path[:-1] == accepted for path in tree.paths)
            assert outcome.unseen[at] == 1 + is_leaf
    assert set(outcome.levels) == {tree.depth} and set(outcome.nodes) == {len(tree.paths)}
    assert sum(size * int(passes[0]) for size, passes in outcome.frontiers) == len(tree.parents)


def test_a_token_that_the_draft_never_proposes_has_no_rank(tmp_path: pathlib.Path) -> None:
    """The narrowest filters, so that the drawn token is often among those that the draft leaves out."""
    narrow = SAMPLED.model_copy(update={"temperature": 1.6, "top_k": 3, "top_p": 1.0})
    record = record_of(tmp_path, RULES, SPLITS, SEEDS, narrow)
    rank, logprob = record.column("true_rank"), record.column("root_logprobs")
    assert np.isneginf(logprob).any()
    assert (rank >= 0).any() and np.isfinite(logprob[rank >= 0, rank[rank >= 0]]).all()


def test_a_chain_is_a_rank_tree(record: Record) -> None:
    tree = RankTree(tuple((0,) * length for length in range(1, 5)))
    mine, beam = tree.outcome(record), record.outcome(Tier(depth=4, width=1, nodes=4))
    for name in ("accepted", "nodes", "levels", "unseen"):
        assert np.array_equal(getattr(mine, name), getattr(beam, name)), name
    replay = Replay(record, costs())
    assert np.allclose(replay.round_ns(mine, VERIFY_SIZES), replay.round_ns(beam, VERIFY_SIZES))


def test_the_25_nodes_and_what_a_small_grid_leaves_of_them(record: Record) -> None:
    assert EAGLE.label() == "25 nodes, levels 4,8,8,3,2" and EAGLE.frontiers == [4, 4, 1, 1]
    assert clipped(EAGLE, depth=8, nodes=31, ranks=20, frontier=4) == EAGLE
    assert clipped(EAGLE, depth=1, nodes=3, ranks=20, frontier=0).paths == ((0,), (1,), (2,))
    chain = clipped(EAGLE, depth=8, nodes=31, ranks=1, frontier=4)
    assert chain.paths == tuple((0,) * length for length in range(1, 6))
    found = rank_tree(arena_of(record))
    assert found.detail == "23 nodes, levels 4,7,7,3,2 (25 nodes clipped to the grid)"


@given(st.integers(1, 6), st.integers(1, 26), st.integers(1, 5), st.integers(0, 5))
def test_a_clipped_tree_keeps_the_limits(depth: int, nodes: int, ranks: int, frontier: int) -> None:
    tree = clipped(EAGLE, depth, nodes, ranks, frontier)
    assert set(tree.paths) <= set(EAGLE_PATHS) and tree.depth <= depth and len(tree.paths) <= nodes
    assert max(map(max, tree.paths)) < ranks and max(tree.frontiers, default=0) <= frontier


def test_trees_outside_the_record_are_refused(record: Record) -> None:
    arena = arena_of(record)
    with pytest.raises(ValueError, match="parents are in it"):
        RankTree(((0,), (1, 0)))
    with pytest.raises(EnvelopeError, match="rank 8 of a tree is outside the record"):
        RankTree(((SIGNAL_LOGPROBS,),)).outcome(record)
    wide = tuple((rank,) for rank in range(4)), tuple((rank, 0) for rank in range(4))
    with pytest.raises(EnvelopeError, match="frontier passes of 4 tokens were not measured"):
        fixed_tree("x", RankTree(wide[0] + wide[1]), "", arena)
    with pytest.raises(EnvelopeError, match="nodes <= 23 of the grid must hold"):
        fixed_tree("x", EAGLE, "", arena)
    with pytest.raises(EnvelopeError, match="depth <= 5 and"):
        fixed_tree("x", RankTree(tuple((0,) * length for length in range(1, 7))), "", arena)


# Sequoia


def recursion(acceptance: Sequence[float], nodes: int, depth: int) -> float:
    """c(n, d) of the paper: each child of rank b gets a_b nodes of its own."""

    @cache
    def c(n: int, d: int) -> float:
        return 1.0 + shared(n - 1, d - 1, 0) if d > 1 else 1.0

    @cache
    def shared(n: int, d: int, rank: int) -> float:
        if n == 0 or rank == len(acceptance):
            return 0.0
        return max(
            (acceptance[rank] * c(mine, d) if mine else 0.0) + shared(n - mine, d, rank + 1) for mine in range(n + 1)
        )

    return c(nodes, depth)


PAPER = (0.6342, 0.1079, 0.0570, 0.0225, 0.0195, 0.0150, 0.0045, 0.0030, 0.0120, 0.0045, 0.0075)


@pytest.mark.parametrize(("nodes", "tokens"), [(4, 2.2915), (8, 2.7322)])
def test_check_values_of_sequoia(nodes: int, tokens: float) -> None:
    assert recursion(PAPER, nodes, nodes) == pytest.approx(tokens, abs=5e-5)
    chosen = best_first(PAPER, nodes - 1, nodes - 1, nodes)
    assert 1.0 + sum(product for product, _ in chosen) == pytest.approx(tokens, abs=5e-5)


acceptances = st.lists(st.floats(0.0, 0.6), min_size=1, max_size=4).map(lambda p: [x / max(sum(p), 1.0) for x in p])


@settings(max_examples=50)
@given(acceptances, st.integers(2, 12), st.integers(2, 5))
def test_best_first_is_the_recursion(acceptance: list[float], nodes: int, depth: int) -> None:
    chosen = best_first(acceptance, nodes - 1, depth - 1, nodes)
    assert 1.0 + sum(product for product, _ in chosen) == pytest.approx(recursion(acceptance, nodes, depth))
    if chosen:
        RankTree(tuple(path for _, path in chosen))  # closed under parents


@settings(max_examples=25)
@given(acceptances, st.integers(1, 2))
def test_no_tree_within_the_frontier_limit_is_better(acceptance: list[float], frontier: int) -> None:
    depth, ranks = 3, range(min(len(acceptance), 2))
    every = [path for d in range(1, depth + 1) for path in itertools.product(ranks, repeat=d)]
    products = {path: math.prod(acceptance[rank] for rank in path) for path in every}
    for nodes in (3, 4, 5):
        best = 0.0
        for paths in itertools.combinations(every, min(nodes, len(every))):
            known = {(), *paths}
            if all(path[:-1] in known for path in paths) and max(RankTree(paths).frontiers, default=0) <= frontier:
                best = max(best, sum(products[path] for path in paths))
        chosen = best_first([acceptance[rank] for rank in ranks], nodes, depth, frontier)
        assert sum(product for product, _ in chosen) >= best - 1e-12


def test_sequoia_weighs_tokens_against_the_time_of_its_round(by_chance: Record) -> None:
    arena = arena_of(by_chance, chance_costs(3))
    found = sequoia(arena)
    assert found is not None
    acceptance, times = rank_acceptance(arena), MeanCosts(arena)
    tune = np.isin(by_chance.sample_of, arena.tune)
    assert acceptance[0] == pytest.approx((by_chance.column("true_rank")[tune] == 0).mean())
    # the mean round of its choice is what replay charges, one token to catch up on
    row = found.rows[0]
    charged = arena.replay.rounds.time_ns(found.rows, np.arange(by_chance.positions)) + arena.replay.catch_up_ns[1]
    levels = int(arena.replay.rounds.ints("levels", row, np.array(0)))
    nodes = int(arena.replay.rounds.ints("nodes", row, np.array(0)))
    prices = []
    for frontier in range(1, 4):
        chosen = best_first(acceptance.tolist(), nodes, levels, frontier)
        tree = RankTree(tuple(path for _, path in chosen))
        prices.append((times.round_ns(tree) / (1.0 + sum(p for p, _ in chosen)), times.round_ns(tree)))
    assert min(prices)[1] == pytest.approx(charged[tune].mean())


# chains


def test_chain_entropies_are_those_of_the_drafted_nodes(record: Record) -> None:
    """Exact where they can be seen again: while the chain follows the output, its distributions are root
    distributions of later positions."""
    entropy = record.column("beam_1.frontier_entropy")
    root = entropy_nats(record.column("root_logprobs"))
    matched = record.outcome(Tier(depth=GRID.depth, width=1, nodes=GRID.depth)).accepted
    assert np.isfinite(entropy).all()
    seen = 0
    for at in range(record.positions):
        last = int(record.end[record.sample_of[at]])
        for level in range(min(int(matched[at]) + 1, GRID.depth, last - at)):
            assert entropy[at, level] == pytest.approx(root[at + level], abs=1e-5)
            seen += level > 0
    assert seen > 20


def test_a_stopped_chain_keeps_the_token_that_ended_it(record: Record) -> None:
    found = chains(arena_of(record))
    assert found is not None
    h = 0.9
    rows = found.stopped(np.sqrt(found.entropy) > h)
    for at in range(record.positions):
        drafted = 0
        for value in found.entropy[at]:
            drafted += 1
            if math.sqrt(value) > h:
                break
        assert rows[at] == found.rows[drafted - 1]


def test_adaedl_follows_its_update() -> None:
    found = Chains(np.array([10, 11, 12]), np.zeros((2, 3)))
    bounds = [[0.9, 0.45, 0.2], [0.9, 0.8, 0.7]]
    agent = AdaEdlAgent(found, bounds, target=0.8, first=0.5)
    floor, rate = 0.5, 0.8
    for at, accepted, row in ((0, 1, 11), (1, 3, 12), (0, 2, 11), (0, 2, 11), (0, 2, 11)):
        assert agent.choose(at) == row
        agent.observe(row, accepted, 1.0)
        drafted = row - 9
        rate = RATE_MEMORY * rate + (1 - RATE_MEMORY) * accepted / drafted
        following = floor + STEP if rate < 0.8 else floor if drafted == 3 else floor - STEP
        floor = MEMORY * floor + (1 - MEMORY) * following
        assert agent._lambda == pytest.approx(floor)


# trees of the draft's own probabilities


def test_expected_tokens_are_the_largest_products(record: Record) -> None:
    draft = record.draft(DraftRule(width=3))
    expected = expected_accepted(draft, [1, 4, 23])
    for at, level in itertools.product((0, 7, 40), range(1, GRID.depth + 1)):
        scores = draft.scores[at, :level].reshape(-1)
        products = sorted(np.exp(scores[np.isfinite(scores)].astype(float)), reverse=True)
        for i, nodes in enumerate((1, 4, 23)):
            assert expected[i, at, level - 1] == pytest.approx(sum(products[:nodes]))


def test_opt_tree_ends_with_the_layer_that_adds_little() -> None:
    gain = np.array([[0.9, 0.5, 0.05, 0.4], [0.9, 0.5, 0.4, 0.3], [0.0, 0.5, 0.5, 0.5]])
    assert levels_until(gain, 0.1, 4).tolist() == [3, 4, 1]
    assert levels_until(gain, 0.1, 2).tolist() == [2, 2, 1]


def scalar_smart(arena: Arena, width: int, alpha: float, at: int) -> tuple[int, int]:
    """SMART at one position, one decision after the other."""
    replay, sizes = arena.replay, arena.grid.verify_sizes
    draft, here = replay.record.draft(DraftRule(width=width)), replay.record.context[[at]]

    def ns(kind: str, n: int) -> float:
        return float(replay.costs.pass_ns(kind, n, here)[0])  # type: ignore[arg-type]

    plain = ns("plain", 1) + replay.host.plain_ns
    spent = replay.host.round_ns + replay.host.level_ns + ns("catch_up", 1)
    tokens, time, slot = 1.0, spent + ns("verify", 1), 0
    for level in range(1, draft.depth + 1):
        if level > 1:
            spent += replay.host.level_ns + ns("frontier", int(draft.frontier[at, level - 2]))
        scores = draft.scores[at, :level].reshape(-1)
        products = sorted(np.exp(scores[np.isfinite(scores)].astype(float)), reverse=True)

        def state(slot: int, products: list[float] = products, spent: float = spent) -> tuple[float, float]:
            return 1.0 + sum(products[: sizes[slot] - 1]), spent + ns("verify", sizes[slot])

        def pays(before: tuple[float, float], after: tuple[float, float]) -> bool:
            benefit, cost = plain * (after[0] - before[0]), max(after[1] - before[1], 0.0)
            if cost == 0.0:
                return benefit > 0.0
            return alpha * benefit / cost > plain * before[0] / before[1]

        while True:
            larger = [s for s in range(slot + 1, len(sizes)) if pays(state(slot), state(s))]
            if not larger:
                break
            slot = larger[0]
        worth_it = pays((tokens, time), state(slot))
        tokens, time = state(slot)
        if not worth_it:
            break
    return level, min(sizes[slot] - 1, int(draft.available[at, level]))


@pytest.mark.parametrize("which", [0, 1, 4])
def test_smart_decides_like_its_scalar_version(record: Record, by_chance: Record, which: int) -> None:
    for made in (record, by_chance):
        arena = arena_of(made, chance_costs(which) if which else costs())
        for width, alpha in ((1, 1.0), (3, 0.7)):
            draft = made.draft(DraftRule(width=width))
            expected = expected_accepted(draft, [size - 1 for size in VERIFY_SIZES[1:]])
            drafted, nodes = grown(draft, arena, alpha, expected)
            for at in range(0, made.positions, 3):
                assert (drafted[at], nodes[at]) == scalar_smart(arena, width, alpha, at)


# rules that learn


def test_ladders_rise_in_price_and_in_tokens(record: Record) -> None:
    for ladder in ladders(arena_of(record)):
        for lower, upper in itertools.pairwise(ladder):
            assert lower.tier.depth < upper.tier.depth
            assert lower.accepted < upper.accepted and lower.round_ns < upper.round_ns


def rungs(depths: Sequence[int]) -> list[Rung]:
    return [Rung(Tier(depth=d, nodes=d), row=100 + d, accepted=float(d), round_ns=1.0) for d in depths]


def test_the_acceptance_mean_moves_as_in_sglang() -> None:
    """Thresholds of the engine: steps 1 3 5 7, falling at or below 0.25, 2.25, 4.25, rising above 0.5, 2.5, 4.5."""
    agent = EmaAgent(rungs([1, 3, 5, 7]), weight=0.2, down=-0.25, up=0.0)
    mean, rung, seen = 4.0, 2, set()
    rng = np.random.default_rng(0)
    for number in range(1, 400):
        assert agent.choose(0) == 100 + (1, 3, 5, 7)[rung]
        accepted = int(rng.integers(0, 8)) if number % 80 < 40 else 0 if number % 160 < 80 else 7
        agent.observe(0, accepted, 1.0)
        mean = 0.8 * mean + 0.2 * accepted
        if number <= WARM_UP or (number - WARM_UP) % INTERVAL:
            continue
        lower = rung
        while lower > 0 and mean <= (0.25, 2.25, 4.25)[lower - 1]:
            lower -= 1
        if lower == rung:
            while lower < 3 and mean > (0.5, 2.5, 4.5)[lower]:
                lower += 1
        rung = lower
        seen.add(rung)
    assert seen == {0, 1, 2, 3}


def test_the_bandit_settles_on_the_fastest_arm() -> None:
    rng = np.random.default_rng(0)
    agent = UcbAgent(rungs([1, 2, 4]), plain_ns=10.0, exploration=0.1)
    tokens = {101: 1.5, 102: 2.0, 104: 3.0}
    time_ns = {101: 12.0, 102: 14.0, 104: 30.0}  # speedups 1.25, 1.43 and 1
    played = []
    for number in range(3000):
        if number % 50 == 0:
            agent.begin()  # another output: what was learned stays
        row = agent.choose(0)
        played.append(row)
        agent.observe(row, rng.binomial(10, (tokens[row] - 1.0) / 10), time_ns[row])
    assert played[:3] == [101, 102, 104], "every arm once first"
    assert played[-500:].count(102) > 350
