"""Admission: may this profile be used with this pair on this machine? Refuse, or say what may differ."""

from __future__ import annotations

from profiles.errors import ProfileError
from profiles.policy_profile import PairRecord, PolicyProfile
from profiles.provenance import Fingerprint

QUIET_SOFT_FIELDS = {"versions"}
"""Soft fields that change too often to be worth a line on every start."""


def admit(profile: PolicyProfile, pair: PairRecord, machine: Fingerprint) -> list[str]:
    """Notes on soft differences. Raises ProfileError, naming saved and found, on anything that voids the profile.

    The pair's name and paths may differ (a model may live elsewhere); its digests may not.
    """
    saved, found = _digests(profile.pair), _digests(pair)
    for field, value in saved.items():
        if found[field] != value:
            raise ProfileError(
                f"profile '{profile.name}' was tuned for other files: {field} saved {value[:12]}, found "
                f"{found[field][:12]}; tune again for this pair"
            )
    notes = []
    for field, kind, was, now in profile.fingerprint.differences(machine):
        if kind == "hard":
            raise ProfileError(f"profile '{profile.name}' was tuned with {field} {was!r}, this machine has {now!r}")
        if kind == "soft" and field not in QUIET_SOFT_FIELDS:
            notes.append(f"{field} was {was!r} when tuned, is {now!r}; output is the same, speed may differ")
    return notes


def _digests(pair: PairRecord) -> dict[str, str]:
    return {
        "target weights": pair.target.weights_digest,
        "target config": pair.target.config_digest,
        "draft weights": pair.draft.weights_digest,
        "draft config": pair.draft.config_digest,
        "tokenizer": pair.tokenizer_digest,
        "processor": pair.processor_digest,
    }
