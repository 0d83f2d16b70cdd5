"""Confirmation: finalists, yardsticks and plain decoding run live, and the winner must be certain twice.

The selection prompts choose among the finalists. The report prompts, which no choice has seen, can only take
away what was chosen; every number that is claimed comes from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.config import ConfirmConfig
from profiles.errors import Inconclusive
from profiles.measurement import Interval
from tuner.comparison import FEWEST_PROMPTS, Arm, Comparison, Job, Runner, compare
from tuner.contest import SEARCHED
from tuner.progress import Progress
from tuner.timing import Budget
from tuner.yardsticks.single import PLAIN, STATIC


@dataclass(frozen=True)
class Confirmation:
    """What ships and why, and both live comparisons behind it."""

    selection: Comparison
    report: Comparison
    shipped: str
    """Name of an arm of the report: PLAIN, STATIC, SEARCHED or a computed policy's."""
    reason: str
    adaptive: str | None
    """The arm of the report that stood for adaptive policies; None without one."""

    @property
    def gain(self) -> Interval:
        """Gain of the adaptive arm over the best static tier, on the report prompts (1 without one)."""
        return self.report.speedup(self.adaptive or STATIC, STATIC)


def confirm(
    runner: Runner,
    fixed: list[Arm],
    searched: list[Arm],
    computed: list[Arm],
    choosing: list[Job],
    reporting: list[Job],
    limits: ConfirmConfig,
    budget: Budget,
    progress: Progress,
) -> Confirmation:
    """Choose on the selection prompts, then report on the others.

    `fixed` holds PLAIN, STATIC and any other yardstick to report; `searched` and `computed` are adaptive policies.
    The best of the searched is reported as SEARCHED even when it does not ship, and so are the computed ones. Raises
    Inconclusive when the budget ends before every arm ran on three prompts of each split.
    """
    plain_and_static = [arm for arm in fixed if arm.name in (PLAIN, STATIC)]
    with progress.task("choosing, live", len(choosing)) as advance:
        # the report needs its time too: choosing may take up to its share of prompts
        share = Budget(budget.left_s * len(choosing) / (len(choosing) + len(reporting)))
        selection = compare(
            runner, [*plain_and_static, *searched, *computed], choosing, limits.repeats, share, lambda: advance(1)
        )
    _require_prompts(selection, "select")
    names, rivals = [arm.name for arm in searched], [arm.name for arm in computed]
    choice, reason = winner(selection, names, rivals)

    best = choice if choice in names else most_certain(selection, names) if names else None
    arms = [*fixed, *(Arm(SEARCHED, arm.source, arm.policy) for arm in searched if arm.name == best), *computed]
    with progress.task("reporting, live", len(reporting)) as advance:
        report = compare(runner, arms, reporting, limits.repeats, budget, lambda: advance(1))
    _require_prompts(report, "report")

    def reported(name: str | None) -> str | None:
        return SEARCHED if name in names else name

    # a computed policy that fails may leave its place to the searched one, if that was certain as well
    understudy = [SEARCHED] if best is not None and selection.speedup(best, STATIC).low > 1.0 else []
    shipped, reason = held(report, reported(choice) or PLAIN, reason, understudy)
    adaptive = reported(challenger(selection, names, rivals))
    return Confirmation(selection, report, shipped, reason, adaptive if shipped in (PLAIN, STATIC) else shipped)


def winner(comparison: Comparison, searched: Sequence[str], computed: Sequence[str] = ()) -> tuple[str, str]:
    """Which arm ships, and why.

    Rule: the adaptive arm that `challenger` puts up must beat the static tier beyond noise, else the static
    tier stands. What stands must beat plain decoding beyond noise. Where the static tier does not and the adaptive
    arm does, the adaptive arm ships; where neither does, the answer is PLAIN.
    """
    best = challenger(comparison, searched, computed)
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


def challenger(comparison: Comparison, searched: Sequence[str], computed: Sequence[str]) -> str | None:
    """The adaptive arm that faces the static tier: the most certain of the searched, unless the most certain of the
    computed beats that one beyond noise. None when there is neither."""
    best = most_certain(comparison, searched) if searched else None
    rival = most_certain(comparison, computed) if computed else None
    if best is None or rival is None:
        return best or rival
    return rival if comparison.speedup(rival, best).low > 1.0 else best


def most_certain(comparison: Comparison, adaptive: Sequence[str]) -> str:
    """The arm with the highest lower bound of its gain over the static tier."""
    return max(adaptive, key=lambda name: comparison.speedup(name, STATIC).low)


def held(report: Comparison, chosen: str, reason: str, understudy: Sequence[str] = ()) -> tuple[str, str]:
    """What the selection prompts chose must hold on the report prompts as well; they can only take away.

    `understudy` names the searched arm if it was certain too: a computed policy must beat it here again.
    """
    if chosen == PLAIN:
        return PLAIN, reason
    if chosen == STATIC:
        found, found_reason = winner(report, ())
    elif chosen == SEARCHED:
        found, found_reason = winner(report, [SEARCHED])
    else:
        found, found_reason = winner(report, understudy, [chosen])
    if found == chosen:
        return chosen, reason if chosen == STATIC else found_reason
    return found, f"not confirmed on the report prompts: {found_reason}"


def _require_prompts(comparison: Comparison, split: str) -> None:
    if len(comparison.samples) < FEWEST_PROMPTS:
        raise Inconclusive(
            f"only {len(comparison.samples)} prompts of the {split} split were compared before the budget ended; "
            "run the command again with a larger --budget"
        )
