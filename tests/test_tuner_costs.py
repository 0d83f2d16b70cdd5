"""The clock and the cost model recover what was planted and refuse what was not measured."""

from __future__ import annotations

import math

import numpy as np
import pytest

from profiles.config import GridConfig, TimingConfig
from profiles.errors import EnvelopeError
from profiles.policy import Tier
from runtime.records import StepRecord
from tests.fakes import fake_pair, fake_prompt
from tests.test_replay import costs
from tuner.costs import (
    COLD_ROUNDS,
    Measured,
    context_grid,
    cost_table,
    covering_policies,
    fit_host,
    mean_line,
    measure_rounds,
    pass_samples,
    warm_rounds,
)
from tuner.replay import CostModel
from tuner.timing import Budget, coefficient_of_variation, warm_up

OFF, CHAIN = Tier(depth=0, nodes=0), Tier(depth=8, nodes=8)


def step(levels: int, host_ns: float, context: int = 10, verify_ns: float = 1000) -> StepRecord:
    drafts = (500,) * levels
    return StepRecord(
        position=0,
        context=context,
        draft_context=context,
        tier=CHAIN if levels else OFF,
        signal=0.5,
        caught_up=1 if levels else 0,
        nodes=0,
        accepted=0,
        emitted=1,
        draft_passes_ns=drafts,
        verify_ns=int(verify_ns),
        round_ns=int(sum(drafts) + verify_ns + host_ns),
    )


def outputs(cold_ns: float = 0.0) -> list[list[StepRecord]]:
    """Outputs of one level count each; a fifth of the rounds is hit by foreign load."""
    rng, made = np.random.default_rng(0), []
    for levels in [0, 1, 2, 4, 8] * 20:
        true = 40_000 if levels == 0 else 60_000 + 25_000 * levels
        made.append(
            [
                step(
                    levels,
                    (true + (cold_ns if i == 0 else 0))
                    * (5.0 if i >= COLD_ROUNDS and rng.random() < 0.2 else 1.0)
                    * rng.lognormal(0, 0.03),
                )
                for i in range(25)
            ]
        )
    return made


def test_host_time_is_recovered_under_bursts_of_load() -> None:
    host = fit_host(outputs())
    assert host.plain_ns == pytest.approx(40_000, rel=0.05)
    assert host.round_ns + 4 * host.level_ns == pytest.approx(160_000, rel=0.05)
    assert host.level_ns == pytest.approx(25_000, rel=0.05)


def test_cold_rounds_are_a_term_of_their_own() -> None:
    host = fit_host(outputs(cold_ns=90_000))
    assert host.plain_ns == pytest.approx(40_000, rel=0.05), "cold rounds must not shift the warm ones"
    for cold in (host.plain_cold_ns, host.draft_cold_ns):
        assert cold[0] == pytest.approx(90_000, rel=0.1) and max(cold[1:]) < 6_000


def test_host_fit_needs_plain_rounds_and_two_depths() -> None:
    with pytest.raises(EnvelopeError, match=r"got levels \[0, 3\]"):
        fit_host([[step(0, 100)] * 9, [step(3, 100)] * 9])


def test_a_line_over_context_is_recovered_under_load() -> None:
    rng = np.random.default_rng(1)
    context = rng.uniform(50, 250, 300)
    time_ns = (1e6 + 3e3 * context) * rng.lognormal(0, 0.03, 300) * np.where(rng.random(300) < 0.1, 6.0, 1.0)
    line = mean_line(context, time_ns, np.array([50.0, 250.0]))
    assert line == pytest.approx([1.15e6, 1.75e6], rel=0.05)
    falling = mean_line(context, 2e6 - 1e3 * context, np.array([50.0, 250.0]))
    assert falling[0] == falling[1], "more context is never less work"


def test_every_pass_of_the_grid_is_measured_in_real_rounds() -> None:
    grid = GridConfig(depth=3, widths=(1, 3), verify_sizes=(1, 2, 4, 8))
    timing = TimingConfig(samples=5, warmup_max=5)
    shares: list[float] = []
    prompts = [(fake_prompt(i, 9), 40) for i in range(3)]
    policies = covering_policies(grid, 0.5, 200)
    measured = measure_rounds(fake_pair(), prompts, policies, timing, Budget(None), shares.append)
    table = cost_table(measured, grid.verify_sizes, [10, 40], threads=1)
    assert table.sizes("verify") == [1, 2, 4, 8] and table.sizes("frontier") == [1, 3]
    assert table.sizes("plain") == [1] and table.sizes("catch_up") == [1, 2]
    assert table.contexts() == [10, 40]
    assert shares[-1] == 1.0 and shares == sorted(shares)
    assert measured.dropped_sizes == table.dropped_sizes == ()
    samples = pass_samples(warm_rounds(measured.outputs), grid.verify_sizes)
    assert all(p.samples == len(samples[p.kind, p.n]) for p in table.passes if (p.kind, p.n) in samples)


def test_a_size_that_was_never_made_is_an_error() -> None:
    rounds = [[step(levels, 1e4)] * 9 for levels in (0, 1, 2)]
    with pytest.raises(EnvelopeError, match=r"verify sizes \[4\] were never made"):
        cost_table(Measured(rounds), (1, 4), [10, 20], 1)


PLANTED_VERIFY = {1: 1.00e6, 2: 1.02e6, 4: 1.06e6, 8: 1.30e6, 16: 2.10e6}
PLANTED_SLOPE = {"plain": 2_000.0, "verify": 3_000.0, "catch_up": 500.0, "frontier": 600.0}
"""ns per token of context."""
PLANTED_DRAFT = {("catch_up", 1): 2.0e5, ("catch_up", 2): 2.2e5, ("frontier", 1): 1.8e5, ("frontier", 3): 2.5e5}
PLAIN_NS, HOST_PLAIN, HOST_ROUND, HOST_LEVEL = 0.95e6, 1.0e5, 2.0e5, 1.2e5


def planted_round(rng: np.random.Generator, context: int, size: int, width: int, depth: int, load: float) -> StepRecord:
    """One round as the planted machine would time it: noise on every pass, all of it slower under load."""

    def timed(base: float, kind: str = "") -> int:
        return int((base + PLANTED_SLOPE.get(kind, 0.0) * (context - 1)) * rng.lognormal(0, 0.05) * load)

    if size == 0:
        verify = timed(PLAIN_NS, "plain")
        return StepRecord(0, context, context, OFF, 0.5, 0, 0, 0, 1, (), verify, verify + timed(HOST_PLAIN))
    caught_up = int(rng.integers(1, 3))
    drafts = [timed(PLANTED_DRAFT["catch_up", caught_up], "catch_up")]
    drafts += [timed(PLANTED_DRAFT["frontier", width], "frontier") for _ in range(depth - 1)]
    verify = timed(PLANTED_VERIFY[size], "verify")
    host = timed(HOST_ROUND + depth * HOST_LEVEL)
    tier = Tier(depth=depth, width=width, nodes=max(size - 1, depth))
    return StepRecord(
        0, context, context, tier, 0.5, caught_up, size - 1, 0, 1, tuple(drafts), verify, sum(drafts) + verify + host
    )


def planted(bursts: float) -> Measured:
    """Outputs of 60 rounds over contexts 100..400; `bursts` of the time the machine is three to six times slower,
    ten rounds on end."""
    rng, outputs = np.random.default_rng(7), []
    shapes = [(0, 1, 0), (1, 1, 1), (2, 1, 1), (4, 1, 3), (4, 3, 1), (8, 1, 7), (8, 3, 2), (16, 3, 4), (16, 3, 8)]
    for _ in range(12):
        for size, width, depth in shapes:
            start = int(rng.integers(100, 340))
            factors = np.repeat(np.where(rng.random(7) < bursts, rng.uniform(3, 6, 7), 1.0), 10)
            outputs.append([planted_round(rng, start + i, size, width, depth, float(factors[i])) for i in range(60)])
    return Measured(outputs)


@pytest.mark.parametrize("bursts", [0.0, 0.2, 0.4])
def test_every_planted_cost_is_recovered(bursts: float) -> None:
    """Intercepts, slopes and host terms within 5 %, under noise and bursts of foreign load."""
    contexts = [100, 250, 400]
    table = cost_table(planted(bursts), (1, 2, 4, 8, 16), contexts, threads=1)
    model, at, worst = CostModel(table), np.array(contexts), {}
    bases = {("plain", 1): PLAIN_NS, **PLANTED_DRAFT, **{("verify", n): ns for n, ns in PLANTED_VERIFY.items()}}
    for (kind, n), base in bases.items():
        found = model.pass_ns(kind, n, at)  # type: ignore[arg-type]
        # the noise is lognormal with median 1: its mean is 0.1 % more
        worst[f"{kind} {n}"] = float(np.abs(found / (base + PLANTED_SLOPE[kind] * at) - 1).max())
        slope = (found[-1] - found[0]) / (contexts[-1] - contexts[0])
        worst[f"{kind} {n} slope"] = abs(slope / PLANTED_SLOPE[kind] - 1)
    host = table.host
    for name, value, true in (
        ("host plain", host.plain_ns, HOST_PLAIN),
        ("host round", host.round_ns, HOST_ROUND),
        ("host level", host.level_ns, HOST_LEVEL),
    ):
        worst[name] = abs(value / true - 1)
    print(f"\nbursts {bursts:.0%}: " + ", ".join(f"{name} {error:.1%}" for name, error in worst.items()))
    assert max(worst.values()) < 0.05
    assert table.free_width() == 4, "1.06 of the smallest is free, 1.3 is not"


def test_least_squares_alone_would_not_recover_them() -> None:
    """Negative control: what the rule for foreign load is for."""
    measured = planted(0.2)
    seen = np.array(pass_samples(warm_rounds(measured.outputs), (1, 2, 4, 8, 16))["verify", 8], dtype=np.float64)
    slope, level = np.polyfit(seen[:, 0], seen[:, 1], 1)
    assert abs((level + slope * 250) / (PLANTED_VERIFY[8] + 3_000 * 250) - 1) > 0.2


def test_free_width_is_the_knee_of_the_verify_curve() -> None:
    table = costs(contexts=(10, 30))  # 10 us + 0.2 us per token of the pass + 0.01 us per token of context
    assert table.free_width() == 6 and table.free_width(0.0) == 1 and table.free_width(10.0) == 24
    with pytest.raises(ValueError, match="verify passes of 5 tokens were not timed"):
        table.mean_ns("verify", 5)


def test_contexts_are_interpolated_sizes_are_not() -> None:
    model = CostModel(costs(contexts=(10, 30)))
    at = model.pass_ns("verify", 2, np.array([10, 20, 30]))
    assert at == pytest.approx([10_500, 10_600, 10_700])
    with pytest.raises(EnvelopeError, match="verify passes of 5 tokens were not measured"):
        model.pass_ns("verify", 5, np.array([10]))
    with pytest.raises(EnvelopeError, match=r"contexts 9\.\.31 leave the measured 10\.\.30"):
        model.pass_ns("frontier", 1, np.array([9, 31]))


def test_context_grid_spans_the_record() -> None:
    assert context_grid(58, 200, 3) == [58, 129, 200]
    assert context_grid(10, 10, 3) == [10, 11, 12]


def test_warm_up_waits_for_a_drifting_clock() -> None:
    """A machine that speeds up for thirty samples is not measured before it has settled."""
    times = iter([100 * math.exp(-i / 6) + 10 for i in range(200)])
    config = TimingConfig(warmup_cv=0.05, warmup_max=100)
    assert 25 <= warm_up(lambda: next(times), config) < 60
    steady = iter([10.0] * 100)
    assert warm_up(lambda: next(steady), config) == 8
    noisy = iter(range(1, 1000))
    assert warm_up(lambda: float(next(noisy) % 7), config) == 100, "the cap ends a warm-up that never settles"


def test_coefficient_of_variation() -> None:
    assert coefficient_of_variation([5.0]) == math.inf
    assert coefficient_of_variation([5.0, 5.0]) == 0.0


def test_budget() -> None:
    assert not Budget(None).expired and Budget(None).left_s == math.inf
    assert Budget(0.0).expired and Budget(0.0).left_s == 0.0
