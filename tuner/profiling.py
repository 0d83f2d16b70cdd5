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
from profiles.trace_schema import TraceManifest
from runtime.pair import Pair
from runtime.sampling import resolved
from tuner import costs as cost_measuring
from tuner.calibration import SPLITS, Sample, data_digest, load_samples
from tuner.curves import acceptance_curves
from tuner.machine import Device, fingerprint, versions
from tuner.outcomes import Record, load_record
from tuner.progress import Progress
from tuner.run_folder import RunFolder
from tuner.timing import Budget
from tuner.traces import Recorder, part_path

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
        }


def samples_of(config: TuneConfig, spec: PairSpec) -> list[Sample]:
    """Calibration samples of a configuration: its own file, else the pair's. Raises BadInput without either."""
    path = Path(config.data.path) if config.data.path else spec.calibration_path()
    if path is None:
        raise BadInput(f"'{spec.name}' ships no calibration set; give one with --data FILE.jsonl")
    samples = load_samples(path, config.data)
    needed = {m for m in spec.modalities if m != "text"}
    if needed and not any(s.modality in needed for s in samples):
        raise BadInput(
            f"{path} is text only, but '{spec.name}' is profiled for {', '.join(sorted(needed))}; acceptance on "
            "text says nothing about pictures"
        )
    return samples


def manifest_of(pair: Pair, config: TuneConfig, samples: list[Sample]) -> TraceManifest:
    """What a record of these samples would depend on."""
    return TraceManifest(
        pair_digest=pair.digest,
        data_digest=data_digest(samples),
        backend=pair.target.backend,
        dtype=pair.target.dtype,
        depth=config.grid.depth,
        rules=config.grid.rules(),
        signal_logprobs=config.grid.signal_logprobs,
        sampling=resolved(pair, config.sampling),
        versions={k: v for k, v in versions().items() if k in ("torch", "transformers", "onnxruntime")},
    )


def profile(
    pair: Pair, config: TuneConfig, device: Device, run: RunFolder, budget: Budget, progress: Progress
) -> Profiled:
    """Fill the run folder. What is already there is kept; raises Inconclusive when the budget ends too early."""
    samples = samples_of(config, pair.spec)
    run.begin(config, pair.record, fingerprint(pair.target, device, pair.threads))
    manifest = manifest_of(pair, config, samples)
    recorder = Recorder(pair, run.trace, manifest)
    reserve = Budget(max(budget.left_s - min(COST_RESERVE_S, budget.left_s / 2), 0.0))
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
    if run.has_costs() and _covers(run.costs(), record):
        table = run.costs()
    else:
        table = _measure(pair, config, samples, record, run, budget, progress)
    curves = acceptance_curves(record)
    run.save_curves(curves)
    return Profiled(record, table, curves, skipped, len(samples) - done - len(skipped))


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
    contexts = cost_measuring.context_grid(int(record.context.min()), int(record.context.max()), grid.contexts)
    edge = float(np.median(record.signal("one_minus_top1", 2)))
    policies = cost_measuring.covering_policies(grid, edge, record.context_max)
    with progress.task("timing rounds", 100) as advance:
        passed = 0.0

        def on_progress(share: float) -> None:
            nonlocal passed
            advance(100 * share - passed)
            passed = 100 * share

        outputs = cost_measuring.measure_rounds(
            pair, prompts, policies, config.timing, budget, on_progress, record.manifest.sampling
        )
    table = cost_measuring.cost_table(outputs, grid.verify_sizes, contexts, pair.threads)
    run.save_costs(table, cost_measuring.pass_samples(cost_measuring.warm_rounds(outputs), grid.verify_sizes))
    return table


def _covers(table: CostTable, record: Record) -> bool:
    """False when a resumed record has grown past the contexts that were timed."""
    contexts = table.contexts()
    return bool(contexts[0] <= record.context.min() and record.context.max() <= contexts[-1])


def estimate(pair: Pair, config: TuneConfig, folder: Path) -> str:
    """The plan of a `profile` run. Time and disk are extrapolated from one sample, recorded into a scratch folder."""
    samples = samples_of(config, pair.spec)
    manifest = manifest_of(pair, config, samples)
    missing = [s for s in samples if not part_path(folder / "trace", s.id).exists()]
    probe = max(samples, key=lambda s: s.max_new_tokens)
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(pair, Path(scratch), manifest)
        start = time.monotonic()
        recorder.record_all([probe], Budget(None))
        sample_s = time.monotonic() - start
        part_bytes = part_path(Path(scratch), probe.id).stat().st_size
    grid = config.grid
    recording_min = sample_s * len(missing) / 60
    lines = [
        f"plan: {pair.spec.name} on {config.gpu} ({config.backend} {config.dtype}, {config.threads} threads)",
        f"  into {folder}",
        f"  record {len(missing)} of {len(samples)} prompts, beams {list(grid.widths)} to depth {grid.depth}, "
        f"{manifest.sampling.label()}",
        f"  time {config.timing.samples} rounds or more per tree shape, verify sizes {list(grid.verify_sizes)}",
        f"estimated from the longest sample: at most {recording_min:.1f} min of recording, "
        f"{part_bytes * len(samples) / 1e6:.0f} MB",
    ]
    return "\n".join(lines)
