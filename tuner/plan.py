"""The plan: every `auto` of a configuration resolved against the pair and this machine, before anything is loaded."""

from __future__ import annotations

from profiles.config import TuneConfig
from profiles.errors import BadInput, HardwareMissing
from profiles.registry import load_pair_spec
from runtime.model_facts import model_shape, own_pair, require_made
from runtime.pair import PairPlan
from tuner.machine import Device, core_count, find_device, memory_bytes


def plan_pair(config: TuneConfig) -> tuple[PairPlan, TuneConfig, Device]:
    """How the pair will be loaded, the resolved configuration, and the device.

    Raises HardwareMissing for a device that is not here, BadInput for an unknown pair, a folder without a model, an
    early exit that leaves no layer out, a device map on an engine that has none, or too many threads.
    """
    named = load_pair_spec(config.model)
    device = find_device(config.gpu)
    spec = own_pair(named, config.target, config.draft)
    require_made(spec)
    if spec.draft.early_exit_layers is not None:
        model_shape(spec, spec.draft)  # refuses one that leaves no layer out
    backend = config.backend
    if backend == "auto":
        backend = spec.backend if device.torch_name == "cpu" else "torch"
    if config.device_map is not None and backend != "torch":
        raise BadInput(f"a device map needs --backend torch, got device_map={config.device_map!r} with {backend}")
    if device.torch_name == "cpu" and (config.device_map or "").startswith("cuda"):
        raise HardwareMissing(f"device_map={config.device_map!r} asks for an accelerator, the device is the CPU")
    threads, cores = config.threads or core_count(), core_count()
    if threads > cores:
        raise BadInput(f"threads <= cores must hold, got {threads} threads for {cores} cores")
    dtype = config.dtype
    if dtype == "auto":
        dtype = "float32" if backend == "onnx" else spec.dtype  # graphs are exported in float32 only
    resolved = config.model_copy(
        update={"gpu": device.spec_name, "backend": backend, "dtype": dtype, "threads": threads}
    )
    plan = PairPlan(
        spec, backend, dtype, device.torch_name, threads, memory_bytes(device, config.device_map), config.device_map
    )
    return plan, resolved, device
