"""Cost tables: what every pass the runtime can make takes here, measured inside rounds as they really run.

Passes are not timed in isolation: a target pass evicts the draft's weights and the next draft pass pays for
it. So each sample is one real round's sequence (catch-up, frontier passes, verification) with the sizes drawn
in shuffled order, and every pass of it is a sample of its size.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

import numpy as np

from profiles.config import GridConfig, TimingConfig
from profiles.measurement import CostTable, HostTime, PassTime
from profiles.policy import CompiledPolicy
from runtime.backends.base import Session, causal
from runtime.decode import generate
from runtime.pair import Pair
from runtime.prompts import Prompt
from runtime.records import StepRecord
from tuner.timing import Budget, warm_up

Key = tuple[str, int, int]
"""(model, tokens in the pass, context)."""
CATCH_UP_SIZES = (1, 2)
"""Committed tokens a draft can lag behind: the bonus, and one accepted leaf that was never expanded."""


def context_grid(shortest: int, longest: int, points: int) -> list[int]:
    """Context lengths to time, end points included. Replay interpolates inside and refuses outside."""
    longest = max(longest, shortest + points - 1)
    return sorted({round(c) for c in np.linspace(shortest, longest, points)})


def measure_passes(
    pair: Pair,
    prompt: Prompt,
    grid: GridConfig,
    timing: TimingConfig,
    contexts: list[int],
    on_progress: Callable[[float], None] = lambda share: None,
) -> dict[Key, list[int]]:
    """All samples (ns) by pass. Needs one prompt to fill caches with; contents do not change a pass's time."""
    samples: dict[Key, list[int]] = defaultdict(list)
    shuffler = random.Random(0)
    rounds = [
        (verify, shuffler.choice(CATCH_UP_SIZES), width)
        for verify in grid.verify_sizes
        for width in _repeat(grid.widths, timing.samples)
    ]
    for done, context in enumerate(contexts):
        target, draft = (
            _session_at(model.open(prompt, context + 3 * max(grid.verify_sizes) + 64)[0], context)
            for model in (pair.target, pair.draft)
        )

        middle = grid.verify_sizes[len(grid.verify_sizes) // 2]
        warm_up(partial(_round_ns, target, draft, middle), timing)
        shuffler.shuffle(rounds)
        for i, sizes in enumerate(rounds):
            for model, n, time_ns in _one_round(target, draft, *sizes):
                samples[model, n, context].append(time_ns)
            if i % 50 == 0:
                on_progress((done + i / len(rounds)) / len(contexts))
    on_progress(1.0)
    return dict(samples)


def host_time(
    pair: Pair,
    prompts: list[tuple[Prompt, int]],
    policies: list[CompiledPolicy],
    budget: Budget,
    on_progress: Callable[[float], None] = lambda share: None,
) -> tuple[HostTime, list[StepRecord]]:
    """Fit of the time a live round spends outside model passes. `prompts` are (prompt, max_new_tokens).

    The first policy must be plain decoding. Levels enter linearly; each level's median is one point, so a
    burst of foreign load in some rounds does not move the fit.
    """
    records: list[StepRecord] = []
    jobs = [(prompt, limit, policy) for prompt, limit in prompts for policy in policies]
    for i, (prompt, limit, policy) in enumerate(jobs):
        if budget.expired and i >= len(policies):
            break
        records += generate(pair, prompt, policy, max_new_tokens=limit).rounds
        on_progress((i + 1) / len(jobs))
    return fit_host(records), records


def fit_host(records: list[StepRecord]) -> HostTime:
    """Host time of plain rounds, and `round + level * levels` of drafting ones (weighted least squares)."""
    by_levels: dict[int, list[int]] = defaultdict(list)
    for record in records:
        by_levels[record.levels].append(record.host_ns)
    if 0 not in by_levels or len(by_levels) < 3:
        raise ValueError(f"plain rounds and two other level counts are needed, got levels {sorted(by_levels)}")
    drafted = sorted(levels for levels in by_levels if levels)
    medians = np.array([np.median(by_levels[levels]) for levels in drafted])
    weights = np.sqrt([len(by_levels[levels]) for levels in drafted])
    level_ns, round_ns = np.polyfit(np.array(drafted, dtype=float), medians, 1, w=weights)
    return HostTime(
        plain_ns=float(np.median(by_levels[0])),
        round_ns=max(float(round_ns), 0.0),
        level_ns=max(float(level_ns), 0.0),
        rounds=len(records),
    )


def cost_table(samples: dict[Key, list[int]], host: HostTime, threads: int) -> CostTable:
    """Medians and spread of every pass. Foreign load only ever adds time, which a median shrugs off."""
    return CostTable(
        mark="measured",
        threads=threads,
        host=host,
        passes=tuple(
            PassTime(
                model="draft" if model == "draft" else "target",
                n=n,
                context=context,
                median_ns=float(np.median(times)),
                p10_ns=float(np.percentile(times, 10)),
                p90_ns=float(np.percentile(times, 90)),
                samples=len(times),
            )
            for (model, n, context), times in sorted(samples.items())
        ),
    )


def _one_round(target: Session, draft: Session, verify: int, catch_up: int, width: int) -> list[tuple[str, int, int]]:
    """The passes of one round as (model, n, ns); both caches are back where they were afterwards."""
    passes = [
        ("draft", catch_up, _time_pass(draft, catch_up)),
        ("draft", width, _time_pass(draft, width)),
        ("draft", width, _time_pass(draft, width)),
        ("target", verify, _time_pass(target, verify)),
    ]
    target.keep(target.length - verify, [])
    draft.keep(draft.length - catch_up - 2 * width, [])
    return passes


def _round_ns(target: Session, draft: Session, verify: int) -> float:
    return float(sum(time_ns for _, _, time_ns in _one_round(target, draft, verify, 1, 1)))


def _repeat(widths: tuple[int, ...], samples: int) -> list[int]:
    """Widths in turn, so that every verify size gets `samples` rounds."""
    return [widths[i % len(widths)] for i in range(samples)]


def _session_at(session: Session, context: int) -> Session:
    """The session with exactly `context` cached rows."""
    if session.length > context:
        session.keep(context, [])
    missing = context - session.length
    if missing:
        session.forward([0] * missing, np.arange(session.length, context), causal(missing, session.length))
    return session


def _time_pass(session: Session, n: int) -> int:
    past = session.length
    visible, positions = causal(n, past), np.arange(past, past + n)
    start = time.perf_counter_ns()
    session.forward([0] * n, positions, visible)
    return time.perf_counter_ns() - start
