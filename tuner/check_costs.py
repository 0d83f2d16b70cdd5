"""Stage three of `check`: what passes cost here, and whether the policy would still be chosen under these costs.

Rounds of every pass size are timed again, in turns. Under the new table the bills of the profile give the replayed time
of the shipped policy and of every tier of the grid; leaving out one turn after the other says how certain that is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import stdtrit

from profiles.config import GridConfig, TimingConfig
from profiles.errors import OutOfMemory
from profiles.gate import SHIPPED_BILL, Gate
from profiles.measurement import CostTable, PassKind
from profiles.policy import CompiledPolicy
from profiles.sampling import Sampling
from runtime.decode import plain_policy
from runtime.pair import Pair
from runtime.policy.tree import padded_size
from runtime.records import StepRecord
from tuner.bills import completed, fastest, regret, speedup
from tuner.check_counters import GateJob
from tuner.costs import Measured, cost_table, covering_policies, measure_rounds, warm_rounds
from tuner.findings import Verdict, failed, passed, skipped, warned
from tuner.foreign_load import Stretch, Tally
from tuner.timing import Budget

FEWEST_TURNS = 3
"""Turns that an interval needs."""
MOST_TURNS = 8
ONE_OUTPUT = TimingConfig(warmup_cv=0.5, warmup_max=5, samples=5)
"""A turn is about one output per policy; a few plain decodings before it bring the clocks up."""
SHARE = 0.95
"""How often the intervals of this stage hold."""

Turn = Callable[[Sequence[CompiledPolicy], int], Measured]
"""Times one turn over the policies; its number says which prompts come first."""


@dataclass(frozen=True)
class Bounds:
    """A number with its 95 % interval over turns."""

    value: float
    low: float
    high: float

    def document(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class SizeChange:
    """A pass size whose cost was measured again; times are means over contexts."""

    kind: PassKind
    n: int
    saved_ns: float
    found_ns: Bounds


@dataclass(frozen=True)
class CostCheck:
    """The re-measured table and what follows from it."""

    table: CostTable
    filled: list[str]
    """Passes that were not timed again: scaled as their neighbours changed."""
    changes: list[SizeChange]
    speedup_saved: float
    speedup_now: float
    """Replayed speedup of the shipped policy over plain decoding, under the saved and the new costs."""
    best: str
    """The fastest of plain decoding and the fixed tiers under the new costs."""
    regret_saved: float
    regret: Bounds
    """Share of the shipped policy's time that `best` would save here."""
    turns: int
    tally: Tally = field(repr=False)

    def verdict(self, limit: float) -> Verdict:
        """`fail` where another tier certainly saves more than it did when tuned, by more than the limit; `warn` where
        it seems so and is not certain; `skipped` where foreign load made the costs worthless."""
        if not self.tally.is_valid:
            return skipped(f"the costs cannot be believed: {self.tally.text()}")
        known, found = max(self.regret_saved, 0.0), self.regret
        text = (
            f"replayed speedup {self.speedup_now:.2f} (saved {self.speedup_saved:.2f}); the best of the grid here is "
            f"{self.best}, which would save {found.value:+.1%} [{found.low:+.1%}, {found.high:+.1%}] of the policy's "
            f"time ({self.regret_saved:+.1%} when tuned)"
        )
        if found.value - known <= limit:
            return passed(text)
        if found.low > known:
            return failed(text)
        return warned(text + "; that is not certain")


def used_sizes(policy: CompiledPolicy) -> set[int]:
    """Verify sizes that rounds of a policy are padded to; all of them where its own scores size the tree."""
    if policy.growth is not None or any(tier.keep for tier in policy.tiers):
        return set(policy.verify_sizes)
    return {padded_size(tier.nodes, policy.verify_sizes) for tier in policy.tiers}


def timed_policies(policy: CompiledPolicy, gate: Gate, saved: CostTable, whole_grid: bool) -> list[CompiledPolicy]:
    """Plain decoding, the policy itself, and what covers the grid, or only the policy's own sizes and widths and the
    smallest trees, which the host's time needs."""
    sizes, widths = saved.sizes("verify"), saved.sizes("frontier") or [1]
    depth = max((math.ceil(bill.levels / bill.draft_rounds) for bill in gate.bills if bill.draft_rounds), default=1)
    if not whole_grid:
        sizes = sorted({*sizes[:3], *used_sizes(policy)} & set(sizes))
        widths = sorted({tier.width for tier in policy.tiers if tier.depth} & set(widths)) or [1]
        depth = max(policy.max_depth, 2)
    depth = min(depth, sizes[-1] - 1)
    grid = GridConfig.model_validate(
        {"depth": depth, "widths": widths, "verify_sizes": sizes, "sage_paper": {"record": False}}
    )
    # padded as the policy pads, so that a round has one size whichever policy made it
    covering = covering_policies(grid, 0.0, policy.context_max)[1:]
    return [plain_policy(), policy, *(c.model_copy(update={"verify_sizes": policy.verify_sizes}) for c in covering)]


def check_costs(
    policy: CompiledPolicy,
    gate: Gate,
    saved: CostTable,
    threads: int,
    turn: Turn,
    watch: Callable[[], Callable[[], Stretch]],
    budget: Budget,
    whole_grid: bool,
) -> CostCheck:
    """Measure turns until it is certain whether the policy would still be chosen, the turns are all made, or the budget
    ends; three are made in any case. Without `whole_grid` only what the policy itself uses is timed.

    Raises OutOfMemory when the policy's own passes no longer fit the device, EnvelopeError when the outputs are too
    short to time anything on.
    """
    policies = timed_policies(policy, gate, saved, whole_grid)
    calm: list[Measured] = []
    hit: list[Measured] = []
    tally = Tally(gate.limits.disturbed)
    while True:
        end = watch()
        found = turn(policies, len(calm) + len(hit))
        (calm if tally.add(end()) else hit).append(found)
        made = len(calm) + len(hit)
        if made < FEWEST_TURNS:
            continue
        # turns that were hit say something only as long as there are no others; the verdict knows how many they are
        turns = calm if len(calm) >= FEWEST_TURNS else calm + hit
        check = _concluded(policy, gate, saved, threads, turns, tally)
        certain = tally.is_valid and check.verdict(gate.limits.regret).status != "warn"
        if certain or made >= MOST_TURNS or budget.expired:
            return check


def live_turn(pair: Pair, jobs: Sequence[GateJob], sampling: Sampling) -> Turn:
    """Turns with the real models."""
    prompts = [(job.prompt, job.max_new_tokens) for job in jobs]

    def turn(policies: Sequence[CompiledPolicy], number: int) -> Measured:
        first = number % len(prompts)
        rotated = prompts[first:] + prompts[:first]
        return measure_rounds(pair, rotated, policies, ONE_OUTPUT, Budget(0.0), sampling=sampling)

    return turn


def _concluded(
    policy: CompiledPolicy, gate: Gate, saved: CostTable, threads: int, turns: Sequence[Measured], tally: Tally
) -> CostCheck:
    dropped = {size for measured in turns for size in measured.dropped_sizes}
    if dropped & used_sizes(policy):
        raise OutOfMemory(f"the policy verifies {sorted(dropped & used_sizes(policy))} tokens, which ran out of memory")
    subsets = [[t for t in turns if t is not left_out] for left_out in turns]

    def priced(some: Sequence[Measured]) -> tuple[CostTable, list[str]]:
        timed = tuple(sorted(_warm_sizes(some, policy)))
        return completed(cost_table(Measured(_outputs(some)), timed, saved.contexts(), threads), saved)

    table, filled = priced(turns)
    without = [priced(some)[0] for some in subsets]
    owed = [bill for bill in gate.bills if not any(c.kind == "verify" and c.n in dropped for c in bill.passes)]
    by_name = {bill.name: bill for bill in owed}
    timed_again = sorted({(p.kind, p.n) for p in table.passes} - {(p.kind, p.n) for p in table.passes if not p.samples})

    def bounds(ask: Callable[[CostTable], float]) -> Bounds:
        return _jackknife(ask(table), [ask(t) for t in without])

    return CostCheck(
        table=table,
        filled=filled,
        changes=[
            SizeChange(kind, n, saved.mean_ns(kind, n), bounds(lambda t, kind=kind, n=n: t.mean_ns(kind, n)))  # type: ignore[misc]
            for kind, n in timed_again
            if n in saved.sizes(kind)
        ],
        speedup_saved=speedup(by_name, SHIPPED_BILL, saved),
        speedup_now=speedup(by_name, SHIPPED_BILL, table),
        best=fastest(owed, table)[0],
        regret_saved=regret(owed, saved),
        regret=bounds(lambda t: regret(owed, t)),
        turns=len(turns),
        tally=tally,
    )


def _outputs(turns: Sequence[Measured]) -> list[list[StepRecord]]:
    return [rounds for measured in turns for rounds in measured.outputs]


def _warm_sizes(turns: Sequence[Measured], policy: CompiledPolicy) -> set[int]:
    """Verify sizes of drafting rounds whose time is not that of cold caches: what a cost table can be made of."""
    warm = warm_rounds(_outputs(turns))
    return {padded_size(step.nodes, policy.verify_sizes) for step in warm if step.draft_passes_ns}


def _jackknife(value: float, without: Sequence[float]) -> Bounds:
    """The interval of a statistic from its values without each turn."""
    count, values = len(without), np.array(without)
    error = math.sqrt((count - 1) / count * float(((values - values.mean()) ** 2).sum()))
    width = float(stdtrit(count - 1, (1 + SHARE) / 2)) * error
    return Bounds(value, value - width, value + width)
