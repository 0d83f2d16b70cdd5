"""The `profile` command: record traces, measure costs, derive curves. Resumable; a budget ends it cleanly."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiles.config import TuneConfig
from profiles.errors import BadInput, Inconclusive
from profiles.measurement import CostTable, Curve
from profiles.registry import PairSpec
from profiles.store import kernel_lock
from profiles.trace_schema import TraceManifest
from runtime.pair import Pair
from runtime.sampling import resolved
from tuner import costs as cost_measuring
from tuner.calibration import SPLITS, Sample, data_digest, load_samples
from tuner.curves import acceptance_curves
from tuner.lint import fast_findings, require_sound
from tuner.machine import Device, fingerprint, versions
from tuner.outcomes import Record
from tuner.progress import Progress
from tuner.run_folder import RunFolder, trace_location
from tuner.shards import Shard, missing_by_shard
from tuner.timing import Budget
from tuner.trace_store import TraceStore, load_record
from tuner.traces import Recorder

COST_PROMPTS = 8
"""Prompts of the rounds that costs are measured on."""
COST_RESERVE_S = 30.0
"""Part of a budget that recording leaves to the cost table, at most half of it."""


@dataclass(frozen=True)
class Profiled:
    """What a run folder now holds."""

    record: Record
    costs: CostTable
    curves: list[Curve]
    skipped: list[str]
    missing: int
    """Samples that a spent budget left for another run."""

    def summary(self) -> str:
        """The last lines of the command: skipped samples by reason, and what is on record."""
        lines = [f"skipped: {reason}" for reason in self.skipped]
        lines.append(
            f"cost ratio target/draft {self.costs.cost_ratio():.1f}; {self.record.positions} positions of "
            f"{len(self.record.samples)} prompts on record"
        )
        if self.missing:
            lines.append(f"the budget left {self.missing} prompts for the same command to record")
        return "\n".join(lines)

    def document(self) -> dict[str, object]:
        """The numbers of a profiled run for a script."""
        return {
            "prompts": len(self.record.samples),
            "skipped": len(self.skipped),
            "missing": self.missing,
            "positions": self.record.positions,
            "cost_ratio": self.costs.cost_ratio(),
            "free_width": self.costs.free_width(),
            "dropped_sizes": self.costs.dropped_sizes,
        }


@dataclass(frozen=True)
class PartlyRecorded:
    """A shard's run that could not complete the record: costs wait for the one that does."""

    shard: Shard
    recorded: int
    """Samples of this shard on record."""
    skipped: list[str]
    own_missing: int
    """Samples of this shard that a spent budget left."""
    others_missing: list[str]
    """Ids of other shards' samples."""

    def summary(self) -> str:
        """The last lines of the command: what is still missing, and who records it."""
        lines = [f"skipped: {reason}" for reason in self.skipped]
        lines.append(f"shard {self.shard}: {self.recorded} samples on record")
        if self.own_missing:
            lines.append(f"the budget left {self.own_missing} samples for the same command to record")
        if self.others_missing:
            owed = missing_by_shard(self.others_missing, self.shard.count)
            lines.append(f"still missing from other shards: {len(self.others_missing)} samples ({owed})")
        lines.append("costs are measured by the shard that completes the record, or by the command without --shard")
        return "\n".join(lines)

    def document(self) -> dict[str, object]:
        """The same for a script."""
        return {
            "shard": str(self.shard),
            "prompts": self.recorded,
            "skipped": len(self.skipped),
            "missing": self.own_missing + len(self.others_missing),
        }


def samples_of(config: TuneConfig, spec: PairSpec) -> list[Sample]:
    """Calibration samples of a configuration: its own file, else the pair's. Raises BadInput without either."""
    data = config.data.path or spec.calibration_path()
    if data is None:
        raise BadInput(
            f"'{spec.name}' ships no calibration set; give one with --data (a JSONL file, a folder, hf:NAME)"
        )
    return load_samples(data, config.data)


def manifest_of(pair: Pair, config: TuneConfig, samples: list[Sample]) -> TraceManifest:
    """What a record of these samples would depend on."""
    return TraceManifest(
        pair_digest=pair.digest,
        data_digest=data_digest(samples),
        backend=pair.target.backend,
        dtype=pair.target.dtype,
        depth=config.grid.depth,
        rules=config.grid.rules(),
        prunings=config.grid.pruning.settings(),
        signal_logprobs=config.grid.signal_logprobs,
        sampling=resolved(pair, config.sampling),
        versions={k: v for k, v in versions().items() if k in ("torch", "transformers", "onnxruntime")},
    )


def recording_share(budget: Budget) -> Budget:
    """What recording may take of a command that still has to measure costs."""
    return Budget(max(budget.left_s - min(COST_RESERVE_S, budget.left_s / 2), 0.0))


def profile(
    pair: Pair, config: TuneConfig, device: Device, run: RunFolder, budget: Budget, progress: Progress
) -> Profiled:
    """Fill the run folder. What is already there is kept; raises Inconclusive when the budget ends too early, BadInput
    for bad samples before one is recorded."""
    samples = samples_of(config, pair.spec)
    reserve = recording_share(budget)
    recorder = begin(pair, config, device, run, samples)
    with progress.task("recording traces", len(samples)) as advance:
        done, skipped = recorder.record_all(samples, reserve, config.data.skip_bad, lambda _: advance(1))
    if not done:
        raise Inconclusive("the budget ended before one sample was recorded; run the command again to go on")
    record = load_record(run.trace)
    empty = [split for split in SPLITS if len(record.split_samples(split)) < 3]
    if empty:
        raise Inconclusive(
            f"{done} of {len(samples)} samples are recorded, the {' and '.join(empty)} split has fewer than 3; "
            "run the command again to go on"
        )
    # shards that end at the same moment must not time each other
    with kernel_lock(run.path / "costs.lock"):
        if run.has_costs() and _covers(run.costs(), record):
            table = run.costs()
        else:
            table = _measure(pair, config, samples, record, run, budget, progress)
    curves = acceptance_curves(record)
    run.save_curves(curves)
    return Profiled(record, table, curves, skipped, len(samples) - done - len(skipped))


def profile_shard(
    pair: Pair, config: TuneConfig, device: Device, run: RunFolder, budget: Budget, progress: Progress, shard: Shard
) -> Profiled | PartlyRecorded:
    """Record the samples of one shard; the one that completes the record goes on like `profile`."""
    samples = samples_of(config, pair.spec)
    mine = [sample for sample in samples if shard.holds(sample.id)]
    recorder = begin(pair, config, device, run, samples)
    with progress.task(f"recording shard {shard}", len(mine)) as advance:
        done, skipped = recorder.record_all(mine, budget, config.data.skip_bad, lambda _: advance(1))
    others = recorder.store.missing([sample.id for sample in samples if not shard.holds(sample.id)])
    own = len(mine) - done - len(skipped)
    if others or own:
        return PartlyRecorded(shard, done, skipped, own, others)
    return profile(pair, config, device, run, budget, progress)


def begin(pair: Pair, config: TuneConfig, device: Device, run: RunFolder, samples: list[Sample]) -> Recorder:
    """Claim the run folder and its record for these inputs. Raises BadInput for bad samples before one is recorded,
    ProfileError when the folder or the record belong to others."""
    require_sound(samples, config, pair.spec, pair.encoder.tokenizer)
    _require_prunable(pair, config, samples)
    run.begin(config, pair.record, fingerprint(pair.target, device, pair.threads))
    return Recorder(pair, run.trace, manifest_of(pair, config, samples))


def _require_prunable(pair: Pair, config: TuneConfig, samples: list[Sample]) -> None:
    """Raises BadInput when the grid prunes what has no visual tokens, or by attention that nobody can tell."""
    prunings = config.grid.pruning.settings()[1:]
    if prunings and not any(sample.modality != "text" for sample in samples):
        raise BadInput("grid.pruning.ratios needs prompts with pictures or frames; these are text only")
    if any(pruning.kind == "verifier" for pruning in prunings) and not pair.target.gives_attention:
        raise BadInput(
            f"grid.pruning.kinds: 'verifier' needs the target's attention weights, which the {pair.target.backend} "
            "backend does not give; use 'uniform' or --backend torch"
        )


def _measure(
    pair: Pair,
    config: TuneConfig,
    samples: list[Sample],
    record: Record,
    run: RunFolder,
    budget: Budget,
    progress: Progress,
) -> CostTable:
    by_id = {sample.id: sample for sample in samples}
    tuned = [record.samples[i] for i in record.split_samples("tune")]
    # long outputs first: they hold most rounds; the prompts of the report take no part
    longest = sorted(tuned, key=lambda s: -len(s.output))[:COST_PROMPTS]
    prompts = [
        (pair.encoder.encode(by_id[s.id].request()), by_id[s.id].max_new_tokens) for s in longest if s.id in by_id
    ]
    grid = config.grid
    contexts = cost_measuring.context_grid(_shortest(record), int(record.context.max()), grid.contexts)
    edge = float(np.median(record.signal("one_minus_top1", 2)))
    policies = cost_measuring.covering_policies(grid, edge, record.context_max)
    with progress.task("timing rounds", 100) as advance:
        passed = 0.0

        def on_progress(share: float) -> None:
            nonlocal passed
            advance(100 * share - passed)
            passed = 100 * share

        measured = cost_measuring.measure_rounds(
            pair, prompts, policies, config.timing, budget, on_progress, record.manifest.sampling
        )
    table = cost_measuring.cost_table(measured, grid.verify_sizes, contexts, pair.threads)
    rounds = cost_measuring.warm_rounds(measured.outputs)
    run.save_costs(table, cost_measuring.pass_samples(rounds, grid.verify_sizes))
    return table


def _covers(table: CostTable, record: Record) -> bool:
    """False when a resumed record has grown past the contexts that were timed."""
    contexts = table.contexts()
    return bool(contexts[0] <= _shortest(record) and record.context.max() <= contexts[-1])


def _shortest(record: Record) -> int:
    """The least context of any pass: that of a draft without most visual tokens."""
    return min(int(record.under(pruning).draft_context.min()) for pruning in record.manifest.prunings)


def estimate(pair: Pair, config: TuneConfig, folder: Path, shard: Shard | None = None) -> str:
    """The plan of a `profile` run. Time and disk are extrapolated from one sample, recorded into a scratch folder."""
    samples = samples_of(config, pair.spec)
    found = fast_findings(samples, config, pair.spec, pair.encoder.tokenizer)
    manifest = manifest_of(pair, config, samples)
    location = trace_location(config, folder)
    missing = TraceStore(location).missing([sample.id for sample in samples])
    mine = [sample for sample in missing if shard is None or shard.holds(sample)]
    probe = max(samples, key=lambda s: s.max_new_tokens)
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(pair, scratch, manifest)
        start = time.monotonic()
        recorder.record_all([probe], Budget(None))
        sample_s = time.monotonic() - start
        part_bytes = sum(path.stat().st_size for path in Path(scratch).rglob("*.parquet"))
    grid = config.grid
    recording_min = sample_s * len(mine) / 60
    whose = "" if shard is None else f" as shard {shard} (of {len(missing)} that are missing)"
    lines = [
        f"plan: {pair.spec.name} on {config.gpu} ({config.backend} {config.dtype}, {config.threads} threads)",
        f"  into {folder}" + ("" if config.data.trace_url is None else f", the record into {location}"),
        f"  record {len(mine)} of {len(samples)} prompts{whose}, beams {list(grid.widths)} to depth {grid.depth}, "
        f"{manifest.sampling.label()}",
        f"  time {config.timing.samples} rounds or more per tree shape, verify sizes {list(grid.verify_sizes)}",
        f"estimated from the longest sample: at most {recording_min:.1f} min of recording, "
        f"{part_bytes * len(samples) / 1e6:.0f} MB",
        *(f"{f.status} {f.check}: {f.text}" for f in found if f.status != "pass"),
    ]
    return "\n".join(lines)
