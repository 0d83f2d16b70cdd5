"""What NVIDIA's management library says about a GPU. No driver means no GPU; what a device does not tell is None.

NVML counts the devices of the machine, a process counts those that are visible to it, and a MIG slice is neither: so a
device is found by its UUID wherever that is known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

THROTTLE_BITS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons that hold clocks down. An idle GPU (0x1), clocks set by hand (0x2) and display
clocks (0x100) are no throttling."""


@dataclass(frozen=True)
class GpuFacts:
    """One visible GPU or MIG slice."""

    product: str
    serial: str | None
    """UUID."""
    memory_bytes: int | None
    mig_slice: str | None
    clock_now_mhz: int | None
    clock_max_mhz: int | None
    memory_clock_now_mhz: int | None
    memory_clock_max_mhz: int | None
    power_cap_w: int | None
    throttle_reasons: tuple[str, ...]
    driver: str | None
    cuda: str | None


def gpu_facts(index: int, uuid: str | None = None) -> GpuFacts | None:
    """The GPU with this visible index; None without a driver or without such a GPU. `uuid` as CUDA tells it, with or
    without NVML's prefix, is certain where an index depends on the order that CUDA counts in."""
    with _library() as nvml:
        handle = None if nvml is None else _handle(nvml, index, uuid)
        return None if nvml is None or handle is None else _facts(nvml, handle)


def clocks_of(index: int, uuid: str | None = None) -> tuple[int | None, tuple[str, ...]]:
    """Clock of the streaming multiprocessors in MHz and the throttle reasons, now."""
    with _library() as nvml:
        handle = None if nvml is None else _handle(nvml, index, uuid)
        if nvml is None or handle is None:
            return None, ()
        whole = _whole(nvml, handle)
        return _ask(lambda: int(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM))), _throttle(nvml, whole)


@contextmanager
def _library() -> Iterator[Any]:
    """NVML, initialised; None without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _handle(nvml: Any, index: int, uuid: str | None) -> Any | None:
    """The device by UUID, else by the index among the devices that `CUDA_VISIBLE_DEVICES` lets through."""
    if uuid is not None:
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        for prefix in ("GPU-", "MIG-"):
            handle = _ask(lambda prefix=prefix: nvml.nvmlDeviceGetHandleByUUID(f"{prefix}{bare}"))  # type: ignore[misc]
            if handle is not None:
                return handle
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _ask(lambda: nvml.nvmlDeviceGetHandleByIndex(index))
    names = [name.strip() for name in visible.split(",") if name.strip()]
    if index >= len(names):
        return None
    name = names[index]
    if name.isdecimal():
        return _ask(lambda: nvml.nvmlDeviceGetHandleByIndex(int(name)))
    return _ask(lambda: nvml.nvmlDeviceGetHandleByUUID(name))


def _whole(nvml: Any, handle: Any) -> Any:
    """The GPU that a MIG slice is part of: clocks and power belong to it. A GPU itself otherwise."""
    return _ask(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)) or handle


def _facts(nvml: Any, handle: Any) -> GpuFacts:
    whole = _whole(nvml, handle)
    product = _text(_ask(lambda: nvml.nvmlDeviceGetName(handle))) or "unknown GPU"
    _, mig, slice_name = product.partition(" MIG ")
    cuda = _ask(lambda: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    cap_mw = _ask(lambda: int(nvml.nvmlDeviceGetEnforcedPowerLimit(whole)))
    return GpuFacts(
        product=product,
        serial=_text(_ask(lambda: nvml.nvmlDeviceGetUUID(handle))),
        memory_bytes=_ask(lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total)),
        mig_slice=slice_name if mig else None,
        clock_now_mhz=_ask(lambda: int(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_SM))),
        clock_max_mhz=_ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(whole, nvml.NVML_CLOCK_SM))),
        memory_clock_now_mhz=_ask(lambda: int(nvml.nvmlDeviceGetClockInfo(whole, nvml.NVML_CLOCK_MEM))),
        memory_clock_max_mhz=_ask(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(whole, nvml.NVML_CLOCK_MEM))),
        power_cap_w=None if cap_mw is None else round(cap_mw / 1000),
        throttle_reasons=_throttle(nvml, whole),
        driver=_text(_ask(lambda: nvml.nvmlSystemGetDriverVersion())),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def _throttle(nvml: Any, whole: Any) -> tuple[str, ...]:
    bits = _ask(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(whole))) or 0
    return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def _ask(question: Callable[[], Any]) -> Any:
    """The answer; None where the device or its driver does not know (every NVML error says one of that)."""
    import pynvml

    try:
        return question()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes | None) -> str | None:
    """Older releases of the binding answer with bytes."""
    return value.decode() if isinstance(value, bytes) else value
