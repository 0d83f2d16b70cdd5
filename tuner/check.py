"""The `check` command: does a profile still hold here? Four stages, cheapest first; the first that decides ends it.

1. integrity, signature, pair and fingerprint: what is refused is an error, no verdict;
2. counters of a few prompts (`tuner.check_counters`);
3. costs, and what a re-tune would choose under them (`tuner.check_costs`);
4. speed against plain decoding until a verdict is certain (`tuner.check_timing`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from profiles.admission import admit
from profiles.errors import EnvelopeError, LosslessError, OutOfMemory
from profiles.gate import Gate
from profiles.policy_profile import PolicyProfile
from profiles.provenance import FieldComparison, Fingerprint
from profiles.sampling import Sampling
from runtime.pair import Pair
from tuner.calibration import Sample
from tuner.check_costs import FEWEST_TURNS, CostCheck, Turn, check_costs, live_turn, timed_policies
from tuner.check_counters import GateJob, check_counters
from tuner.check_timing import LivePair, PairRunner, TimingCheck, check_timing
from tuner.findings import Finding, Verdict, failed, passed, skipped, warned
from tuner.foreign_load import Stretch
from tuner.progress import Progress
from tuner.timing import Budget

GateVerdict = Literal["pass", "regress", "re-tune", "inconclusive"]
EXIT_CODES: dict[GateVerdict, int] = {"pass": 0, "regress": 1, "re-tune": 1, "inconclusive": 4}
FINGERPRINT, COUNTERS, COSTS, TIMING = "fingerprint", "counters", "costs", "speed"
STAGES = (FINGERPRINT, COUNTERS, COSTS, TIMING)
COSTS_SHARE = 0.4
"""Share of the budget that costs may take before the speed is measured."""
NOT_RECORDED = "not recorded: the profile carries no gate; give the run that froze it with --run, or tune again"


@dataclass(frozen=True)
class Bench:
    """What measures: the real models, or what stands for them in a simulation."""

    turn: Turn
    runner: PairRunner
    watch: Callable[[], Callable[[], Stretch]]


OpenBench = Callable[[Gate, dict[str, GateJob]], Bench]


@dataclass
class Checked:
    """The verdict and everything behind it. Stages that did not run have no finding."""

    profile: PolicyProfile
    machine: list[FieldComparison]
    findings: list[Finding] = field(default_factory=list)
    costs: CostCheck | None = None
    timing: TimingCheck | None = None
    verdict: GateVerdict = "inconclusive"
    reason: str = ""

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def add(self, stage: str, found: Verdict) -> Verdict:
        self.findings.append(found.of(stage))
        return found

    def ended(self, verdict: GateVerdict, reason: str) -> Checked:
        self.verdict, self.reason = verdict, reason
        return self

    def document(self) -> dict[str, Any]:
        """Everything for a script."""
        document: dict[str, Any] = {
            "profile": self.profile.name,
            "digest": self.profile.digest,
            "verdict": self.verdict,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "stages": [finding.document() for finding in self.findings],
            "fingerprint": [row._asdict() for row in self.machine if row.differs],
        }
        if self.costs is not None:
            document["costs"] = {
                "speedup_saved": self.costs.speedup_saved,
                "speedup_now": self.costs.speedup_now,
                "best": self.costs.best,
                "regret_saved": self.costs.regret_saved,
                "regret": self.costs.regret.document(),
                "not_timed": self.costs.filled,
                "turns": self.costs.turns,
                "disturbed_share": self.costs.tally.share,
            }
        if self.timing is not None:
            look = self.timing.look
            document["speed"] = {
                "blocks": self.timing.blocks,
                "disturbed_share": self.timing.tally.share,
                **(
                    {}
                    if look is None
                    else {
                        "speedup_saved": self.timing.speedup_saved,
                        "speedup_now": self.timing.speedup_now,
                        "change": {"value": look.change, "low": look.low, "high": look.high},
                        "prompts": look.prompts,
                    }
                ),
            }
        return document


def check(
    profile: PolicyProfile,
    pair: Pair,
    machine: Fingerprint,
    gate: Gate | None,
    samples: list[Sample] | None,
    bench: OpenBench,
    budget: Budget,
    progress: Progress,
) -> Checked:
    """Hold this machine against a profile. `gate` is the profile's own or that of its run (None when there is neither),
    `samples` its prompts (None when they are not here).

    Raises ProfileError for another pair or a hard difference of the machine, BadInput for a prompt that cannot be read.
    """
    notes = admit(profile, pair.record, machine)
    checked = Checked(profile, profile.fingerprint.compared(machine))
    if notes:
        checked.add(FINGERPRINT, warned(f"pair and engine as saved; {'; '.join(notes)}", tuple(notes)))
    else:
        checked.add(FINGERPRINT, passed("pair, engine and machine as saved"))
    if gate is None:
        checked.add(COUNTERS, skipped(NOT_RECORDED))
        return checked.ended("inconclusive", NOT_RECORDED)
    if samples is None:
        missing = "the prompts of the profile are not here; say where they lie with --data"
        checked.add(COUNTERS, skipped(missing))
        return checked.ended("inconclusive", missing)
    jobs = gate_jobs(profile, gate, pair, samples)
    return _measured(checked, gate, pair, jobs, bench(gate, jobs), budget, progress)


def _measured(
    checked: Checked,
    gate: Gate,
    pair: Pair,
    jobs: dict[str, GateJob],
    bench: Bench,
    budget: Budget,
    progress: Progress,
) -> Checked:
    """The stages that decode."""
    profile, limits = checked.profile, gate.limits
    with progress.task("counters", len(gate.counters)):
        found = checked.add(COUNTERS, check_counters(pair, profile.policy, gate.counters, jobs, limits))
    if found.status == "fail":
        return checked.ended("regress", f"decoding is not what was tuned: {found.text}")

    table, threads = profile.evidence.cost_table, profile.evidence.cost_table.threads
    share = Budget(COSTS_SHARE * budget.left_s)
    whole = _turns_s(profile, gate) * FEWEST_TURNS <= share.left_s
    with progress.task("costs", 1):
        try:
            found_costs = check_costs(profile.policy, gate, table, threads, bench.turn, bench.watch, share, whole)
            checked.costs, costs = found_costs, found_costs.verdict(limits.regret)
        except OutOfMemory as error:
            checked.add(COSTS, failed(str(error)))
            return checked.ended("re-tune", str(error))
        except EnvelopeError as error:
            costs = skipped(f"the costs cannot be measured on these prompts: {error}")
    checked.add(COSTS, costs)
    if costs.status == "fail":
        return checked.ended("re-tune", f"not the best choice here: {costs.text}")

    if not profile.policy.drafts():
        checked.add(TIMING, skipped("the profile says `off`: plain decoding is what it ships"))
        return checked.ended(*_without_timing(costs))
    with progress.task("speed", 1):
        try:
            checked.timing = check_timing(bench.runner, gate.times, limits, bench.watch, budget)
        except LosslessError as error:
            checked.add(TIMING, failed(str(error)))
            return checked.ended("regress", str(error))
    speed = checked.add(TIMING, checked.timing.verdict(limits))
    if speed.status == "fail":
        return checked.ended("regress", f"the policy lost speed: {speed.text}")
    if speed.status != "pass":
        return checked.ended("inconclusive", "; ".join(v.text for v in (costs, speed) if v.status != "pass"))
    return checked.ended(*_without_timing(costs))


def _without_timing(costs: Verdict) -> tuple[GateVerdict, str]:
    """What is left to decide when the speed is no question."""
    if costs.status == "pass":
        return "pass", "tokens, rounds, costs and speed are those of the profile"
    return "inconclusive", costs.text


def gate_jobs(profile: PolicyProfile, gate: Gate, pair: Pair, samples: list[Sample]) -> dict[str, GateJob]:
    """Every prompt of a gate, encoded, with the seed that it was recorded with."""
    sampling = base_sampling(profile, gate)
    return {
        sample.id: GateJob(
            sample.id, pair.encoder.encode(sample.request()), sample.max_new_tokens, sampling.for_sample(sample.id)
        )
        for sample in samples
    }


def base_sampling(profile: PolicyProfile, gate: Gate) -> Sampling:
    """How the record was sampled, with its seed."""
    return Sampling(**profile.regime.sampling.model_dump(), seed=gate.seed)


def live_bench(profile: PolicyProfile, pair: Pair, watch: Callable[[], Callable[[], Stretch]]) -> OpenBench:
    """The bench of the real models."""

    def bench(gate: Gate, jobs: dict[str, GateJob]) -> Bench:
        # rounds of long outputs: those of the first few are cold, and a short output has no others
        longest = sorted(gate.counters, key=lambda prompt: -prompt.output_tokens)[: max(len(gate.counters) // 2, 3)]
        turn = live_turn(pair, [jobs[prompt.id] for prompt in longest], base_sampling(profile, gate))
        return Bench(turn, LivePair(pair, profile.policy, jobs), watch)

    return bench


def _turns_s(profile: PolicyProfile, gate: Gate) -> float:
    """About how long a turn over the whole grid takes, by the saved times."""
    longest_ns = max((max(time.plain_ns, time.policy_ns) for time in gate.times), default=0.0)
    return len(timed_policies(profile.policy, gate, profile.evidence.cost_table, True)) * longest_ns / 1e9
