"""Freezing: decision, evidence and provenance into one `PolicyProfile`. The same inputs give the same bytes."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.config import TuneConfig
from profiles.counters import Counters
from profiles.gate import Gate
from profiles.measurement import CostTable, Curve, Interval, PolicyResult
from profiles.policy_profile import Evidence, PolicyProfile, Provenance, Regime
from profiles.provenance import digest
from runtime.pair import Pair
from tuner.comparison import Arm, Comparison
from tuner.drift import snapshot
from tuner.machine import versions
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.run_folder import RunFolder
from tuner.search import Search
from tuner.trace_store import trace_digest


@dataclass(frozen=True)
class Decision:
    """What ships, why, and the numbers of the report prompts behind it."""

    shipped: Arm
    reason: str
    results: tuple[PolicyResult, ...]
    speedup: Interval
    request_speedup: Interval
    gain_over_static: Interval
    comparison: Comparison

    @property
    def row(self) -> PolicyResult:
        return next(result for result in self.results if result.name == self.shipped.name)

    @property
    def prediction_error(self) -> float:
        """Replayed over measured speedup, minus one, on the same prompts."""
        return self.row.speedup_replayed / self.speedup.median - 1.0


def freeze(
    pair: Pair,
    config: TuneConfig,
    run: RunFolder,
    record: Record,
    replay: Replay,
    curves: tuple[Curve, ...],
    search: Search,
    decision: Decision,
    gate: Gate,
    command_line: str,
) -> PolicyProfile:
    """Put everything together. The profile is sealed by `profiles.store.save_profile`."""
    table: CostTable = replay.costs.table
    row = decision.row
    manifest = record.manifest
    return PolicyProfile(
        name=f"{pair.spec.name}-{config.gpu}",
        pair=pair.record,
        regime=Regime(
            modalities=tuple(sorted({s.modality for s in record.samples})),
            sampling=manifest.sampling.regime(),
            context_max=record.context_max,
        ),
        policy=decision.shipped.policy,
        source=decision.shipped.source,
        shipped=decision.shipped.policy.verdict(),
        reason=decision.reason,
        evidence=Evidence(
            cost_table=table,
            cost_ratio=table.cost_ratio(),
            curves=curves,
            results=decision.results,
            shipped_name=row.name,
            speedup=decision.speedup,
            request_speedup=decision.request_speedup,
            gain_over_static=decision.gain_over_static,
            speedup_replayed=row.speedup_replayed,
            prediction_error=decision.prediction_error,
            prediction_bound=config.confirm.prediction_bound,
            acceptance_length=row.acceptance_length,
            lossless_tokens=decision.comparison.tokens,
            near_ties=decision.comparison.near_ties,
            baseline=snapshot(_counted(decision), table),
        ),
        fingerprint=run.fingerprint(),
        gate=gate,
        provenance=Provenance(
            config_digest=digest(config.model_dump(mode="json")),
            data_digest=manifest.data_digest,
            trace_digest=trace_digest(run.trace),
            split_prompts={split: len(record.split_samples(split)) for split in ("tune", "select", "report")},
            search=search.record(),
            versions=versions(),
            command_line=command_line,
        ),
    )


def _counted(decision: Decision) -> list[Counters]:
    """Counters of the shipped policy on every report prompt, of the run that foreign load hit least: all runs of a
    prompt are the same work."""
    runs = decision.comparison.runs[decision.shipped.name]
    calmest = [min(prompt, key=lambda run: sum(run.rounds_ns)) for prompt in runs]
    return [run.counters for run in calmest if run.counters is not None]
