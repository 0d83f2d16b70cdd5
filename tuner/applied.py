"""Is this policy what runs? Counters of a live engine against what replay expects.

A replayed mean has an interval over prompts, of half width h over n rounds. What m live rounds of other prompts of
the same kind show then lies within h * sqrt(1 + n / m) of it, 95 % of the time: prompts differ live as they do on the
record. Some things need no statistics: a digest, a tier that the policy does not have, tokens per draft.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtri

from profiles.lowering import Lowered, PositionRate
from profiles.measurement import Interval
from profiles.policy import CompiledPolicy
from tuner.engine_metrics import EngineCounters
from tuner.lowering_search import position_rates
from tuner.replay import Walk
from tuner.statistics import ALPHA, clustered_mean

Finding = Literal["agrees", "contradicts", "differs", "says nothing"]
"""`differs`: acceptance is another, but the digest says that the profile is loaded, so it may be the requests."""
Verdict = Literal["applied", "not this policy", "inconclusive"]
EXIT_CODES: dict[Verdict, int] = {"applied": 0, "not this policy": 1, "inconclusive": 4}
SHORTER_DRAFTS = 0.1
"""Share by which drafts may be shorter than the policy's: the last one of a request is cut."""
ACCEPTANCE = ("acceptance length", "acceptance by level")
PRECISE = 0.1
"""An acceptance length known within this share is evidence by itself."""


@dataclass(frozen=True)
class Mean:
    """A mean over `rounds` with the half width of its 95 % interval."""

    value: float
    half_width: float
    rounds: float

    def within(self, live_rounds: float, comparisons: int = 1) -> tuple[float, float]:
        """Where the mean of as many live rounds lies, 95 % of the time for all `comparisons` together."""
        wider = float(ndtri(1 - ALPHA / 2 / comparisons) / ndtri(1 - ALPHA / 2))
        width = wider * self.half_width * np.sqrt(1 + self.rounds / live_rounds)
        return self.value - width, self.value + width


@dataclass(frozen=True)
class Expected:
    """What a policy shows where it runs."""

    label: str
    source: str
    """Where the numbers come from."""
    depth: int
    acceptance: Mean | None
    """Tokens per round, bonus included."""
    positions: tuple[Mean, ...] = ()
    """Share of rounds that accept each level."""
    tiers: dict[str, Mean] | None = None
    """Share of rounds by tier label; None for an engine without tiers."""
    known_tiers: frozenset[str] = frozenset()
    """Every label that the policy may show; empty for an engine without tiers."""
    nodes: int | None = None
    """Draft tokens of every round, None where they vary."""
    digest: str | None = None


@dataclass(frozen=True)
class Check:
    name: str
    finding: Finding
    text: str
    decides: bool = False
    """True when agreement is evidence by itself."""


@dataclass(frozen=True)
class Applied:
    """All checks of one file of counters."""

    expected: Expected
    checks: tuple[Check, ...]

    @property
    def verdict(self) -> Verdict:
        if any(check.finding == "contradicts" for check in self.checks):
            return "not this policy"
        if any(check.finding == "differs" for check in self.checks):
            return "inconclusive"
        certain = any(check.finding == "agrees" and check.decides for check in self.checks)
        return "applied" if certain else "inconclusive"

    def document(self) -> dict[str, object]:
        """For a script."""
        return {
            "verdict": self.verdict,
            "policy": self.expected.label,
            "expected_from": self.expected.source,
            "checks": [{"name": c.name, "finding": c.finding, "text": c.text} for c in self.checks],
        }


def compare(expected: Expected, seen: EngineCounters) -> Applied:
    """Every check that the counters allow."""
    checks = [
        _digest(expected, seen),
        _known_tiers(expected, seen),
        _tier_shares(expected, seen),
        _configured(expected, seen),
        _drafted(expected, seen),
        _depth(expected, seen),
        _acceptance(expected, seen),
        _positions(expected, seen),
    ]
    found = [check for check in checks if check is not None]
    if any(check.name == "digest" and check.finding == "agrees" for check in found):
        found = [_excused(check) for check in found]
    return Applied(expected, tuple(found))


def _excused(check: Check) -> Check:
    """Acceptance of a profile that is known to be loaded: other requests explain it as well as another policy."""
    if check.finding == "contradicts" and check.name in ACCEPTANCE:
        return replace(check, finding="differs")
    return check


def _digest(expected: Expected, seen: EngineCounters) -> Check | None:
    if expected.digest is None or not seen.digests:
        return None
    others = [found for found in seen.digests if not _same_digest(found, expected.digest)]
    if others:
        return Check("digest", "contradicts", f"the log is of {', '.join(d[:12] for d in others)}")
    return Check("digest", "agrees", f"{expected.digest[:12]} throughout", decides=True)


def _same_digest(found: str, full: str) -> bool:
    return len(found) >= 12 and full.startswith(found)


def _known_tiers(expected: Expected, seen: EngineCounters) -> Check | None:
    if not expected.known_tiers or not seen.tier_rounds:
        return None
    strange = sorted(set(seen.tier_rounds) - expected.known_tiers)
    if strange:
        return Check("tiers", "contradicts", f"tiers that the policy does not have: {' | '.join(strange)}")
    return Check("tiers", "agrees", f"all of its tiers: {' | '.join(sorted(seen.tier_rounds))}")


def _tier_shares(expected: Expected, seen: EngineCounters) -> Check | None:
    total = sum(seen.tier_rounds.values())
    if not expected.tiers or not total:
        return None
    labels = sorted(set(expected.tiers) | (set(seen.tier_rounds) & expected.known_tiers))
    if len(labels) < 2:
        return None
    off, parts = [], []
    for label in labels:
        share, mean = seen.tier_rounds.get(label, 0) / total, expected.tiers.get(label, Mean(0.0, 0.0, total))
        low, high = mean.within(total, len(labels))
        # a tier that was never replayed has no spread: as many rounds as would be seen of a rare one
        low, high = max(low, 0.0) - 3 / total, min(high, 1.0) + 3 / total
        parts.append(f"{label}: {share:.1%} (expected {mean.value:.1%})")
        if not low <= share <= high:
            off.append(f"{label} in {share:.1%} of rounds, expected {max(low, 0):.1%} to {min(high, 1):.1%}")
    if off:
        return Check("tier shares", "contradicts", "; ".join(off))
    return Check("tier shares", "agrees", "; ".join(parts), decides=True)


def _configured(expected: Expected, seen: EngineCounters) -> Check | None:
    if seen.steps is None and seen.tree_tokens is None:
        return None
    wrong = []
    if seen.steps is not None and seen.steps != expected.depth:
        wrong.append(f"{seen.steps:g} steps, the policy has {expected.depth}")
    if seen.tree_tokens is not None and expected.nodes is not None and seen.tree_tokens != expected.nodes + 1:
        wrong.append(f"{seen.tree_tokens:g} tokens to verify, the policy has {expected.nodes + 1} with the root")
    if wrong:
        return Check("configured shape", "contradicts", "; ".join(wrong))
    return Check("configured shape", "agrees", f"{expected.depth} steps", decides=True)


def _drafted(expected: Expected, seen: EngineCounters) -> Check | None:
    if expected.depth == 0 and seen.draft_tokens:
        return Check("draft tokens", "contradicts", f"{seen.draft_tokens:g} drafted, the policy drafts none")
    if expected.nodes is None or seen.draft_tokens is None or not seen.rounds:
        return None
    each = seen.draft_tokens / seen.rounds
    text = f"{each:.2f} per round, the policy has {expected.nodes}"
    if not (1 - SHORTER_DRAFTS) * expected.nodes <= each <= expected.nodes + 1e-6:
        return Check("draft tokens", "contradicts", text)
    return Check("draft tokens", "agrees", text, decides=True)


def _depth(expected: Expected, seen: EngineCounters) -> Check | None:
    beyond = [i + 1 for i, count in enumerate(seen.positions) if count and i >= expected.depth]
    if not beyond:
        return None
    return Check("depth", "contradicts", f"tokens accepted at level {beyond[-1]}, the policy drafts {expected.depth}")


def _acceptance(expected: Expected, seen: EngineCounters) -> Check | None:
    length = seen.acceptance_length
    if expected.acceptance is None or length is None or not seen.rounds:
        return None
    low, high = expected.acceptance.within(seen.rounds)
    text = (
        f"{length:.2f} over {seen.rounds:.0f} rounds, expected {expected.acceptance.value:.2f} [{low:.2f}, {high:.2f}]"
    )
    if not low <= length <= high:
        return Check(
            "acceptance length", "contradicts", text + "; or the requests are of another kind than the record's"
        )
    precise = low > 1.0 and (high - low) / 2 <= PRECISE * expected.acceptance.value
    if not precise:
        return Check(ACCEPTANCE[0], "says nothing", text + "; that many rounds cannot tell it from others")
    return Check(ACCEPTANCE[0], "agrees", text, decides=True)


def _positions(expected: Expected, seen: EngineCounters) -> Check | None:
    if not expected.positions or not seen.positions or not seen.rounds:
        return None
    wrong = []
    for level, mean in enumerate(expected.positions, start=1):
        rate = seen.positions[level - 1] / seen.rounds if level <= len(seen.positions) else 0.0
        low, high = mean.within(seen.rounds, len(expected.positions))
        if not low <= rate <= high:
            wrong.append(
                f"level {level}: {rate:.2f}, expected {mean.value:.2f} [{max(low, 0):.2f}, {min(high, 1):.2f}]"
            )
    if wrong:
        return Check(ACCEPTANCE[1], "contradicts", "; ".join(wrong))
    return Check(ACCEPTANCE[1], "agrees", f"all {len(expected.positions)} levels as replayed")


def mean_of(interval: Interval, rounds: int) -> Mean:
    return Mean(interval.median, (interval.high - interval.low) / 2, rounds)


def positions_of(rates: tuple[PositionRate, ...], rounds: int) -> tuple[Mean, ...]:
    return tuple(Mean(rate.rate, (rate.high - rate.low) / 2, rounds) for rate in rates)


def by_walk(policy: CompiledPolicy, walk: Walk, acceptance: Interval, source: str, label: str, digest: str) -> Expected:
    """What sage_tune's own runtime shows under a profile, from a replay of its policy; `acceptance` is its acceptance
    length."""
    prompts = walk.samples
    labels = np.array([tier.label() for tier in policy.tiers])[walk.choice]
    shares = {}
    for name in Counter(labels.tolist()):
        value, low, high = clustered_mean((labels == name).astype(np.float64), prompts, 1.0)
        shares[name] = Mean(value, (high - low) / 2, walk.rounds)
    return Expected(
        label=label,
        source=source,
        depth=policy.max_depth,
        acceptance=mean_of(acceptance, walk.rounds),
        positions=positions_of(position_rates(walk), walk.rounds),
        tiers=shares,
        known_tiers=frozenset(tier.label() for tier in policy.tiers),
        digest=digest,
    )


def by_lowered(lowered: Lowered, acceptance: Mean | None, positions: tuple[Mean, ...], source: str) -> Expected:
    """What an engine shows that runs a lowered policy."""
    tier = lowered.tier
    return Expected(
        label=lowered.label(),
        source=source,
        depth=tier.depth,
        acceptance=acceptance,
        positions=positions,
        nodes=None if lowered.confidence or tier.depth == 0 else tier.nodes,
    )


def unreplayed(acceptance_length: float, rounds: int, depth: int) -> Mean:
    """A mean that came without an interval: the widest that independent rounds can have. A round accepts 0 to `depth`
    tokens, so its variance is at most m * (depth - m)."""
    accepted = acceptance_length - 1
    variance = max(accepted * (depth - accepted), 0.0)
    return Mean(acceptance_length, float(ndtri(1 - ALPHA / 2) * np.sqrt(variance / rounds)), rounds)
