"""`sage_tune models` and `sage_tune gpus`: what is known by name, and what this machine is."""

from __future__ import annotations

from commands.options import out
from profiles.registry import gpu_names, load_gpu_spec, load_pair_spec, model_names


def models() -> None:
    """Pairs that are known by name, and which of them fit this machine."""
    from tuner.machine import find_device
    from tuner.screens import models_table

    device = find_device("auto")
    out.print(models_table([load_pair_spec(name) for name in model_names()], device.memory_bytes))
    memory = "" if device.memory_bytes is None else f", {device.memory_bytes / (1 << 30):.0f} GiB"
    out.print(f"this machine: {device.product}{memory}; a pair that does not fit one device may fit several")


def gpus() -> None:
    """Devices that are known by name, and what this machine is."""
    from tuner.machine import accelerators, core_count, find_device
    from tuner.screens import gpus_table

    here = {device.spec_name for device in accelerators()} | {"cpu"}
    out.print(gpus_table([load_gpu_spec(name) for name in gpu_names()], here))
    device = find_device("auto")
    out.print(f"this machine: {device.product} ({device.arch}, {core_count()} cores), used by --gpu auto")
