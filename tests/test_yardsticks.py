"""All yardsticks together: none beats the oracle, none sees what it may not, none leaves the grid."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.config import GridConfig
from profiles.measurement import CostTable
from profiles.policy import DraftRule, PolicySource, Tier
from profiles.sage_paper import SagePaper
from tests.records import SAMPLED, chance_costs, chance_record, record_of
from tests.strategies import MAX_DEPTH, SIGNAL_LOGPROBS, VERIFY_SIZES, WIDTHS, recorded_rules, sources
from tests.test_replay import costs
from tuner.cost_model import Floats
from tuner.drafts import Ints
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.yardsticks import ALL, fit_all
from tuner.yardsticks.base import Arena, PositionRule
from tuner.yardsticks.chains import chains as chains_of
from tuner.yardsticks.oracle import Oracle, oracle
from tuner.yardsticks.rank_tree import rank_tree
from tuner.yardsticks.sequoia import sequoia

GRID = GridConfig(
    depth=MAX_DEPTH,
    widths=WIDTHS,
    verify_sizes=VERIFY_SIZES,
    signal_logprobs=SIGNAL_LOGPROBS,
    margin=0.3,
    sage_paper=SagePaper(top_k=SIGNAL_LOGPROBS),
)
RULES: tuple[DraftRule, ...] = tuple(dict.fromkeys((*recorded_rules(), *GRID.rules())))
SPLITS = ("tune", "tune", "tune", "tune", "select", "report", "report", "report")
SEEDS = tuple(range(len(SPLITS)))
NAMES = (
    "plain",
    "best chain",
    "rank tree",
    "Sequoia",
    "best static",
    "OPT-Tree",
    "SVIP",
    "AdaEDL",
    "SMART",
    "TALON",
    "sage-paper",
    "acceptance EMA",
    "UCB bandit",
)
TRUTH = (
    *("true_rank", "matched", "in_frontier", "rank_in_level", "score"),
    *("sibling_rank", "sibling_probability"),
)
"""Columns that depend on how the output goes on."""
DEEPEST = Tier(depth=MAX_DEPTH, width=1, nodes=MAX_DEPTH)
TABLES = 6
"""Cost tables that a record is walked with: one of plausible times, the others by chance."""


@cache
def table(which: int) -> CostTable:
    return costs() if which == 0 else chance_costs(which)


class Arenas:
    """A record with every cost table, each replayed and its oracle solved once."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self._oracles: dict[int, Oracle] = {}

    def oracle(self, which: int) -> Oracle:
        if which not in self._oracles:
            self._oracles[which] = oracle(Arena(Replay(self.record, table(which)), GRID))
        return self._oracles[which]

    def __iter__(self) -> Iterator[Oracle]:
        return (self.oracle(which) for which in range(TABLES))


@pytest.fixture(scope="module", params=["fake pair", "sampled", "by chance"])
def arenas(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Arenas:
    folder = tmp_path_factory.mktemp("trace")
    if request.param == "fake pair":
        return Arenas(record_of(folder, RULES, SPLITS, SEEDS))
    if request.param == "sampled":
        return Arenas(record_of(folder, RULES, SPLITS, SEEDS, SAMPLED))
    return Arenas(chance_record(folder, RULES, SPLITS, seed=5))


@pytest.fixture(scope="module")
def fake_record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    return record_of(tmp_path_factory.mktemp("trace"), RULES, SPLITS, SEEDS)


def arena_of(record: Record, grid: GridConfig = GRID) -> Arena:
    return Arena(Replay(record, costs()), grid)


@settings(max_examples=150)
@given(sources(), st.integers(0, TABLES - 1))
def test_no_policy_beats_the_oracle(arenas: Arenas, source: PolicySource, which: int) -> None:
    bound = arenas.oracle(which)
    everyone = np.arange(len(arenas.record.samples))
    least = bound.walk(everyone).time_by_sample(everyone)
    walk = bound.arena.replay.walk(bound.arena.compiled(source), everyone)
    assert (least <= walk.time_by_sample(everyone) * (1 + 1e-9)).all()


def test_no_yardstick_beats_the_oracle_or_leaves_the_grid(arenas: Arenas) -> None:
    everyone = np.arange(len(arenas.record.samples))
    tokens = arenas.record.end - arenas.record.start
    for bound in arenas:
        least = bound.walk(everyone).time_by_sample(everyone)
        for found in fit_all(bound.arena):
            walk = found.walk(everyone)
            assert (least <= walk.time_by_sample(everyone) * (1 + 1e-9)).all(), found.name
            assert walk.levels.max() <= GRID.depth and walk.nodes.max() <= GRID.max_nodes, found.name
            assert walk.tokens == tokens.sum()
            emitted = np.bincount(walk.samples, weights=walk.accepted + 1, minlength=len(tokens))
            assert ((emitted == tokens) | (emitted == tokens + 1)).all(), found.name


def exhaustive_ns(arena: Arena, sample: int) -> float:
    """Least time of one output over every rule, number of levels and number of nodes, and the two fixed trees."""
    replay, record, sizes = arena.replay, arena.replay.record, arena.grid.verify_sizes
    n, start, end = record.positions, int(record.start[sample]), int(record.end[sample])
    rounds: list[tuple[Ints, Ints, Floats]] = []
    for rule in record.manifest.rules:
        draft = record.draft(rule)
        for drafted in range(1, draft.depth + 1):
            for nodes in range(sizes[-1]):
                outcome = draft.outcome(np.full(n, drafted), np.minimum(nodes, draft.available[:, drafted]))
                rounds.append((outcome.accepted, outcome.unseen, replay.round_ns(outcome, sizes)))
    everywhere = np.arange(n)
    for tree in (rank_tree(arena), sequoia(arena)):
        assert tree is not None
        columns = [replay.rounds.ints(name, tree.rows, everywhere) for name in ("accepted", "unseen")]
        rounds.append((*columns, replay.rounds.time_ns(tree.rows, everywhere)))
    accepted, unseen, time_ns = (np.stack(column) for column in zip(*rounds, strict=True))
    cold = (*replay.host.draft_cold_ns, 0.0)

    @cache
    def least(at: int, fresh: int, number: int) -> float:
        if at >= end:
            return 0.0
        results: dict[tuple[int, int], float] = {}
        for a, u, ns in zip(accepted[:, at].tolist(), unseen[:, at].tolist(), time_ns[:, at].tolist(), strict=True):
            results[a, u] = min(ns, results.get((a, u), np.inf))
        here = float(replay.catch_up_ns[fresh, at]) + cold[min(number, len(cold) - 1)]
        later = min(number + 1, len(cold) - 1)
        return here + min(ns + least(at + a + 1, u, later) for (a, u), ns in results.items())

    return min(least(start, 1, 0), float(replay.plain_time_ns(np.array([sample]))[0]))


def test_the_oracle_is_an_exhaustive_search(arenas: Arenas) -> None:
    for which in (0, 2):
        bound = arenas.oracle(which)
        for sample in (0, 5):
            walk = bound.walk(np.array([sample]))
            assert walk.time_ns.sum() == pytest.approx(exhaustive_ns(bound.arena, sample), rel=1e-9)


def test_an_oracle_that_forgets_its_catch_up_is_found(arenas: Arenas) -> None:
    """A planted bug: the draft is thought to have seen everything."""
    wrong = oracle(arenas.oracle(0).arena)
    wrong.rounds.unseen[:] = 0
    found = [
        sample
        for sample in (0, 5)
        if not np.isclose(wrong.walk(np.array([sample])).time_ns.sum(), exhaustive_ns(wrong.arena, sample), rtol=1e-9)
    ]
    assert found == [0, 5]


def test_names_and_order_are_those_of_the_table(fake_record: Record) -> None:
    found = fit_all(arena_of(fake_record))
    assert tuple(contestant.name for contestant in found) == NAMES and len(ALL) == len(NAMES)
    assert all(contestant.detail for contestant in found)


def test_what_the_grid_has_no_room_for_is_left_out(fake_record: Record) -> None:
    grid = GRID.model_copy(update={"widths": (2, 3), "margin": 0.0, "sage_paper": SagePaper(record=False)})
    missing = set(NAMES) - {contestant.name for contestant in fit_all(arena_of(fake_record, grid))}
    assert missing == {"best chain", "SVIP", "AdaEDL", "TALON", "sage-paper"}


def choices(arena: Arena) -> dict[str, tuple[str, float]]:
    """What was fitted, and the time that it takes on the tuning prompts of the record."""
    tune = arena.replay.record.split_samples("tune")
    return {found.name: (found.detail, float(found.walk(tune).time_ns.sum())) for found in fit_all(arena)}


@pytest.fixture(scope="module")
def other_record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The same tuning prompts, others in every other split."""
    seeds = [seed if split == "tune" else seed + 40 for split, seed in zip(SPLITS, SEEDS, strict=True)]
    return record_of(tmp_path_factory.mktemp("trace"), RULES, SPLITS, seeds)


def test_prompts_that_are_reported_on_change_no_choice(fake_record: Record, other_record: Record) -> None:
    assert choices(arena_of(fake_record)) == choices(arena_of(other_record))


def test_a_fit_on_all_prompts_is_found(fake_record: Record, other_record: Record) -> None:
    """A planted leak: the tuning split is taken to be everything."""
    arenas = [arena_of(fake_record), arena_of(other_record)]
    for arena in arenas:
        vars(arena)["tune"] = np.arange(len(SPLITS))
    assert choices(arenas[0]) != choices(arenas[1])


def decisions(found: PositionRule) -> np.ndarray:
    """[2, N] levels and nodes that a rule chooses at every position."""
    replay = found.arena.replay
    everywhere = np.arange(replay.record.positions)
    return np.stack([replay.rounds.ints(name, found.rows, everywhere) for name in ("levels", "nodes")])


def test_decisions_do_not_look_at_the_output(fake_record: Record) -> None:
    """Where the reported outputs go is changed on record, what was drafted there is not."""
    record, frame = fake_record, fake_record._frame
    reported = np.nonzero(np.isin(record.sample_of, record.split_samples("report")))[0]
    order = np.arange(record.positions)
    order[reported] = np.roll(reported, 7)
    truth = [name for name in frame.columns if name.split(".")[-1] in TRUTH]
    changed = Record(record.manifest, record.samples, frame.with_columns(frame.select(truth)[order.tolist()]))
    before, after = arena_of(record), arena_of(changed)
    compared = 0
    for one, other in zip(fit_all(before), fit_all(after), strict=True):
        if isinstance(one, PositionRule) and isinstance(other, PositionRule):
            assert one.detail == other.detail and np.array_equal(decisions(one), decisions(other)), one.name
            compared += 1
    assert compared == 5
    peeking = [
        PositionRule(
            "planted", "", chains.rows[np.maximum(arena.replay.record.outcome(DEEPEST).accepted, 1) - 1], arena
        )
        for arena in (before, after)
        if (chains := chains_of(arena)) is not None
    ]
    assert not np.array_equal(decisions(peeking[0]), decisions(peeking[1]))


def test_a_walk_learns_from_nothing_but_itself(fake_record: Record) -> None:
    """Rules that learn start afresh with every walk, and rules by position say the same alone as together."""
    arena = arena_of(fake_record)
    everyone = np.arange(len(SPLITS))
    for found in fit_all(arena):
        first, again = found.walk(everyone), found.walk(everyone)
        assert np.array_equal(first.at, again.at) and np.array_equal(first.time_ns, again.time_ns), found.name
        if isinstance(found, PositionRule):
            alone = found.walk(np.array([3]))
            assert np.array_equal(first.at[first.samples == 3], alone.at)
