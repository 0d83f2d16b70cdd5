"""Sizes that run out of memory are dropped, recorded, and never asked for again."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnxruntime as ort
import pytest
import torch
from pydantic import ValidationError
from rich.console import Console

from profiles.config import GridConfig, TimingConfig
from profiles.errors import EnvelopeError, OutOfMemory
from profiles.measurement import CostTable
from profiles.sage_paper import SagePaper
from runtime.backends.base import Rows, Session
from runtime.pair import Pair
from runtime.prompts import Prompt
from tests.fakes import FakeModel, FakeSession, fake_pair, fake_prompt
from tests.strategies import MAX_DEPTH, VERIFY_SIZES, WIDTHS
from tests.test_replay import record  # noqa: F401  # a fixture
from tuner.costs import Measured, cost_table, covering_policies, measure_rounds
from tuner.memory import memory_errors, release
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.screens import cost_screen
from tuner.timing import Budget
from tuner.yardsticks.base import compiled
from tuner.yardsticks.single import chain_tiers, grid_tiers, static_policy

GRID = GridConfig(
    depth=MAX_DEPTH, widths=WIDTHS, verify_sizes=VERIFY_SIZES, signal_logprobs=8, sage_paper=SagePaper(top_k=8)
)
OrtFail = ort.capi.onnxruntime_pybind11_state.Fail
ERRORS = {
    "numpy": lambda: np.empty(1 << 55),
    "torch on a CPU": lambda: torch.empty(1 << 55),
    "torch on a GPU": lambda: _raise(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")),
    "onnxruntime": lambda: _raise(OrtFail("bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 4")),
}


def _raise(error: Exception) -> None:
    raise error


class SmallSession(FakeSession):
    """Runs out of memory in any pass but the prefill that has more than `rows` rows."""

    rows = 0
    fail: Callable[[], object]

    def _run(self, tokens: np.ndarray, positions: np.ndarray, visible: np.ndarray) -> Rows:
        if self.length and len(tokens) > self.rows:
            self.fail()
        return super()._run(tokens, positions, visible)


class SmallModel(FakeModel):
    def __init__(self, rows: int, fail: Callable[[], object]) -> None:
        super().__init__(100, 0.0)
        self._rows_that_fit, self._fail = rows, fail

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        session, rows = super().open(prompt, capacity, positions)
        small = SmallSession(self, capacity)
        small.__dict__.update(session.__dict__, rows=self._rows_that_fit, fail=self._fail)
        return small, rows


def small_pair(rows: int, fail: Callable[[], object] = ERRORS["onnxruntime"]) -> Pair:
    return replace(fake_pair(), target=SmallModel(rows, fail))


def measure(pair: Pair) -> Measured:
    prompts = [(fake_prompt(i, 9), 30) for i in range(3)]
    policies = covering_policies(GRID, 0.5, 200)
    return measure_rounds(pair, prompts, policies, TimingConfig(samples=5, warmup_max=5), Budget(None))


def table(rows: int) -> CostTable:
    return cost_table(measure(small_pair(rows)), GRID.verify_sizes, [1, 100], threads=1)


@pytest.mark.parametrize("engine", ERRORS)
def test_what_does_not_fit_memory_is_dropped_and_recorded(engine: str) -> None:
    measured = measure(small_pair(6, ERRORS[engine]))
    assert measured.dropped_sizes == (8, 12, 16, 24)
    found = cost_table(measured, GRID.verify_sizes, [1, 100], threads=1)
    assert found.sizes("verify") == [1, 2, 3, 4, 6] and found.dropped_sizes == (8, 12, 16, 24)
    assert CostTable.model_validate_json(found.model_dump_json()) == found


def test_a_device_that_fits_nothing_is_an_error() -> None:
    with pytest.raises(OutOfMemory, match="a round that verifies 3 tokens ran out of memory"):
        measure(small_pair(2))
    with pytest.raises(OutOfMemory, match="plain decoding ran out of memory"):
        measure(small_pair(0))


@pytest.mark.parametrize("rows", [3, 4, 6])
def test_the_restricted_grid_can_be_replayed_to_its_last_tier(record: Record, rows: int) -> None:  # noqa: F811
    """Whatever is left, every tier of the grid has its passes in the table; the whole grid has not."""
    costs = table(rows)
    replay, grid = Replay(record, costs), GRID.restricted(costs.sizes("verify"))
    samples = record.split_samples("tune")
    tiers = grid_tiers(grid) + chain_tiers(grid)
    assert max(tier.nodes for tier in tiers) + 1 == rows and max(tier.depth for tier in tiers) > 1
    for tier in tiers:
        assert replay.speedup(compiled(static_policy("x", tier), grid, replay), samples) > 0
    beyond = static_policy("x", grid_tiers(GRID)[-1])
    with pytest.raises(EnvelopeError, match="verify passes of 24 tokens were not measured"):
        replay.speedup(compiled(beyond, GRID, replay), samples)


def test_a_grid_is_restricted_to_what_it_had() -> None:
    assert GRID.restricted(VERIFY_SIZES) == GRID
    assert GRID.restricted([1, 2, 3, 4, 5]) == GRID.model_copy(update={"verify_sizes": (1, 2, 3, 4), "depth": 3})
    with pytest.raises(ValidationError):
        GRID.restricted([1])


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), memory_errors("a pass"):
        _raise(RuntimeError("shapes differ"))
    with pytest.raises(OutOfMemory, match="an inner pass"), memory_errors("a pass"), memory_errors("an inner pass"):
        _raise(MemoryError())
    release()


def test_the_screen_names_the_free_width_and_what_was_dropped() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(cost_screen(table(4)))
    text = " ".join(console.export_text().split())
    assert "free width" in text and "dropped verify sizes 6, 8, 12, 16, 24" in text
