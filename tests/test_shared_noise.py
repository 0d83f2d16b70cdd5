"""What sharing the noise is worth, by the benchmark's own code on a few prompts."""

from __future__ import annotations

from benchmarks.shared_noise import ARMS, run
from runtime.pair import Pair
from tuner.calibration import Sample


def test_shared_noise_is_accepted_more_often_and_within_the_bounds(torch_pair: Pair, calibration: list[Sample]) -> None:
    (row,) = run(torch_pair, calibration[:3], temperatures=(1.0,), draws=500)
    child = row["single_child"]
    assert child["below_lower_bound"] == child["above_upper_bound"] == 0 and child["positions"] > 20
    assert child["shared"] > max(child["independent"], child["none"])
    for lengths in row["acceptance_length"].values():
        assert set(lengths) == set(ARMS) and min(lengths.values()) >= 1.0
