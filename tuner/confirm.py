"""Confirmation: finalists, yardsticks and plain decoding run live, and the winner must be certain twice.

The selection prompts choose among the finalists. The report prompts, which no choice has seen, can only take
away what was chosen; every number that is claimed comes from them.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.config import ConfirmConfig
from profiles.errors import Inconclusive
from profiles.measurement import Interval
from tuner.comparison import FEWEST_PROMPTS, Arm, Comparison, Job, Runner, compare
from tuner.progress import Progress
from tuner.timing import Budget

PLAIN, STATIC, TUNED = "plain", "best static tier", "tuned"


@dataclass(frozen=True)
class Confirmation:
    """What ships and why, and both live comparisons behind it."""

    selection: Comparison
    report: Comparison
    shipped: str
    """Name of an arm of the report: PLAIN, STATIC or TUNED."""
    reason: str

    @property
    def gain(self) -> Interval:
        """Gain of the best finalist over the best static tier, on the report prompts (1 without a finalist)."""
        tuned = any(arm.name == TUNED for arm in self.report.arms)
        return self.report.speedup(TUNED if tuned else STATIC, STATIC)


def confirm(
    runner: Runner,
    fixed: list[Arm],
    finalists: list[Arm],
    choosing: list[Job],
    reporting: list[Job],
    limits: ConfirmConfig,
    budget: Budget,
    progress: Progress,
) -> Confirmation:
    """Choose on the selection prompts, then report on the others.

    `fixed` holds PLAIN, STATIC and any other yardstick to report; `finalists` are the adaptive policies. The best
    of them is reported as TUNED even when it does not ship. Raises Inconclusive when the budget ends before every
    arm ran on three prompts of each split.
    """
    plain_and_static = [arm for arm in fixed if arm.name in (PLAIN, STATIC)]
    with progress.task("choosing, live", len(choosing)) as advance:
        # the report needs its time too: choosing may take up to its share of prompts
        share = Budget(budget.left_s * len(choosing) / (len(choosing) + len(reporting)))
        selection = compare(
            runner, [*plain_and_static, *finalists], choosing, limits.repeats, share, lambda: advance(1)
        )
    _require_prompts(selection, "select")
    names = [arm.name for arm in finalists]
    choice, reason = winner(selection, names)

    arms = list(fixed)
    if finalists:
        best = choice if choice in names else most_certain(selection, names)
        arms += [Arm(TUNED, arm.source, arm.policy) for arm in finalists if arm.name == best]
    with progress.task("reporting, live", len(reporting)) as advance:
        report = compare(runner, arms, reporting, limits.repeats, budget, lambda: advance(1))
    _require_prompts(report, "report")
    shipped, reason = held(report, choice if choice in (PLAIN, STATIC) else TUNED, reason)
    return Confirmation(selection, report, shipped, reason)


def winner(comparison: Comparison, adaptive: list[str]) -> tuple[str, str]:
    """Which arm ships, and why.

    Rule: the adaptive arm with the highest lower bound must beat the static tier beyond noise, else the static
    tier stands. What stands must beat plain decoding beyond noise. Where the static tier does not and the adaptive
    arm does, the adaptive arm ships; where neither does, the answer is PLAIN.
    """
    best = most_certain(comparison, adaptive) if adaptive else None
    choice, reason = STATIC, "no adaptive policy was proposed"
    if best is not None:
        gain = comparison.speedup(best, STATIC)
        reason = f"the gain over the best static tier is not certain ({gain.text(3)}), so the static tier ships"
        if gain.low > 1.0:
            choice, reason = best, f"the adaptive policy beats the best static tier by a factor of {gain.text(3)}"
    over_plain = comparison.speedup(choice, PLAIN)
    if over_plain.low > 1.0:
        return choice, reason
    if best is not None and choice == STATIC:
        adaptive_over_plain = comparison.speedup(best, PLAIN)
        if adaptive_over_plain.low > 1.0:
            return best, (
                f"only the adaptive policy is certain to beat plain decoding ({adaptive_over_plain.text(3)} times; the "
                f"best static tier {over_plain.text(3)})"
            )
    return PLAIN, f"speculation does not pay here: {over_plain.text()} times plain decoding"


def most_certain(comparison: Comparison, adaptive: list[str]) -> str:
    """The arm with the highest lower bound of its gain over the static tier."""
    return max(adaptive, key=lambda name: comparison.speedup(name, STATIC).low)


def held(report: Comparison, chosen: str, reason: str) -> tuple[str, str]:
    """What the selection prompts chose must hold on the report prompts as well; they can only take away."""
    if chosen == PLAIN:
        return PLAIN, reason
    found, found_reason = winner(report, [TUNED] if chosen == TUNED else [])
    if found == chosen:
        return chosen, found_reason if chosen == TUNED else reason
    return found, f"not confirmed on the report prompts: {found_reason}"


def _require_prompts(comparison: Comparison, split: str) -> None:
    if len(comparison.samples) < FEWEST_PROMPTS:
        raise Inconclusive(
            f"only {len(comparison.samples)} prompts of the {split} split were compared before the budget ended; "
            "run the command again with a larger --budget"
        )
