"""The `profile` command's ways: alone, as one shard of many, or as the driver of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from commands.opening import open_configured
from commands.options import budget_of, out, progress
from profiles.config import TuneConfig
from profiles.errors import BadInput

if TYPE_CHECKING:
    from runtime.pair import Pair
    from tuner.machine import Device
    from tuner.profiling import PartlyRecorded, Profiled
    from tuner.run_folder import RunFolder


@dataclass(frozen=True)
class Spread:
    """How the recording is spread over processes, as it was typed."""

    shard: str | None = None
    merge: tuple[str, ...] = ()
    ray: str | None = None
    shards: int | None = None


def run_profile(
    config: TuneConfig, out_folder: Path | None, spread: Spread, dry_run: bool
) -> tuple[Profiled | PartlyRecorded | str, Path]:
    """What was done and the run folder; the plan as text under `dry_run`."""
    from tuner.plan import plan_pair
    from tuner.profiling import estimate, profile, profile_shard
    from tuner.run_folder import RunFolder, trace_location
    from tuner.shards import parse_shard
    from tuner.trace_store import TraceStore

    shard = parse_shard(spread.shard) if spread.shard else None
    if shard and spread.ray:
        raise BadInput("--shard is for one process, --ray for a cluster that takes all shards; give one of them")
    if spread.merge and spread.ray:
        raise BadInput("--merge and --ray do not go together: merge first, then let the cluster record what is missing")
    plan, resolved, _ = plan_pair(config)
    folder = out_folder or Path("runs") / f"{plan.spec.name}-{resolved.gpu}"
    TraceStore(trace_location(resolved, folder))  # a place that cannot be opened is found before models are loaded
    budget = None
    if spread.ray and spread.shards and not dry_run:
        from commands.cluster import record_on_cluster

        budget = budget_of(config)
        record_on_cluster(resolved, folder, spread.ray, spread.shards, budget, progress())
    pair, config, device = open_configured(config)
    # loading is not counted: a command that is called again and again must get somewhere
    run, budget = RunFolder(folder), budget or budget_of(config)
    if dry_run:
        text = estimate(pair, config, folder, shard)
        return text + (f"\n  as {spread.shards} tasks on the Ray cluster '{spread.ray}'" if spread.ray else ""), folder
    if spread.merge:
        _merge(pair, config, device, run, spread.merge)
    if shard:
        return profile_shard(pair, config, device, run, budget, progress(), shard), folder
    return profile(pair, config, device, run, budget, progress()), folder


def _merge(pair: Pair, config: TuneConfig, device: Device, run: RunFolder, places: tuple[str, ...]) -> None:
    """Take over parts that were recorded elsewhere, before what is still missing is recorded here."""
    from tuner.profiling import begin, samples_of
    from tuner.run_folder import RunFolder
    from tuner.trace_store import TraceStore

    store = begin(pair, config, device, run, samples_of(config, pair.spec)).store
    for place in places:
        is_run = (Path(place) / "config.json").exists()
        taken = store.merge(TraceStore(RunFolder(Path(place)).trace if is_run else place))
        out.print(f"took over {taken} samples from {place}", soft_wrap=True)
