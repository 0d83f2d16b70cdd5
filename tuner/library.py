"""A folder of profiles, and which of them is for this pair on this machine. A near match is never taken silently."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from profiles.admission import pair_digests
from profiles.config import TuneConfig
from profiles.errors import BadInput, Inconclusive
from profiles.policy_profile import PairRecord, PolicyProfile
from profiles.provenance import FieldComparison, Fingerprint
from profiles.registry import HERE
from profiles.store import PROFILE_SUFFIX, load_profile
from runtime.pair import PairPlan, pair_record
from tuner.machine import Device, accelerators, fingerprint
from tuner.plan import plan_pair

SHIPPED_LIBRARY = HERE / "library"
MODULES = {"onnx": "onnxruntime", "torch": "torch"}
"""The package behind a backend."""
LookupResult = Literal["tuned", "nearest", "default"]
RESULTS: tuple[LookupResult, ...] = ("tuned", "nearest", "default")


@dataclass(frozen=True)
class PlannedEngine:
    """What will run the models, before they are loaded (`tuner.machine.Engine`)."""

    backend: str
    backend_version: str
    dtype: str
    device_map: str | None
    devices: int


@dataclass(frozen=True)
class Found:
    """The best profile of a library for a pair on a machine.

    `tuned`: pair and machine are those of the profile, soft fields included. `nearest`: the pair is, and everything
    that would void the profile; soft fields differ. `default`: there is none; plain decoding is what is safe.
    """

    result: LookupResult
    path: Path | None
    profile: PolicyProfile | None
    differences: tuple[FieldComparison, ...]
    """Fields other than ignored ones that differ, of the nearest profile."""
    looked_at: int
    passed_over: tuple[str, ...]
    """Why other files of the library were not taken, a sentence each."""

    def accepted(self, accept: LookupResult) -> bool:
        return RESULTS.index(self.result) <= RESULTS.index(accept)

    def text(self) -> str:
        """The answer in one sentence."""
        if self.profile is None:
            return f"default: none of {self.looked_at} profiles is for this pair and machine; plain decoding is safe"
        if self.result == "tuned":
            return f"tuned: {self.path} was tuned for this pair on this machine"
        fields = ", ".join(row.field for row in self.differences)
        return f"nearest: {self.path} was tuned for this pair; here {fields} differ, so run `sage_tune check` first"

    def document(self) -> dict[str, Any]:
        return {
            "result": self.result,
            "profile": None if self.path is None else str(self.path),
            "digest": None if self.profile is None else self.profile.digest,
            "policy": "off" if self.profile is None else self.profile.shipped,
            "differences": [row._asdict() for row in self.differences],
            "looked_at": self.looked_at,
            "passed_over": list(self.passed_over),
        }


def lookup(config: TuneConfig, folders: Sequence[Path]) -> Found:
    """Look for a configuration's pair, device, engine and dtype. No weights are loaded.

    Raises BadInput for a folder that is not there and whatever planning the pair raises.
    """
    plan, _, device = plan_pair(config)
    return best_match(pair_record(plan.spec), planned_fingerprint(plan, device), folders)


def best_match(pair: PairRecord, machine: Fingerprint, folders: Sequence[Path]) -> Found:
    """The profile with the fewest soft differences; of equals, the one that is certain to be the fastest."""
    wanted, looked_at, passed_over = pair_digests(pair), 0, []
    matches: list[tuple[int, float, str, Path, PolicyProfile, tuple[FieldComparison, ...]]] = []
    for path in _files(folders):
        looked_at += 1
        try:
            profile = load_profile(path)
        except BadInput as error:
            passed_over.append(str(error))
            continue
        other = [name for name, value in pair_digests(profile.pair).items() if value != wanted[name]]
        if other:
            if profile.pair.name == pair.name:
                passed_over.append(f"{path} is for a pair of this name with other files ({', '.join(other)} differ)")
            continue
        rows = tuple(row for row in profile.fingerprint.compared(machine) if row.differs and row.kind != "ignored")
        hard = next((row for row in rows if row.kind == "hard"), None)
        if hard is not None:
            passed_over.append(f"{path} was tuned with {hard.field} {hard.saved!r}, this machine has {hard.found!r}")
            continue
        matches.append((len(rows), -profile.evidence.speedup.low, str(path), path, profile, rows))
    if not matches:
        return Found("default", None, None, (), looked_at, tuple(passed_over))
    count, *_, path, profile, rows = min(matches, key=lambda match: match[:3])
    return Found("nearest" if count else "tuned", path, profile, rows, looked_at, tuple(passed_over))


def require_accepted(found: Found, accept: LookupResult) -> Path:
    """The profile to use. Raises Inconclusive where the answer is less than what is accepted, or none at all."""
    if found.path is None or not found.accepted(accept):
        hint = "; --accept nearest takes it" if found.path is not None else "; tune it here, or give --profile"
        raise Inconclusive(found.text() + hint)
    return found.path


def planned_fingerprint(plan: PairPlan, device: Device) -> Fingerprint:
    """The fingerprint that a pair would have here once it is loaded."""
    module = importlib.import_module(MODULES[plan.backend])
    devices = 1 if plan.device_map is None else len(accelerators())
    engine = PlannedEngine(plan.backend, str(module.__version__), plan.dtype, plan.device_map, devices)
    return fingerprint(engine, device, plan.threads)


def _files(folders: Sequence[Path]) -> list[Path]:
    for folder in folders:
        if not folder.is_dir():
            raise BadInput(f"no such library folder: {folder}")
    return [path for folder in folders for path in sorted(folder.glob(f"*{PROFILE_SUFFIX}"))]
