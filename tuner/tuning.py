"""The `tune` command: replay, search, compute, confirm live, decide, freeze."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiles.config import TuneConfig
from profiles.policy_profile import PolicyProfile
from profiles.store import PROFILE_SUFFIX, save_profile
from runtime.pair import Pair
from tuner.calibration import Sample, Split
from tuner.comparison import Arm, Comparison, Job
from tuner.confirm import Confirmation, confirm
from tuner.contest import Contest, hold_contest
from tuner.freeze import Decision, freeze
from tuner.gate_record import gate_of, prompt_times
from tuner.live import LiveRunner
from tuner.outcomes import Record
from tuner.policy_search import search_policies, search_share
from tuner.profiling import samples_of
from tuner.progress import Progress
from tuner.run_folder import RunFolder, RunRow
from tuner.scoreboard import scoreboard
from tuner.timing import Budget
from tuner.trace_store import load_record
from tuner.yardsticks.base import Arena, TablePolicy
from tuner.yardsticks.sage_paper import SAGE_PAPER
from tuner.yardsticks.single import CHAIN, PLAIN, STATIC

LIVE_YARDSTICKS = (PLAIN, CHAIN, STATIC, SAGE_PAPER)
"""Yardsticks that are measured beside our own policies, where the grid has room for them."""


@dataclass(frozen=True)
class Tuned:
    """The frozen profile, where it is, and the live comparisons behind it."""

    profile: PolicyProfile
    path: Path
    trials: int
    selection: Comparison
    report: Comparison


def tune(
    pair: Pair, config: TuneConfig, run: RunFolder, budget: Budget, progress: Progress, command_line: str
) -> Tuned:
    """Find a policy by replay, confirm it live on held-out prompts, freeze what is certain.

    Raises Inconclusive when the budget ends before every arm ran on three prompts of each held-out split.
    """
    record, table, curves = load_record(run.trace), run.costs(), run.curves()
    arena = Arena.measured(record, table, config.grid)
    search, trials = search_policies(config, run.study_place(config), run.trace, arena, search_share(budget), progress)
    contest = hold_contest(arena, search, config.confirm.finalists, progress)

    samples = {sample.id: sample for sample in samples_of(config, pair.spec)}
    choosing = _jobs(pair, record, samples, "select", config.confirm.select_prompts)
    reporting = _jobs(pair, record, samples, "report", config.confirm.report_prompts)
    runner = LiveRunner(pair, arena.replay, np.array([job.sample for job in choosing + reporting], dtype=np.int64))
    yardsticks = [_arm(known) for name in LIVE_YARDSTICKS if (known := contest.yardstick(name))]
    searched = [_arm(policy, f"{policy.name} {i}") for i, policy in enumerate(contest.searched, start=1)]
    computed = [_arm(policy) for policy in contest.computed]
    found = confirm(runner, yardsticks, searched, computed, choosing, reporting, config.confirm, budget, progress)
    decision = _decide(contest, found)

    shipped = decision.shipped
    times = prompt_times(record, found.report, shipped.name)
    gate = gate_of(arena, config, shipped.policy, times, samples)
    profile = freeze(pair, config, run, record, arena.replay, curves, search, decision, gate, command_line)
    path = run.path / f"{profile.name}{PROFILE_SUFFIX}"
    sealed = save_profile(profile, path)
    comparisons = {"select": found.selection, "report": found.report}
    run.save_confirmation({k: _summary(v, record) for k, v in comparisons.items()}, _run_rows(comparisons, record))
    return Tuned(sealed, path, trials, found.selection, found.report)


def _arm(policy: TablePolicy, name: str | None = None) -> Arm:
    return Arm(name or policy.name, policy.source, policy.policy)


def _jobs(pair: Pair, record: Record, samples: dict[str, Sample], split: Split, limit: int) -> list[Job]:
    """Prompts of a split that are on record, in an order that mixes kinds."""
    chosen = [i for i in record.split_samples(split) if record.samples[i].id in samples][:limit]
    return [
        Job(
            i,
            pair.encoder.encode(samples[record.samples[i].id].request()),
            samples[record.samples[i].id].max_new_tokens,
        )
        for i in chosen
    ]


def _decide(contest: Contest, found: Confirmation) -> Decision:
    """Rows of the final table on the report prompts, where no choice was made."""
    report = found.report
    reported = {arm.name: arm for arm in report.arms}
    # the row of the search is the finalist that went on to the report
    contestants = [
        TablePolicy(c.name, reported[c.name].source, contest.arena) if c.name in reported else c
        for c in contest.everyone()
    ]
    measured = {name: report.speedup(name, PLAIN) for name in reported}
    return Decision(
        shipped=reported[found.shipped],
        reason=found.reason,
        results=scoreboard(contestants, contest.arena, np.array(report.samples, dtype=np.int64), measured),
        speedup=report.speedup(found.shipped, PLAIN),
        request_speedup=report.request_speedup(found.shipped, PLAIN),
        gain_over_static=found.gain,
        comparison=report,
    )


def _summary(comparison: Comparison, record: Record) -> dict[str, object]:
    """Everything that the intervals were computed from."""
    return {
        "prompts": [record.samples[i].id for i in comparison.samples],
        "decode_ns": {name: times.tolist() for name, times in comparison.decode_ns.items()},
        "request_ns": {name: times.tolist() for name, times in comparison.request_ns.items()},
        "policies": {arm.name: arm.source.model_dump(mode="json") for arm in comparison.arms},
        "tokens_compared": comparison.tokens,
        "near_ties": comparison.near_ties,
        "rounds_equal_share": comparison.rounds_equal_share,
    }


def _run_rows(comparisons: dict[str, Comparison], record: Record) -> list[RunRow]:
    """Every run that was counted."""
    return [
        (split, record.samples[sample].id, name, number, int(run.prefill_ns), [int(ns) for ns in run.rounds_ns])
        for split, comparison in comparisons.items()
        for name, prompts in comparison.runs.items()
        for sample, runs in zip(comparison.samples, prompts, strict=True)
        for number, run in enumerate(runs)
    ]
