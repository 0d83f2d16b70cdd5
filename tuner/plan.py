"""The plan: every `auto` of a configuration resolved against the pair and this machine, before anything is loaded."""

from __future__ import annotations

from profiles.config import TuneConfig
from profiles.errors import BadInput
from profiles.registry import load_pair_spec
from runtime.pair import PairPlan
from tuner.machine import Device, core_count, find_device


def plan_pair(config: TuneConfig) -> tuple[PairPlan, TuneConfig, Device]:
    """How the pair will be loaded, the resolved configuration, and the device.

    Raises HardwareMissing for a device that is not here, BadInput for an unknown pair or too many threads.
    """
    spec = load_pair_spec(config.model)
    device = find_device(config.gpu)
    backend = config.backend
    if backend == "auto":
        backend = spec.backend if device.torch_name == "cpu" else "torch"
    threads, cores = config.threads or core_count(), core_count()
    if threads > cores:
        raise BadInput(f"threads <= cores must hold, got {threads} threads for {cores} cores")
    dtype = spec.dtype if config.dtype == "auto" else config.dtype
    resolved = config.model_copy(
        update={"gpu": device.spec_name, "backend": backend, "dtype": dtype, "threads": threads}
    )
    return PairPlan(spec, backend, dtype, device.torch_name, threads, device.memory_bytes), resolved, device
