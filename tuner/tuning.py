"""The `tune` command: replay, search, confirm live, decide, freeze."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiles.config import GridConfig, TuneConfig
from profiles.measurement import PolicyResult
from profiles.policy import PolicySource
from profiles.policy_profile import PolicyProfile
from profiles.store import PROFILE_SUFFIX, save_profile
from runtime.pair import Pair
from tuner import yardsticks
from tuner.calibration import Sample, Split
from tuner.comparison import Arm, Comparison, Job
from tuner.confirm import PLAIN, STATIC, TUNED, Confirmation, confirm
from tuner.freeze import Decision, freeze
from tuner.live import LiveRunner
from tuner.outcomes import Record, load_record, trace_digest
from tuner.profiling import samples_of
from tuner.progress import Progress
from tuner.replay import Replay
from tuner.run_folder import RunFolder, RunRow
from tuner.search import Search
from tuner.timing import Budget

CHAIN = "best chain"


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
    # sizes that ran out of memory were not timed: no yardstick and no trial may ask for them
    replay, grid = Replay(record, table), config.grid.restricted(table.sizes("verify"))
    samples = {sample.id: sample for sample in samples_of(config, pair.spec)}

    chain, static, search, trials = _search(config, grid, run, replay, budget, progress)
    finalists = [
        Arm(f"{TUNED} {i + 1}", c.source, yardsticks.compiled(c.source, grid, replay))
        for i, c in enumerate(search.candidates(4 * config.confirm.finalists))
        if yardsticks.compiled(c.source, grid, replay).verdict() == "adaptive"
    ][: config.confirm.finalists]
    fixed = [Arm(s.name, s, yardsticks.compiled(s, grid, replay)) for s in (yardsticks.plain(), chain, static)]

    choosing = _jobs(pair, record, samples, "select", config.confirm.select_prompts)
    reporting = _jobs(pair, record, samples, "report", config.confirm.report_prompts)
    runner = LiveRunner(pair, replay, np.array([job.sample for job in choosing + reporting], dtype=np.int64))
    found = confirm(runner, fixed, finalists, choosing, reporting, config.confirm, budget, progress)
    decision = _decide(replay, found)

    profile = freeze(pair, config, run, record, replay, curves, search, decision, command_line)
    path = run.path / f"{profile.name}{PROFILE_SUFFIX}"
    sealed = save_profile(profile, path)
    comparisons = {"select": found.selection, "report": found.report}
    run.save_confirmation({k: _summary(v, record) for k, v in comparisons.items()}, _run_rows(comparisons, record))
    return Tuned(sealed, path, trials, found.selection, found.report)


def _search(
    config: TuneConfig, grid: GridConfig, run: RunFolder, replay: Replay, budget: Budget, progress: Progress
) -> tuple[PolicySource, PolicySource, Search, int]:
    """The best chain, the best static tier, the finished study and its number of trials."""
    tune = replay.record.split_samples("tune")
    chains, statics = yardsticks.chain_tiers(grid), yardsticks.static_tiers(grid)
    with progress.task("replaying yardsticks", 2) as advance:
        chain, _ = yardsticks.best_single(CHAIN, chains or statics, replay, tune, grid)
        advance(1)
        static, _ = yardsticks.best_single(STATIC, statics, replay, tune, grid)
        advance(1)
    key = {"trace": trace_digest(run.trace), "costs": run.costs().model_dump_json()}
    search = Search(run.journal, grid, config.search, replay, key)
    baselines = [chain.tiers[0], static.tiers[0]]
    baselines += yardsticks.stopping_tiers(static.tiers[0], config.search.stops)
    with progress.task("searching policies", config.search.trials) as advance:
        trials = search.run(baselines, Budget(budget.left_s / 2), lambda done, best: advance(1))
    return chain, static, search, trials


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


def _decide(replay: Replay, found: Confirmation) -> Decision:
    """Rows of the final table on the report prompts, where no choice was made."""
    report = found.report
    samples = np.array(report.samples, dtype=np.int64)
    results = []
    for arm in report.arms:
        walk = replay.walk(arm.policy, samples)
        results.append(
            PolicyResult(
                name=arm.name,
                tiers=tuple(tier.label() for tier in arm.source.tiers),
                verdict=arm.policy.verdict(),
                acceptance_length=walk.acceptance_length,
                rounds=walk.rounds,
                speedup_replayed=float(replay.plain_time_ns(samples).sum() / walk.time_ns.sum()),
                speedup_measured=report.speedup(arm.name, PLAIN),
            )
        )
    return Decision(
        shipped=next(arm for arm in report.arms if arm.name == found.shipped),
        reason=found.reason,
        results=tuple(results),
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
