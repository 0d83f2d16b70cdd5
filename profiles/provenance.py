"""Where a number came from: digests, canonical JSON, versions, and the fingerprint of the machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from profiles.errors import BadInput
from profiles.frozen import Frozen

FingerprintClass = Literal["hard", "soft", "ignored"]
FIELD_CLASSES: tuple[FingerprintClass, ...] = ("hard", "soft", "ignored")
"""A difference that refuses a profile, one that asks for `sage_tune check`, and one that says nothing."""


class FieldComparison(NamedTuple):
    """One field of two fingerprints."""

    field: str
    kind: FingerprintClass
    differs: bool
    saved: Any
    found: Any


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no spaces, no NaN. Digests are taken over this form.

    Raises BadInput when a number is not finite or a text is no Unicode, since such a document cannot be re-read
    everywhere, and for one that is nested too deeply.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"only Unicode can be written down: {error.reason} at character {error.start}") from error
    except ValueError as error:
        raise BadInput(f"only finite numbers can be written down: {error}") from error
    except RecursionError:
        raise BadInput("what is written down must not be nested this deeply") from None
    return text


def digest(value: Any) -> str:
    """SHA-256 over the canonical JSON of a value, as hex. Raises what `canonical_json` raises."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def text_digest(text: str) -> str:
    """SHA-256 of a text file with this content, as hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            sha.update(block)
    return sha.hexdigest()


def files_digest(paths: Iterable[Path], root: Path) -> str:
    """One digest over several files: their names relative to `root` and their contents, in name order."""
    return digest({str(path.relative_to(root)): file_digest(path) for path in sorted(paths)})


class Fingerprint(Frozen):
    """What was measured on. Differences are classed by what they mean for a profile (design section 9)."""

    device: str
    """`cpu`, or the accelerator's product name."""
    device_arch: str
    """ISA for a CPU (`x86_64`), `sm_90` and the like for a GPU."""
    backend: str
    backend_version: str
    dtype: str
    tensor_parallel: int = 1
    device_map: str | None = None
    """How the target's layers were spread over devices (`auto`, ...); None keeps a model on one device."""
    devices: int = 1
    """Devices that the target's layers are on."""
    cpu: str
    cores: int
    threads: int
    simd: tuple[str, ...] = ()
    governor: str | None = None
    device_memory_bytes: int | None = None
    sm_count: int | None = None
    driver: str | None = None
    cuda: str | None = None
    """CUDA version of the driver."""
    mig_slice: str | None = None
    """Profile of the MIG slice, `3g.40gb`; None for a whole GPU."""
    clock_max_mhz: int | None = None
    """Highest clock of the streaming multiprocessors."""
    memory_clock_max_mhz: int | None = None
    power_cap_w: int | None = None
    throttle_reasons: tuple[str, ...] = ()
    """Why the device held its clocks down at that moment; an idle device and clocks set by hand are no reason."""
    clock_now_mhz: int | None = None
    memory_clock_now_mhz: int | None = None
    device_index: int | None = None
    """Index among the devices that are visible to the process."""
    visible_devices: str | None = None
    """`CUDA_VISIBLE_DEVICES`, where it is set."""
    device_serial: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    host: str = ""

    @model_serializer(mode="wrap")
    def _without_silent_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Fields younger than the first documents are written only when they say something, so that the digests
        of older documents still hold."""
        fields: dict[str, Any] = handler(self)
        return {k: v for k, v in fields.items() if k not in YOUNGER_FIELDS or v != type(self).model_fields[k].default}

    def differences(self, found: Fingerprint) -> list[tuple[str, FingerprintClass, Any, Any]]:
        """Fields that differ as `(field, class, saved, found)`, hard ones first."""
        rows = [
            (field, kind, getattr(self, field), getattr(found, field))
            for field, kind in FIELD_CLASS.items()
            if getattr(self, field) != getattr(found, field)
        ]
        if engine_major(self.backend_version) == engine_major(found.backend_version):
            rows = [(f, "soft" if f == "backend_version" else c, a, b) for f, c, a, b in rows]
        return sorted(rows, key=lambda row: FIELD_CLASSES.index(row[1]))

    def compared(self, found: Fingerprint) -> list[FieldComparison]:
        """Every field with both values, packages one by one; those that differ first, hard ones before soft ones."""
        different = {field: kind for field, kind, _, _ in self.differences(found)}
        rows = [
            FieldComparison(f, different.get(f, kind), f in different, getattr(self, f), getattr(found, f))
            for f, kind in FIELD_CLASS.items()
            if f != "versions"
        ]
        for name in sorted({*self.versions, *found.versions}):
            was, now = self.versions.get(name), found.versions.get(name)
            rows.append(FieldComparison(f"versions.{name}", FIELD_CLASS["versions"], was != now, was, now))
        return sorted(rows, key=lambda row: (not row.differs, FIELD_CLASSES.index(row.kind)))


FIELD_CLASS: Mapping[str, FingerprintClass] = {
    "device": "soft",
    "device_arch": "hard",
    "backend": "hard",
    "backend_version": "hard",
    "dtype": "hard",
    "tensor_parallel": "hard",
    "device_map": "hard",
    "devices": "hard",
    "cpu": "soft",
    "cores": "soft",
    "threads": "soft",
    "simd": "soft",
    "governor": "soft",
    "device_memory_bytes": "soft",
    "sm_count": "soft",
    "driver": "soft",
    "cuda": "soft",
    "mig_slice": "soft",
    "clock_max_mhz": "soft",
    "memory_clock_max_mhz": "soft",
    "power_cap_w": "soft",
    "throttle_reasons": "soft",
    "versions": "soft",
    "clock_now_mhz": "ignored",
    "memory_clock_now_mhz": "ignored",
    "device_index": "ignored",
    "visible_devices": "ignored",
    "device_serial": "ignored",
    "host": "ignored",
}
"""`device` is the whole product name, so an H100 NVL is another device than an H100 SXM of the same architecture. What
a clock shows at one moment is a state and no property; it is written down, and the gate watches it."""

YOUNGER_FIELDS = (
    "device_map",
    "devices",
    "cuda",
    "mig_slice",
    "clock_max_mhz",
    "memory_clock_max_mhz",
    "power_cap_w",
    "throttle_reasons",
    "clock_now_mhz",
    "memory_clock_now_mhz",
    "device_index",
    "visible_devices",
    "device_serial",
)


def engine_major(version: str) -> str:
    return version.split(".", 1)[0]
