"""What differs between two profiles: decisions first, then the evidence behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from profiles.policy_profile import DECISION_KEYS, SEAL_KEYS, PolicyProfile

MANY = 8
"""A list that differs in more values than this is one row."""
ABSENT = "–"


@dataclass(frozen=True)
class Difference:
    """One value that differs; a value that only one side has is ABSENT on the other."""

    path: str
    left: Any
    right: Any


@dataclass(frozen=True)
class Differences:
    decisions: tuple[Difference, ...]
    """In what the digest covers: pair, regime and policy. None here means that both decode alike."""
    evidence: tuple[Difference, ...]


def differences(left: PolicyProfile, right: PolicyProfile) -> Differences:
    """Everything that differs, digests and signatures left out."""
    a, b = (profile.model_dump(mode="json", exclude=set(SEAL_KEYS)) for profile in (left, right))
    others = [key for key in a if key not in DECISION_KEYS]
    return Differences(
        decisions=tuple(found for key in DECISION_KEYS for found in _differing(key, a[key], b[key])),
        evidence=tuple(found for key in others for found in _differing(key, a[key], b[key])),
    )


def _differing(path: str, left: Any, right: Any) -> Iterator[Difference]:
    if left == right:
        return
    if isinstance(left, dict) and isinstance(right, dict):
        for key in dict.fromkeys([*left, *right]):
            yield from _differing(f"{path}.{key}", left.get(key, ABSENT), right.get(key, ABSENT))
        return
    if isinstance(left, list) and isinstance(right, list):
        longest = max(len(left), len(right))
        pairs = [(side + [ABSENT] * longest)[:longest] for side in (left, right)]
        found = [row for i, (x, y) in enumerate(zip(*pairs, strict=True)) for row in _differing(f"{path}.{i}", x, y)]
        if len(found) <= MANY:
            yield from found
        else:
            yield Difference(path, f"{len(left)} entries", f"{len(right)} entries, {len(found)} values differ")
        return
    yield Difference(path, left, right)
