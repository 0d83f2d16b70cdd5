"""Bills: a policy's passes priced under any cost table give the replayed time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.config import GridConfig
from profiles.errors import EnvelopeError
from profiles.gate import PLAIN_BILL, SHIPPED_BILL, PassBill
from profiles.measurement import CostTable
from profiles.policy import PolicySource, Tier
from runtime.decode import plain_policy
from runtime.policy.compile import compile_policy
from tests.records import chance_costs, chance_record, record_of
from tests.strategies import VERIFY_SIZES, WIDTHS, recorded_rules, sources
from tuner import bills
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.yardsticks.base import Arena


@pytest.fixture(scope="module", params=["fake pair", "chance"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder, splits = tmp_path_factory.mktemp("trace"), ["tune", "select", "report"] * 3
    if request.param == "chance":
        return chance_record(folder, recorded_rules(), splits, 5)
    return record_of(folder, recorded_rules(), splits, range(9))


@given(source=sources(), seed=st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_a_bill_priced_under_another_table_is_the_replay_under_it(
    record: Record, source: PolicySource, seed: int
) -> None:
    policy = compile_policy(source, VERIFY_SIZES, record.context_max)
    samples = np.flatnonzero(record.end > record.start)
    owed = bills.bill("any", Replay(record, chance_costs(0)), policy, samples)
    table = chance_costs(seed)
    assert bills.bill_ns(owed, table) == pytest.approx(Replay(record, table).walk(policy, samples).time_ns.sum(), 1e-3)


def test_plain_decoding_has_a_bill_of_its_own(record: Record) -> None:
    samples = np.flatnonzero(record.end > record.start)
    replay = Replay(record, chance_costs(3))
    owed = bills.bill(PLAIN_BILL, replay, plain_policy(), samples)
    assert owed.draft_rounds == owed.levels == 0 and [(c.kind, c.n) for c in owed.passes] == [("plain", 1)]
    assert bills.bill_ns(owed, chance_costs(3)) == pytest.approx(replay.plain_time_ns(samples).sum(), 1e-3)


@pytest.fixture(scope="module")
def grid_bills(record: Record) -> tuple[PassBill, ...]:
    grid = GridConfig(depth=4, widths=WIDTHS, verify_sizes=VERIFY_SIZES, margin=0)
    arena = Arena(Replay(record, chance_costs(1)), grid)
    shipped = arena.compiled(PolicySource(name="kept", tiers=(Tier(depth=2, width=2, nodes=3),)))
    return bills.bills(arena, shipped)


def scaled(table: CostTable, kind: str, factor: float) -> CostTable:
    passes = tuple(p.model_copy(update={"time_ns": p.time_ns * factor}) if p.kind == kind else p for p in table.passes)
    return table.model_copy(update={"passes": passes})


def test_the_whole_grid_is_billed_and_the_fastest_is_found(grid_bills: tuple[PassBill, ...]) -> None:
    names = [owed.name for owed in grid_bills]
    assert names[:2] == [PLAIN_BILL, SHIPPED_BILL] and "2,2,3" in names and len(names) == len(set(names))
    table = chance_costs(1)
    by_name = {owed.name: owed for owed in grid_bills}
    # the shipped policy is one of the tiers here, so its bill is that tier's
    assert bills.bill_ns(by_name[SHIPPED_BILL], table) == bills.bill_ns(by_name["2,2,3"], table)
    name, time_ns = bills.fastest(grid_bills, table)
    assert name != SHIPPED_BILL
    assert time_ns == min(bills.bill_ns(owed, table) for owed in grid_bills if owed.name != SHIPPED_BILL)
    assert 0 <= bills.regret(grid_bills, table) < 1
    dear_draft = scaled(scaled(table, "frontier", 1e3), "catch_up", 1e3)
    assert bills.fastest(grid_bills, dear_draft)[0] == PLAIN_BILL
    assert bills.speedup(by_name, SHIPPED_BILL, dear_draft) < 0.1


def test_sizes_that_were_not_timed_again_change_like_their_neighbours(grid_bills: tuple[PassBill, ...]) -> None:
    saved = chance_costs(1)
    slower = scaled(saved, "verify", 2.0)
    kept = [p for p in slower.passes if p.kind != "verify" or p.n in (3, 8)]
    partial = slower.model_copy(update={"passes": tuple(kept)})
    with pytest.raises(EnvelopeError, match="verify passes of"):
        bills.regret(grid_bills, partial)
    whole, filled = bills.completed(partial, saved)
    assert "verify 4" in filled and "verify 8" not in filled
    times = {(p.kind, p.n, p.context): p.time_ns for p in whole.passes}
    for p in slower.passes:
        assert times[p.kind, p.n, p.context] == pytest.approx(p.time_ns)
