"""Bench: plain decoding, yardsticks and profiles on a user's own prompts, in pairs, on one machine at one time.

Every arm decodes the same prompts on the same loaded pair, interleaved by `tuner.comparison`. An arm that would need
other conditions than the first profile is refused by name: a difference of two conditions is no difference of two
policies. Tokens are held against plain decoding before any time counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from profiles.admission import outside_regime, pair_digests
from profiles.errors import BadInput, LosslessError
from profiles.measurement import Interval
from profiles.policy import MAX_NODES, CompiledPolicy, PolicySource, Tier
from profiles.policy_profile import PairRecord, PolicyProfile
from profiles.provenance import FIELD_CLASS, Fingerprint
from profiles.sage_paper import SagePaper
from profiles.sampling import Sampling
from runtime.counters import count
from runtime.decode import generate, plain_policy
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from tuner.comparison import Arm, Comparison, Job, Run, compare
from tuner.foreign_load import Stretch, Tally
from tuner.lossless import Divergence, first_divergence
from tuner.timing import Budget
from tuner.yardsticks.sage_paper import SAGE_PAPER
from tuner.yardsticks.single import CHAIN, PLAIN, STATIC, static_policy

CONDITIONS = ("backend", "dtype", "tensor_parallel", "device_map", "devices", "threads", "governor")
"""Fields of a fingerprint that a process decodes under, besides the clocks that somebody set."""
STATIC_ROWS = {"static": (STATIC, "best static tier"), "chain": (CHAIN,)}
"""Yardsticks whose tier stands in a profile's table, by the names that its rows have had."""
SHAPE = re.compile(r"(\d+),(\d+),(\d+)")
REPLAYED_ONLY = ("rank-tree", "sequoia", "opt-tree", "svip", "adaedl", "smart", "talon", "ema", "bandit", "oracle")


@dataclass(frozen=True)
class Difference:
    """A first divergence from plain decoding as a person reads it."""

    arm: str
    sample: str
    position: int
    margin: float
    top2: tuple[str, str]
    verdict: str

    def text(self) -> str:
        """One sentence."""
        first, second = (repr(token) for token in self.top2)
        return (
            f"{self.arm}, prompt '{self.sample}': output differs from plain decoding at token {self.position}; the "
            f"target's margin there is {self.margin:.1e} nats between {first} and {second}: {self.verdict}"
        )


class OutputDiffers(LosslessError):
    """An arm's tokens are not those of plain decoding, and no near tie explains it. No speed is reported."""

    def __init__(self, found: Difference) -> None:
        super().__init__(f"{found.text()}, and no speed is reported")
        self.found = found

    def document(self) -> dict[str, object]:
        """The numbers of the divergence for a script."""
        return asdict(self.found)


@dataclass(frozen=True)
class Row:
    """One arm of the result."""

    name: str
    tiers: tuple[str, ...]
    acceptance_length: float
    rounds: int
    speedup: Interval
    request_speedup: Interval
    over_first: Interval
    """Time of the benched profile over its own, for decoding."""


@dataclass(frozen=True)
class Bench:
    """What a bench found."""

    rows: tuple[Row, ...]
    prompts: int
    tokens: int
    near_ties: tuple[Difference, ...]
    load: Tally
    """What else the machine did; a run that was disturbed too much says nothing of speed."""

    def document(self) -> dict[str, object]:
        """The numbers for a script."""
        return {
            "verdict": "tie" if self.near_ties else "equal",
            "prompts": self.prompts,
            "tokens": self.tokens,
            "arms": [
                {
                    **asdict(row),
                    **{k: getattr(row, k).model_dump() for k in ("speedup", "request_speedup", "over_first")},
                }
                for row in self.rows
            ],
            "near_ties": [asdict(found) for found in self.near_ties],
            "foreign_load": {"valid": self.load.is_valid, "share": self.load.share, "text": self.load.text()},
        }


def bench_arms(first: PolicyProfile, names: Sequence[str], others: dict[str, PolicyProfile]) -> list[Arm]:
    """Plain decoding, the benched profile, and the arms that were named. `others` holds profiles by the name that
    was given. Raises BadInput for an unknown arm, one that only replay can walk, and a confounded one."""
    arms = [
        Arm(PLAIN, PolicySource(name=PLAIN, tiers=(Tier(depth=0, nodes=0),)), plain_policy()),
        Arm(first.name, first.source, first.policy),
    ]
    for name in names:
        if name in others:
            require_same_conditions(first, others[name], name)
            arms.append(Arm(_free(name, arms), others[name].source, others[name].policy))
        elif name in STATIC_ROWS:
            arms.append(_row_arm(first, name))
        elif name == SAGE_PAPER:
            arms.append(_paper_arm(first))
        elif name in REPLAYED_ONLY:
            raise BadInput(f"arm '{name}' is a rule that only replay can walk; it stands in the table of the profile")
        elif name != PLAIN:
            known = ", ".join([PLAIN, *STATIC_ROWS, SAGE_PAPER])
            raise BadInput(f"unknown arm '{name}'; known: {known}, or the path of a profile")
    return arms


def require_same_conditions(first: PolicyProfile, other: PolicyProfile, name: str) -> None:
    """Raises BadInput naming every condition under which the two were tuned differently."""
    found = [f"pair ({what})" for what in _pair_differences(first.pair, other.pair)]
    found += confounds(first.fingerprint, other.fingerprint)
    if first.regime.sampling != other.regime.sampling:
        found.append(f"sampling ({first.regime.sampling.label()} and {other.regime.sampling.label()})")
    if found:
        raise BadInput(
            f"arm '{name}' is confounded with '{first.name}': {'; '.join(found)}; a comparison would mix these "
            "with the policies"
        )


def confounds(first: Fingerprint, other: Fingerprint) -> list[str]:
    """Conditions that differ, as `field (saved and saved)`. The device may differ: both are timed on this one."""
    fields = [
        name for name, kind in FIELD_CLASS.items() if name in CONDITIONS or (kind != "ignored" and "clock" in name)
    ]
    return [
        f"{name} ({getattr(first, name)!r} and {getattr(other, name)!r})"
        for name in fields
        if getattr(first, name) != getattr(other, name)
    ]


@dataclass
class BenchRunner:
    """Runs for `tuner.comparison.compare` without a record: plain decoding of a prompt, made once, is the reference.

    `policies` says which policy an arm uses on a modality: outside a profile's regime that is its safe tier.
    """

    pair: Pair
    ids: list[str]
    samplings: list[Sampling]
    policies: Callable[[Arm, str], CompiledPolicy]
    near_ties: list[Difference] = field(default_factory=list)
    _plain: dict[int, list[int]] = field(default_factory=dict)

    def __call__(self, arm: Arm, job: Job) -> Run:
        """One run. Raises OutputDiffers when its tokens are not those of plain decoding."""
        sampling = self.samplings[job.sample]
        if job.sample not in self._plain:
            reference = generate(
                self.pair, job.prompt, plain_policy(), max_new_tokens=job.max_new_tokens, sampling=sampling
            )
            self._plain[job.sample] = reference.tokens
        policy = self.policies(arm, job.prompt.modality)
        made = generate(self.pair, job.prompt, policy, max_new_tokens=job.max_new_tokens, sampling=sampling)
        found = first_divergence(self.pair, job.prompt, self._plain[job.sample], made.tokens, sampling)
        if found is not None:
            shown = self._shown(arm.name, job.sample, found)
            if found.verdict != "tie":
                raise OutputDiffers(shown)
            if shown not in self.near_ties:
                self.near_ties.append(shown)
        return Run(
            rounds_ns=[step.round_ns for step in made.rounds],
            prefill_ns=made.target_prefill_ns + made.draft_prefill_ns,
            tokens=len(made.tokens),
            near_tie=found is not None,
            counters=count(made, policy),
        )

    def _shown(self, arm: str, sample: int, found: Divergence) -> Difference:
        first, second = (self.pair.decode([token]) for token in found.top2)
        return Difference(arm, self.ids[sample], found.position, found.margin, (first, second), found.verdict)


def regime_policies(profiles: dict[str, PolicyProfile], sampling: Sampling) -> Callable[[Arm, str], CompiledPolicy]:
    """An arm's policy for a modality, as `run` would use it: the safe tier outside its profile's regime."""

    def policy(arm: Arm, modality: str) -> CompiledPolicy:
        owner = profiles.get(arm.name)
        if owner is not None and outside_regime(owner, modality, sampling):
            return arm.policy.model_copy(update={"context_max": 0})
        return arm.policy

    return policy


def bench(
    runner: BenchRunner,
    arms: list[Arm],
    jobs: Sequence[Job],
    repeats: int,
    budget: Budget,
    watch: Callable[[], Callable[[], Stretch]],
    disturbed: float,
    on_prompt: Callable[[], None] = lambda: None,
) -> Bench:
    """Decode all prompts under all arms, each prompt a stretch that `watch` looks at; foreign load may take up to
    `disturbed` of the time. Raises BadInput when fewer than two prompts are left to compare, OutputDiffers when an arm
    changes the output."""
    load, end = Tally(disturbed), watch()

    def prompt_done() -> None:
        nonlocal end
        load.add(end())
        end = watch()
        on_prompt()

    found = compare(runner, arms, jobs, repeats, budget, prompt_done)
    if len(found.samples) < 2:
        raise BadInput(f"an interval needs two prompts without a near tie, got {len(found.samples)}")
    rows = tuple(_row(arm, found, arms[1].name) for arm in arms)
    return Bench(rows, len(found.samples), found.tokens, tuple(runner.near_ties), load)


def _row(arm: Arm, found: Comparison, first: str) -> Row:
    last = [runs[-1] for runs in found.runs[arm.name]]
    rounds = sum(len(run.rounds_ns) for run in last)
    return Row(
        name=arm.name,
        tiers=tuple(dict.fromkeys(tier.label() for tier in arm.source.tiers)),
        acceptance_length=sum(run.tokens - 1 for run in last) / max(rounds, 1),
        rounds=rounds,
        speedup=found.speedup(arm.name, PLAIN),
        request_speedup=found.request_speedup(arm.name, PLAIN),
        over_first=found.speedup(arm.name, first),
    )


def _row_arm(first: PolicyProfile, name: str) -> Arm:
    """A yardstick of one fixed tier, as the profile's table names it."""
    row = next((r for r in first.evidence.results if r.name in STATIC_ROWS[name]), None)
    shape = SHAPE.fullmatch(row.tiers[0]) if row is not None and len(row.tiers) == 1 else None
    if row is None or shape is None:
        raise BadInput(f"arm '{name}' needs a row {' or '.join(STATIC_ROWS[name])} in the table of {first.name}")
    depth, width, nodes = (int(number) for number in shape.groups())
    source = static_policy(row.name, Tier(depth=depth, width=width, nodes=nodes))
    return Arm(row.name, source, _compiled(source, first))


def _paper_arm(first: PolicyProfile) -> Arm:
    """The paper's own mapping, cut to the verify sizes of the profile."""
    preset = SagePaper()
    nodes = min(first.policy.verify_sizes[-1] - 1, MAX_NODES)
    source = preset.source(min(preset.depth_max, nodes), range(1, preset.width_max + 1), nodes)
    return Arm(SAGE_PAPER, source, _compiled(source, first))


def _compiled(source: PolicySource, first: PolicyProfile) -> CompiledPolicy:
    return compile_policy(source, first.policy.verify_sizes, first.policy.context_max)


def _free(name: str, arms: Sequence[Arm]) -> str:
    """A profile's name in the table; one that is taken is followed by a number."""
    taken = {arm.name for arm in arms}
    return next(n for n in (name, *(f"{name} ({i})" for i in range(2, 100))) if n not in taken)


def _pair_differences(first: PairRecord, other: PairRecord) -> list[str]:
    saved, found = pair_digests(first), pair_digests(other)
    return [name for name, value in saved.items() if found[name] != value]
