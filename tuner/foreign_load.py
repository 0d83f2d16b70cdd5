"""Foreign load: what else the machine did while something was timed.

A stretch of time is watched from outside (who used the CPUs, what a GPU's clocks did) and from inside (rounds of the
same work that took far longer than their fastest run, a whole block that took far longer than its like). A stretch that
was hit is not believed, and a run with too many of them decides nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tuner.comparison import LOADED, Floats
from tuner.nvml import clocks_of

OTHERS_SHARE = 0.15
"""Share of the CPUs that others may use: a quiet machine's own services stay well below."""
STEAL_SHARE = 0.05
"""Share of the CPUs that the hypervisor may give to other guests."""
LOADED_SHARE = 0.08
"""Share of its time that a block may lose to rounds hit by foreign load; a quiet machine's is below 2 %."""
SLOW_BLOCK = 1.35
"""A block that took this multiple of what its like usually takes fell into a burst or behind a clock drop."""
USUAL = 0.15
"""Quantile of blocks that counts as the undisturbed speed: it needs only so many calm ones."""
CLOCK_DROP = 0.9
"""A GPU's clock may fall to this share of the highest that was seen during the run."""
SLOWDOWNS = ("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "hardware power brake")
"""Throttle reasons that are no steady state. A power cap is one: it belongs to the machine."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Stretch:
    """One watched stretch of time."""

    wall_s: float
    own_cpu_s: float
    others_cpu_s: float | None
    """CPU time of everybody else on the CPUs that this process may use; None where the kernel does not tell."""
    steal_s: float | None
    cpus: int
    clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """What was wrong with it, in words; the shares are of all CPUs that this process may use."""
        found = []
        whole_s = self.wall_s * self.cpus
        for what, used_s, limit in (
            ("others used", self.others_cpu_s, OTHERS_SHARE),
            ("the hypervisor took", self.steal_s, STEAL_SHARE),
        ):
            # a tick more or less is no finding
            if used_s is not None and used_s > limit * whole_s + 2 / TICKS_PER_S:
                found.append(f"{what} {used_s / whole_s:.0%} of the CPUs")
        return found + [f"the GPU reports {reason}" for reason in self.throttle if reason in SLOWDOWNS]


class Watch:
    """Watches this process's CPUs and, where there is one, its GPU."""

    def __init__(self, gpu_index: int | None = None, gpu_uuid: str | None = None) -> None:
        self._gpu = gpu_index, gpu_uuid

    def __call__(self) -> Callable[[], Stretch]:
        """Begin a stretch; calling the result ends it."""
        wall, own, (busy, steal, cpus) = time.monotonic(), time.process_time(), _cpu_seconds()

        def end() -> Stretch:
            own_s, (busy_now, steal_now, _) = time.process_time() - own, _cpu_seconds()
            index, uuid = self._gpu
            clock, throttle = (None, ()) if index is None else clocks_of(index, uuid)
            return Stretch(
                wall_s=time.monotonic() - wall,
                own_cpu_s=own_s,
                others_cpu_s=None if busy is None or busy_now is None else max(busy_now - busy - own_s, 0.0),
                steal_s=None if steal is None or steal_now is None else steal_now - steal,
                cpus=cpus,
                clock_mhz=clock,
                throttle=throttle,
            )

        return end


@dataclass
class Tally:
    """Blocks of a run and what was wrong with those that were hit."""

    limit: float
    """Share of the time that blocks which were hit may take."""
    stretches: list[Stretch] = field(default_factory=list)
    problems: list[list[str]] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    def add(self, stretch: Stretch, inside: Sequence[str] = (), took_s: float | None = None) -> bool:
        """Count a block; True when it may be believed. `inside` is what its own times say, `took_s` their sum where it
        is not all of the stretch."""
        found = [*stretch.problems(), *inside]
        clocks = [s.clock_mhz for s in self.stretches if s.clock_mhz is not None]
        if stretch.clock_mhz is not None and clocks and stretch.clock_mhz < CLOCK_DROP * max(clocks):
            found.append(f"the GPU's clock fell from {max(clocks)} to {stretch.clock_mhz} MHz")
        self.stretches.append(stretch)
        self.took_s.append(stretch.wall_s if took_s is None else took_s)
        self.problems.append(found)
        return not found

    def mark(self, block: int, problem: str) -> None:
        """A block that only later ones showed to be unlike them."""
        if problem not in self.problems[block]:
            self.problems[block].append(problem)

    @property
    def share(self) -> float:
        """Of the time, not of the blocks: a burst of load makes the blocks that it hits few and long."""
        total_s = sum(self.took_s)
        hit_s = sum(took_s for took_s, found in zip(self.took_s, self.problems, strict=True) if found)
        return hit_s / total_s if total_s else 0.0

    @property
    def is_valid(self) -> bool:
        return self.share <= self.limit

    def text(self) -> str:
        """How many blocks were hit, and the first reason of each kind."""
        hit = [found for found in self.problems if found]
        if not hit:
            return f"{len(self.problems)} blocks, none hit by foreign load"
        kinds = {problem.split(" ")[0]: problem for found in reversed(hit) for problem in found}
        hit_text = f"{len(hit)} of {len(self.problems)} blocks, {self.share:.0%} of the time"
        return f"{hit_text}, were hit by foreign load ({'; '.join(kinds.values())})"


def lost_share(times: Floats) -> float:
    """Share of the time of runs of the same rounds, [runs >= 2, rounds], that foreign load took: what the rounds that
    it hit took beyond the fastest run of the same round."""
    fastest = times.min(axis=0)
    return float(np.where(times > LOADED * fastest, times - fastest, 0.0).sum() / times.sum())


def slow_blocks(factors: Floats) -> list[int]:
    """Blocks that are far slower than their like. `factors` [blocks] are times over expected times; a low quantile is
    what is usual, since foreign load and lost clocks make slower and nothing makes faster."""
    if not len(factors):
        return []
    usual = float(np.quantile(factors, USUAL, method="lower"))
    return np.flatnonzero(factors > SLOW_BLOCK * usual).tolist()


def _cpu_seconds() -> tuple[float | None, float | None, int]:
    """Seconds that the CPUs of this process were busy and stolen since boot, and how many CPUs they are."""
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None, None, len(mine)
    rows = [line.split() for line in lines if line[:3] == "cpu" and line[3:4].isdecimal()]
    ticks = [[int(value) for value in row[1:9]] for row in rows if int(row[0][3:]) in mine and len(row) >= 9]
    if len(ticks) != len(mine):
        return None, None, len(mine)
    # user nice system idle iowait irq softirq steal
    busy = sum(row[0] + row[1] + row[2] + row[5] + row[6] for row in ticks)
    return busy / TICKS_PER_S, sum(row[7] for row in ticks) / TICKS_PER_S, len(mine)
