"""This machine: what it is, which device was asked for, and the fingerprint that a profile carries."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from profiles.errors import HardwareMissing
from profiles.provenance import Fingerprint
from profiles.registry import gpu_names, gpu_specs, load_gpu_spec
from tuner.nvml import gpu_facts

VERSIONED = (
    "sage_tune",
    "torch",
    "transformers",
    "onnxruntime",
    "onnx",
    "optuna",
    "polars",
    "numpy",
    "pydantic",
    "accelerate",
)
TOLD_BY_NVML = (
    "driver",
    "cuda",
    "mig_slice",
    "clock_max_mhz",
    "memory_clock_max_mhz",
    "power_cap_w",
    "throttle_reasons",
    "clock_now_mhz",
    "memory_clock_now_mhz",
)
SPREADING_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""Device maps of transformers that may use every accelerator; any other string names one device."""
SIMD_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd", "sve")


@dataclass(frozen=True)
class Device:
    """A device that was found and can be used."""

    spec_name: str
    torch_name: str
    """What torch calls it: `cpu`, `cuda:0`."""
    product: str
    arch: str
    memory_bytes: int | None = None
    sm_count: int | None = None
    index: int | None = None
    """Index among the accelerators that are visible to this process."""
    uuid: str | None = None


class Engine(Protocol):
    """What runs a model: `runtime.backends.base.Model` says it of a loaded one."""

    @property
    def backend(self) -> str: ...
    @property
    def backend_version(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def device_map(self) -> str | None: ...
    @property
    def devices(self) -> int: ...


def find_device(name: str) -> Device:
    """The device a user asked for: `auto` takes an accelerator when there is one.

    Raises HardwareMissing naming what was found, BadInput for a name that no file under profiles/gpus has.
    """
    found = accelerators()
    if name == "auto":
        return found[0] if found else _cpu()
    wanted = gpu_specs(name)
    if any(spec.kind == "cpu" for spec in wanted):
        return _cpu()
    for device in found:
        if any(spec.matches_product(device.product) for spec in wanted):
            return device
    products = ", ".join(d.product for d in found) or f"no accelerator, only {cpu_name()}"
    raise HardwareMissing(
        f"--gpu {name} asks for {' or '.join(spec.product for spec in wanted)}; this machine has {products}. "
        "Use --gpu auto to measure what is here, or --estimate for what its data sheet promises"
    )


def memory_bytes(device: Device, device_map: str | None) -> int | None:
    """Memory that weights can be put into: of the device, or of all accelerators where a map spreads the layers."""
    if device.torch_name == "cpu" or device_map not in SPREADING_MAPS:
        return device.memory_bytes
    return sum(d.memory_bytes or 0 for d in accelerators())


def cpu_name() -> str:
    """The CPU's product name, as the kernel reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "Hardware")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def core_count() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fingerprint(engine: Engine, device: Device, threads: int) -> Fingerprint:
    """Everything about this machine that a measured number may depend on."""
    return Fingerprint(
        device="cpu" if device.torch_name == "cpu" else device.product,
        device_arch=device.arch,
        backend=engine.backend,
        backend_version=engine.backend_version,
        dtype=engine.dtype,
        device_map=engine.device_map,
        devices=engine.devices,
        cpu=cpu_name(),
        cores=core_count(),
        threads=threads,
        simd=_simd(),
        governor=_read(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
        device_memory_bytes=device.memory_bytes,
        sm_count=device.sm_count,
        versions=versions(),
        host=platform.node(),
        **{"driver": _driver(), **_gpu_fields(device)},
    )


def _gpu_fields(device: Device) -> dict[str, Any]:
    """Fields of a fingerprint that NVML tells, those that it does not know left out."""
    if device.index is None:
        return {}
    facts = gpu_facts(device.index, device.uuid)
    told = {} if facts is None else {name: getattr(facts, name) for name in TOLD_BY_NVML}
    told |= {"device_index": device.index, "visible_devices": os.environ.get("CUDA_VISIBLE_DEVICES")}
    told |= {"device_serial": device.uuid if facts is None else facts.serial}
    return {name: value for name, value in told.items() if value is not None}


def versions() -> dict[str, str]:
    """Versions of everything that numbers may depend on; packages that are absent are left out."""
    found = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> Device:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device("cpu", "cpu", cpu_name(), platform.machine(), pages)


def accelerators() -> list[Device]:
    """CUDA devices. Without a driver torch is not even imported, so a refusal comes at once."""
    if _driver() is None:
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    devices = []
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        devices.append(
            Device(
                spec_name=next(
                    (n for n in gpu_names() if load_gpu_spec(n).matches_product(properties.name)), properties.name
                ),
                torch_name=f"cuda:{i}",
                product=properties.name,
                arch=f"sm_{properties.major}{properties.minor}",
                memory_bytes=properties.total_memory,
                sm_count=properties.multi_processor_count,
                index=i,
                uuid=str(getattr(properties, "uuid", "")) or None,
            )
        )
    return devices


def _driver() -> str | None:
    text = _read(Path("/proc/driver/nvidia/version"))
    return text.splitlines()[0] if text else None


def _simd() -> tuple[str, ...]:
    text = _read(Path("/proc/cpuinfo")) or ""
    line = next((ln for ln in text.splitlines() if ln.startswith(("flags", "Features"))), "")
    flags = set(line.split(":", 1)[-1].split())
    return tuple(flag for flag in SIMD_FLAGS if flag in flags)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
