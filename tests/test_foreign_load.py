"""Foreign load is seen from outside and from inside, and what it hit is not believed."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import pytest

from tuner import foreign_load
from tuner.foreign_load import Stretch, Tally, Watch, lost_share, slow_blocks


def stretch(others: float | None = 0.0, steal: float | None = 0.0, **more: object) -> Stretch:
    return Stretch(10.0, 18.0, others, steal, 2, **more)  # type: ignore[arg-type]


def test_what_others_use_is_told_by_its_share() -> None:
    assert stretch().problems() == stretch(others=2.5).problems() == stretch(None, None).problems() == []
    assert stretch(others=4.0).problems() == ["others used 20% of the CPUs"]
    assert stretch(steal=1.5).problems() == ["the hypervisor took 8% of the CPUs"]
    assert stretch(throttle=("software power cap",)).problems() == []
    assert stretch(throttle=("hardware thermal slowdown",)).problems() == ["the GPU reports hardware thermal slowdown"]


def test_a_tick_more_or_less_is_no_finding() -> None:
    assert Stretch(0.05, 0.1, 0.02, 0.0, 2).problems() == []


def test_a_tally_weighs_blocks_by_their_time() -> None:
    tally = Tally(0.15)
    assert tally.is_valid and tally.text() == "0 blocks, none hit by foreign load"
    for _ in range(8):
        assert tally.add(stretch())
    assert not tally.add(Stretch(1.0, 0.5, 1.0, 0.0, 2))
    assert tally.is_valid and tally.share == pytest.approx(1 / 81)
    assert not tally.add(stretch(), ["rounds lost 30% of a block's time"], took_s=40.0)
    assert not tally.is_valid and "2 of 10 blocks, 34% of the time" in tally.text()
    tally.mark(0, "blocks took far longer than their like")
    tally.mark(0, "blocks took far longer than their like")
    assert tally.problems[0] == ["blocks took far longer than their like"]


def test_a_clock_that_falls_is_found() -> None:
    tally = Tally(0.15)
    assert tally.add(stretch(clock_mhz=1980)) and tally.add(stretch(clock_mhz=1900))
    assert not tally.add(stretch(clock_mhz=1500))
    assert tally.problems[-1] == ["the GPU's clock fell from 1980 to 1500 MHz"]


def test_rounds_that_lost_time_are_added_up() -> None:
    times = np.full((4, 10), 10.0)
    assert lost_share(times) == 0.0
    times[1, 3] = 60.0
    assert lost_share(times) == pytest.approx(50 / 450)
    times[:, 5] = 15.0  # slower in every run is slower work
    assert lost_share(times) == pytest.approx(50 / 470)


def test_blocks_unlike_the_others_are_found() -> None:
    factors = np.array([1.0, 1.05, 0.97, 1.6, 1.02, 2.9, 1.1])
    assert slow_blocks(factors) == [3, 5]
    assert slow_blocks(1.7 * np.array([1.0, 1.1, 0.95])) == [], "slow throughout is another machine, not a burst"
    assert slow_blocks(np.array([])) == []


def test_a_watch_sees_this_process_and_others() -> None:
    """Only that the counters go the right way: how much is not for a test to say."""
    end = Watch()()
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            sum(range(1000))
    finally:
        other.kill()
        other.wait()
    found = end()
    assert found.wall_s >= 0.5 and found.own_cpu_s > 0 and found.cpus >= 1
    assert found.others_cpu_s is None or found.others_cpu_s >= 0


def test_a_kernel_that_does_not_tell_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_load, "_cpu_seconds", lambda: (None, None, 2))
    found = Watch()()()
    assert found.others_cpu_s is None and found.steal_s is None and found.problems() == []
