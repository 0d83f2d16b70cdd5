"""The `doctor` command: is this pair worth hours of profiling? Files first, then three kinds of live evidence.

A pair whose files disagree is never loaded, so it fails in seconds. A check that raises has failed: the error is
its sentence. Adding a check is one function and one entry in `pair_checks.STATIC_CHECKS` or
`live_checks.live_checks`.
"""

from __future__ import annotations

from collections.abc import Callable

from profiles.config import TuneConfig
from profiles.errors import SageError
from profiles.registry import PairSpec
from runtime.model_side import ModelSide, read_side
from runtime.pair import Pair
from tuner.findings import Finding, Report, Verdict, failed, skipped
from tuner.live_checks import live_checks
from tuner.pair_checks import COMPARISONS, STATIC_CHECKS
from tuner.probes import Subject, subject_of

LIVE = "live checks"
OnCheck = Callable[[str], None]


def quiet(name: str) -> None:
    """Tells nobody which check runs."""


def examine(
    spec: PairSpec, config: TuneConfig, open_pair: Callable[[], Pair], on_check: OnCheck = quiet
) -> tuple[Report, SageError | None]:
    """All findings about a pair, and the error that kept it from loading, whose exit code is the command's.

    `open_pair` is called only when no static check failed. Raises BadInput when a side's files cannot be read.
    """
    target, draft = read_side(spec, "target"), read_side(spec, "draft")
    findings = check_files(target, draft, on_check)
    broken = [finding.check for finding in findings if finding.status == "fail"]
    if broken:
        reason = f"the pair was not loaded, since a check of its files failed: {', '.join(broken)}"
        return Report(spec.name, (*findings, skipped(reason).of(LIVE))), None
    on_check("loading")
    try:
        pair = open_pair()
    except SageError as error:
        unloaded = (failed(str(error)).of("loading"), skipped("the pair could not be loaded").of(LIVE))
        return Report(spec.name, (*findings, *unloaded)), error
    try:
        subject = subject_of(pair, config, target)
    except SageError as error:
        return Report(spec.name, (*findings, failed(str(error)).of("prompts"), skipped("no prompts").of(LIVE))), error
    return Report(spec.name, (*findings, *check_live(subject, on_check))), None


def check_files(target: ModelSide, draft: ModelSide, on_check: OnCheck = quiet) -> list[Finding]:
    """Every static check of a pair's files. What only compares two sides is skipped where the draft is described by the
    target's own."""
    alone = f"{draft.derived} drafts with the target's own files, there is nothing to compare" if draft.derived else ""
    return [
        skipped(alone).of(name)
        if alone and name in COMPARISONS
        else _found(name, on_check, lambda check=check: check(target, draft))  # type: ignore[misc]
        for name, check in STATIC_CHECKS.items()
    ]


def check_live(subject: Subject, on_check: OnCheck = quiet) -> list[Finding]:
    """Every check of a loaded pair."""
    return [
        _found(name, on_check, lambda check=check: check(subject))  # type: ignore[misc]
        for name, check in live_checks(subject).items()
    ]


def _found(name: str, on_check: OnCheck, run: Callable[[], Verdict]) -> Finding:
    on_check(name)
    try:
        return run().of(name)
    except SageError as error:
        return failed(str(error)).of(name)
    except Exception as error:  # a broken pair breaks anywhere; the other checks still say what they see
        reason = str(error).strip().splitlines()
        return failed(f"stopped by {type(error).__name__}: {reason[0] if reason else 'no reason given'}").of(name)
