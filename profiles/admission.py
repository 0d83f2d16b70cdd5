"""Admission: may this profile be used with this pair, on this machine, for this request? Refuse, fall back, or say."""

from __future__ import annotations

from profiles.errors import ProfileError
from profiles.policy_profile import PairRecord, PolicyProfile
from profiles.provenance import Fingerprint
from profiles.sampling import Sampling, SamplingRegime
from profiles.store import parse

QUIET_SOFT_FIELDS = {"versions"}
"""Soft fields that change too often to be worth a line on every start."""


def admit(profile: PolicyProfile, pair: PairRecord, machine: Fingerprint) -> list[str]:
    """Notes on soft differences. Raises ProfileError, naming saved and found, on anything that voids the profile.

    The pair's name and paths may differ (a model may live elsewhere); its digests may not.
    """
    saved, found = pair_digests(profile.pair), pair_digests(pair)
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


def sampling_of(profile: PolicyProfile, **flags: float | None) -> Sampling:
    """How a request samples: as the profile was tuned, overridden by the flags that were given (None was not).

    Raises BadInput for an impossible value, and for a filter without a temperature.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    tuned = profile.regime.sampling
    if given.get("temperature") == 0:
        tuned = SamplingRegime(repetition_penalty=tuned.repetition_penalty)
    return parse(Sampling, {**tuned.model_dump(), **given}, "flags")


def outside_regime(profile: PolicyProfile, modality: str, sampling: Sampling) -> list[str]:
    """Why the profile's tiers say nothing about a request; it then gets the safe tier. Empty when they do."""
    regime, reasons = profile.regime, []
    if modality not in regime.modalities:
        reasons.append(f"tuned for {', '.join(regime.modalities)}, this request is {modality}")
    if sampling.sampled != regime.sampling.sampled:
        reasons.append(f"tuned for {regime.sampling.label()}, this request is {sampling.label()}")
    return reasons


def sampling_notes(profile: PolicyProfile, sampling: Sampling, pair_penalty: float) -> list[str]:
    """What to know about a request's sampling when the profile's tiers are used; `pair_penalty` is the repetition
    penalty of the pair's own generation settings."""
    tuned, notes = profile.regime.sampling, []
    if sampling.sampled == tuned.sampled and sampling.regime() != tuned:
        notes.append(f"tuned for {tuned.label()}, decoding {sampling.label()}; output is right, speed may differ")
    if sampling.repetition_penalty not in (None, pair_penalty):
        notes.append(
            f"the pair's own settings ask for repetition penalty {pair_penalty:g}, decoding with "
            f"{sampling.repetition_penalty:g}"
        )
    return notes


def pair_digests(pair: PairRecord) -> dict[str, str]:
    """What makes a pair the same one, whatever it is called and wherever it lies."""
    return {
        "target weights": pair.target.weights_digest,
        "target config": pair.target.config_digest,
        "draft weights": pair.draft.weights_digest,
        "draft config": pair.draft.config_digest,
        "tokenizer": pair.tokenizer_digest,
        "processor": pair.processor_digest,
    }
