"""Shipped profiles: each loads, is sealed, and belongs to the pair as it is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.admission import admit
from profiles.registry import HERE
from profiles.store import load_profile
from runtime.pair import Pair

LIBRARY = sorted((HERE / "library").glob("*.sage.json"))


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: p.name)
def test_shipped_profiles_load_and_hold(path: Path) -> None:
    profile = load_profile(path)
    assert profile.shipped == profile.policy.verdict()
    assert profile.evidence.near_ties == 0 and profile.evidence.lossless_tokens > 10_000
    assert abs(profile.evidence.prediction_error) <= 0.1
    assert profile.evidence.cost_table.mark == "measured"


def test_the_embedded_pairs_profile_is_for_the_shipped_weights(onnx_pair: Pair) -> None:
    profile = load_profile(HERE / "library" / "tiny-llava-ov-cpu.sage.json")
    admit(profile, onnx_pair.record, profile.fingerprint)
