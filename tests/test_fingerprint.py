"""Fingerprints: every field has its class, a GPU is what NVML says, and older documents keep their digests."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from profiles.admission import admit
from profiles.errors import ProfileError
from profiles.provenance import FIELD_CLASS, YOUNGER_FIELDS, Fingerprint, digest
from profiles.store import load_profile, save_profile
from tests.fakes import FakeModel
from tests.samples import MACHINE, pair_record, sample_profile
from tuner import machine, nvml
from tuner.foreign_load import Watch
from tuner.gate_screens import fingerprint_table
from tuner.machine import Device, fingerprint

GPU = Fingerprint(
    device="NVIDIA H100 80GB HBM3",
    device_arch="sm_90",
    backend="torch",
    backend_version="2.13.0",
    dtype="bfloat16",
    cpu="Test CPU",
    cores=8,
    threads=8,
    simd=("avx2",),
    governor="performance",
    device_memory_bytes=80 << 30,
    sm_count=132,
    driver="580.10",
    cuda="13.0",
    clock_max_mhz=1980,
    memory_clock_max_mhz=2619,
    power_cap_w=700,
    clock_now_mhz=345,
    memory_clock_now_mhz=1593,
    device_index=0,
    device_serial="GPU-1234",
    versions={"torch": "2.13.0", "transformers": "5.19.0"},
    host="node-1",
)
MUTATIONS: list[tuple[str, Any, str]] = [
    ("device_arch", "sm_100", "hard"),
    ("backend", "onnx", "hard"),
    ("backend_version", "3.0.0", "hard"),
    ("backend_version", "2.14.1", "soft"),
    ("dtype", "float16", "hard"),
    ("tensor_parallel", 2, "hard"),
    ("device_map", "auto", "hard"),
    ("devices", 2, "hard"),
    ("device", "NVIDIA H100 NVL", "soft"),
    ("device", "NVIDIA H100 PCIe", "soft"),
    ("cpu", "Other CPU", "soft"),
    ("cores", 16, "soft"),
    ("threads", 4, "soft"),
    ("simd", ("avx2", "avx512f"), "soft"),
    ("governor", "powersave", "soft"),
    ("device_memory_bytes", 94 << 30, "soft"),
    ("sm_count", 114, "soft"),
    ("driver", "590.01", "soft"),
    ("cuda", "13.1", "soft"),
    ("mig_slice", "3g.40gb", "soft"),
    ("clock_max_mhz", 1755, "soft"),
    ("memory_clock_max_mhz", 2000, "soft"),
    ("power_cap_w", 500, "soft"),
    ("throttle_reasons", ("hardware thermal slowdown",), "soft"),
    ("versions", {"torch": "2.13.0", "transformers": "5.20.0"}, "soft"),
    ("clock_now_mhz", 1980, "ignored"),
    ("memory_clock_now_mhz", 2619, "ignored"),
    ("device_index", 3, "ignored"),
    ("visible_devices", "3", "ignored"),
    ("device_serial", "GPU-9999", "ignored"),
    ("host", "node-2", "ignored"),
]


@pytest.mark.parametrize(("name", "value", "kind"), MUTATIONS)
def test_every_difference_has_its_class(name: str, value: Any, kind: str) -> None:
    found = GPU.model_copy(update={name: value})
    assert GPU.differences(found) == [(name, kind, getattr(GPU, name), value)]
    profile = sample_profile().model_copy(update={"fingerprint": GPU}).sealed()
    if kind == "hard":
        with pytest.raises(ProfileError, match=f"tuned with {name} .*, this machine has") as refusal:
            admit(profile, pair_record(), found)
        assert repr(getattr(GPU, name)) in str(refusal.value) and repr(value) in str(refusal.value)
    else:
        notes = admit(profile, pair_record(), found)
        assert [note.split(" ")[0] for note in notes] == [name] * (kind == "soft" and name != "versions")


def test_every_field_has_a_class_and_was_mutated() -> None:
    assert set(FIELD_CLASS) == set(Fingerprint.model_fields) == {name for name, _, _ in MUTATIONS}


def test_the_comparison_shows_saved_and_found() -> None:
    found = GPU.model_copy(
        update={"device": "NVIDIA H100 NVL", "dtype": "float16", "host": "b", "versions": {"torch": "2.14.0"}}
    )
    rows = GPU.compared(found)
    assert [row.field for row in rows if row.differs] == [
        "dtype",
        "device",
        "versions.torch",
        "versions.transformers",
        "host",
    ]
    assert {row.field for row in rows} >= {"sm_count", "power_cap_w", "device_index"}
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(fingerprint_table(rows), fingerprint_table(rows, everything=True))
    text = console.export_text()
    for shown in ("NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "bfloat16", "float16", "hard", "soft", "ignored", "1980"):
        assert shown in text


def test_older_documents_keep_their_digests(tmp_path: Path) -> None:
    """Fields younger than the first documents are not written where they say nothing."""
    assert not set(MACHINE.model_dump()) & set(YOUNGER_FIELDS)
    assert set(GPU.model_dump()) >= set(YOUNGER_FIELDS) - {
        "device_map",
        "devices",
        "mig_slice",
        "throttle_reasons",
        "visible_devices",
    }
    assert Fingerprint.model_validate(GPU.model_dump(mode="json")) == GPU
    path = tmp_path / "gpu.sage.json"
    save_profile(sample_profile().model_copy(update={"fingerprint": GPU}), path)
    assert load_profile(path).fingerprint == GPU
    raw = MACHINE.model_dump(mode="json")
    assert digest(raw) == digest(Fingerprint.model_validate(raw).model_dump(mode="json"))


class FakeError(Exception):
    """NVML's error."""


@dataclass
class FakeGpu:
    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    clock: int = 1980
    reasons: int = 0
    parent: FakeGpu | None = None
    knows_power: bool = True


@dataclass
class FakeNvml:
    """The few functions of NVML that are used, over devices that a test gives."""

    gpus: list[FakeGpu]
    mig: list[FakeGpu] = field(default_factory=list)
    driver_is_there: bool = True
    opened: int = 0
    NVMLError = FakeError
    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def nvmlInit(self) -> None:
        if not self.driver_is_there:
            raise FakeError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        if index >= len(self.gpus):
            raise FakeError("Invalid Argument")
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGpu:
        for gpu in (*self.gpus, *self.mig):
            if gpu.uuid == uuid:
                return gpu
        raise FakeError("Not Found")

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, gpu: FakeGpu) -> FakeGpu:
        if gpu.parent is None:
            raise FakeError("Not Supported")
        return gpu.parent

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> bytes:
        return gpu.name.encode()

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(total=80 << 30)

    def nvmlDeviceGetClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        return gpu.clock if kind == self.NVML_CLOCK_SM else 2619

    def nvmlDeviceGetMaxClockInfo(self, gpu: FakeGpu, kind: int) -> int:
        return 1980 if kind == self.NVML_CLOCK_SM else 2619

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: FakeGpu) -> int:
        if not gpu.knows_power:
            raise FakeError("Not Supported")
        return 699_900

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        return gpu.reasons

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.10"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13010


def test_the_fake_has_only_what_the_library_has() -> None:
    import pynvml

    used = [name for name in vars(FakeNvml) if name.startswith("nvml")]
    assert used and all(hasattr(pynvml, name) for name in used)
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (FakeNvml.NVML_CLOCK_SM, FakeNvml.NVML_CLOCK_MEM)
    assert set(nvml.THROTTLE_BITS) == {
        pynvml.nvmlClocksThrottleReasonSwPowerCap,
        pynvml.nvmlClocksThrottleReasonHwSlowdown,
        pynvml.nvmlClocksThrottleReasonSyncBoost,
        pynvml.nvmlClocksThrottleReasonSwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
        pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
    }


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two whole GPUs, and a third that is cut into slices."""
    cut = FakeGpu("GPU-c")
    fake = FakeNvml(
        [FakeGpu("GPU-a"), FakeGpu("GPU-b", name="NVIDIA H100 NVL"), cut],
        [FakeGpu("MIG-s", name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", parent=cut)],
    )
    monkeypatch.setitem(sys.modules, "pynvml", cast("Any", fake))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def test_a_gpu_is_what_nvml_says(library: FakeNvml) -> None:
    facts = nvml.gpu_facts(0)
    assert facts is not None and library.opened == 0
    assert (facts.product, facts.cuda, facts.driver, facts.power_cap_w) == (
        "NVIDIA H100 80GB HBM3",
        "13.1",
        "580.10",
        700,
    )
    library.gpus[0].knows_power = False
    library.gpus[0].reasons = 0x1 | 0x2 | 0x40 | 0x4
    facts = nvml.gpu_facts(0)
    assert facts is not None and facts.power_cap_w is None
    assert facts.throttle_reasons == ("software power cap", "hardware thermal slowdown")


def test_the_visible_index_is_not_the_machines(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1, GPU-a")
    assert [facts and facts.serial for facts in (nvml.gpu_facts(0), nvml.gpu_facts(1), nvml.gpu_facts(2))] == [
        "GPU-b",
        "GPU-a",
        None,
    ]
    # CUDA's own word on which device it is counts more
    assert cast("Any", nvml.gpu_facts(0, "a")).serial == "GPU-a"
    assert nvml.gpu_facts(9, None) is None


def test_a_slice_is_named_and_has_the_clocks_of_its_gpu(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    library.gpus[2].clock = 1200
    facts = nvml.gpu_facts(0, "s")
    assert facts is not None and (facts.mig_slice, facts.serial, facts.clock_now_mhz) == ("3g.40gb", "MIG-s", 1200)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-s")
    assert cast("Any", nvml.gpu_facts(0)).mig_slice == "3g.40gb"


def test_no_driver_is_no_gpu(library: FakeNvml) -> None:
    library.driver_is_there = False
    assert nvml.gpu_facts(0) is None and nvml.clocks_of(0) == (None, ())


def test_a_fingerprint_holds_what_nvml_says(library: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("h100-nvl", "cuda:1", "NVIDIA H100 NVL", "sm_90", 94 << 30, 132, index=1, uuid="b")
    found = fingerprint(FakeModel(1, 0.0), device, 2)
    assert (found.device, found.driver, found.cuda, found.clock_max_mhz) == ("NVIDIA H100 NVL", "580.10", "13.1", 1980)
    assert (found.device_index, found.device_serial, found.visible_devices) == (1, "GPU-b", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    assert fingerprint(FakeModel(1, 0.0), replace(device, index=0), 2).visible_devices == "GPU-b"
    library.driver_is_there = False
    bare = fingerprint(FakeModel(1, 0.0), device, 2)
    assert bare.clock_max_mhz is None and bare.device_serial == "b"
    cpu = fingerprint(FakeModel(1, 0.0), Device("cpu", "cpu", "Test CPU", "x86_64"), 2)
    assert cpu.device_index is None and "clock_max_mhz" not in cpu.model_dump()
    assert cpu.cores == machine.core_count() and cpu.versions["python"]


def test_a_watch_reads_the_gpus_clocks(library: FakeNvml) -> None:
    end = Watch(0, "a")()
    library.gpus[0].clock, library.gpus[0].reasons = 900, 0x8
    stretch = end()
    assert stretch.clock_mhz == 900 and "the GPU reports hardware slowdown" in stretch.problems()
