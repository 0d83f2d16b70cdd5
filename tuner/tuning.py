"""The `tune` command: replay, search, confirm live, decide, freeze."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiles.config import TuneConfig
from profiles.errors import Inconclusive
from profiles.measurement import PolicyResult
from profiles.policy_profile import PolicyProfile
from profiles.store import PROFILE_SUFFIX, save_profile, write_json
from runtime.pair import Pair
from tuner.calibration import Sample, Split
from tuner.confirm import Arm, Comparison, Job, compare, winner
from tuner.freeze import Decision, freeze
from tuner.outcomes import Record
from tuner.policy_search import search_policies, search_share
from tuner.profiling import samples_of
from tuner.progress import Progress
from tuner.replay import Replay
from tuner.run_folder import RunFolder
from tuner.timing import Budget
from tuner.trace_store import load_record
from tuner.yardsticks.base import Arena
from tuner.yardsticks.single import PLAIN, STATIC, best_chain, best_static, plain

TUNED = "tuned"


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
    replay = Replay(record, table)
    arena = Arena(replay, config.grid)
    samples = {sample.id: sample for sample in samples_of(config, pair.spec)}

    search, trials = search_policies(config, run.study_place(config), run.trace, arena, search_share(budget), progress)
    static = best_static(arena)
    chain = best_chain(arena) or static
    finalists = [
        Arm(f"{TUNED} {i + 1}", c.source, arena.compiled(c.source))
        for i, c in enumerate(search.candidates(4 * config.confirm.finalists))
        if arena.compiled(c.source).verdict() == "adaptive"
    ][: config.confirm.finalists]
    fixed = [Arm(p.name, p.source, p.policy) for p in (plain(arena), chain, static)]

    limits = config.confirm
    choosing = _jobs(pair, record, samples, "select", limits.select_prompts)
    reporting = _jobs(pair, record, samples, "report", limits.report_prompts)
    plain_and_static = [arm for arm in fixed if arm.name in (PLAIN, STATIC)]
    with progress.task("choosing, live", len(choosing)) as advance:
        # the report needs its time too: choosing may take up to its share of prompts
        share = Budget(budget.left_s * len(choosing) / (len(choosing) + len(reporting)))
        selection = compare(
            pair, [*plain_and_static, *finalists], choosing, replay, limits.repeats, share, lambda: advance(1)
        )
    _require_prompts(selection, "select")
    choice, reason, _ = winner(selection, STATIC, [arm.name for arm in finalists], limits.resamples)

    # the tuned policy is reported even when it does not ship
    best = _best_finalist(selection, finalists, choice, limits.resamples)
    arms = fixed + ([Arm(TUNED, best.source, best.policy)] if best else [])
    with progress.task("reporting, live", len(reporting)) as advance:
        report = compare(pair, arms, reporting, replay, limits.repeats, budget, lambda: advance(1))
    _require_prompts(report, "report")
    shipped, reason = _confirmed(report, choice, reason, limits.resamples)
    decision = _decide(replay, report, arms, shipped, reason, limits.resamples)

    profile = freeze(pair, config, run, record, replay, curves, search, decision, command_line)
    path = run.path / f"{profile.name}{PROFILE_SUFFIX}"
    sealed = save_profile(profile, path)
    write_json(run.path / "confirm.json", {"select": _raw(selection, record), "report": _raw(report, record)})
    return Tuned(sealed, path, trials, selection, report)


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


def _require_prompts(comparison: Comparison, split: str) -> None:
    if len(comparison.samples) < 3:
        raise Inconclusive(
            f"only {len(comparison.samples)} prompts of the {split} split were compared before the budget ended; "
            "run the command again with a larger --budget"
        )


def _confirmed(report: Comparison, choice: str, reason: str, resamples: int) -> tuple[str, str]:
    """What the selection prompts chose must hold on the report prompts as well; they can only take away."""
    chosen = choice if choice in (PLAIN, STATIC) else TUNED
    if chosen == PLAIN:
        return PLAIN, reason
    held, held_reason, _ = winner(report, STATIC, [TUNED] if chosen == TUNED else [], resamples)
    if held == chosen:
        return chosen, held_reason if chosen == TUNED else reason
    return held, f"not confirmed on the report prompts: {held_reason}"


def _best_finalist(comparison: Comparison, finalists: list[Arm], choice: str, resamples: int) -> Arm | None:
    chosen = [arm for arm in finalists if arm.name == choice]
    if chosen or not finalists:
        return chosen[0] if chosen else None
    return max(finalists, key=lambda arm: comparison.speedup(arm.name, STATIC, resamples).low)


def _decide(replay: Replay, report: Comparison, arms: list[Arm], shipped: str, reason: str, resamples: int) -> Decision:
    """Rows of the final table on the report prompts, where no choice was made."""
    samples = np.array(report.samples, dtype=np.int64)
    results = []
    for arm in arms:
        walk = replay.walk(arm.policy, samples)
        results.append(
            PolicyResult(
                name=arm.name,
                tiers=tuple(tier.label() for tier in arm.source.tiers),
                verdict=arm.policy.verdict(),
                acceptance_length=walk.acceptance_length,
                rounds=walk.rounds,
                speedup_replayed=float(replay.plain_time_ns(samples).sum() / walk.time_ns.sum()),
                speedup_measured=report.speedup(arm.name, PLAIN, resamples),
            )
        )
    best = TUNED if any(arm.name == TUNED for arm in arms) else STATIC
    return Decision(
        shipped=next(arm for arm in arms if arm.name == shipped),
        reason=reason,
        results=tuple(results),
        speedup=report.speedup(shipped, PLAIN, resamples),
        request_speedup=report.request_speedup(shipped, PLAIN, resamples),
        gain_over_static=report.speedup(best, STATIC, resamples),
        comparison=report,
    )


def _raw(comparison: Comparison, record: Record) -> dict[str, object]:
    """Everything that the intervals were computed from."""
    return {
        "prompts": [record.samples[i].id for i in comparison.samples],
        "decode_ns": comparison.times_ns,
        "request_ns": comparison.request_ns,
        "policies": {arm.name: arm.source.model_dump(mode="json") for arm in comparison.arms},
        "tokens_compared": comparison.tokens,
        "near_ties": comparison.near_ties,
        "rounds_equal_share": comparison.rounds_equal_share,
    }
