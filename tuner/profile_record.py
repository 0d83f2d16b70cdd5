"""The record behind a profile: a run folder of the same pair, as an arena that its policies are replayed in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.errors import ProfileError
from profiles.policy_profile import PairRecord, PolicyProfile
from tuner.run_folder import RunFolder
from tuner.trace_store import load_record, trace_digest
from tuner.yardsticks.base import Arena


@dataclass(frozen=True)
class ProfileRecord:
    """An arena and where it came from."""

    arena: Arena
    trace_digest: str
    is_own: bool
    """True when the profile was made from this very record."""


def open_record(profile: PolicyProfile, folder: Path) -> ProfileRecord:
    """Load a run folder for a profile. Raises ProfileError when it is of another pair or way of sampling."""
    run = RunFolder(folder)
    config, pair = run.config(), run.pair()
    if _files(pair) != _files(profile.pair):
        raise ProfileError(f"{folder} is a run of other models than profile '{profile.name}' was made for")
    record = load_record(run.trace)
    if record.manifest.sampling.regime() != profile.regime.sampling:
        raise ProfileError(
            f"{folder} was recorded {record.manifest.sampling.regime().label()}, profile '{profile.name}' is for "
            f"{profile.regime.sampling.label()}"
        )
    found = trace_digest(run.trace)
    arena = Arena.measured(record, run.costs(), config.grid)
    return ProfileRecord(arena, found, found == profile.provenance.trace_digest)


def _files(pair: PairRecord) -> tuple[str, ...]:
    models = (pair.target, pair.draft)
    return (*(m.weights_digest for m in models), *(m.config_digest for m in models), pair.tokenizer_digest)
