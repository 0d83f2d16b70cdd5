"""What `tune` writes down for `check`: counters and times of a few prompts, and the bills of the whole grid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import numpy as np

from profiles.config import DataConfig, TuneConfig
from profiles.errors import BadInput, ProfileError
from profiles.gate import Gate, PromptCounters, PromptTime
from profiles.policy import CompiledPolicy
from profiles.policy_profile import PolicyProfile
from profiles.provenance import digest
from profiles.registry import PairSpec
from profiles.store import parse
from tuner.bills import bills
from tuner.calibration import Sample, data_digest, parse_rows
from tuner.comparison import Comparison
from tuner.inputs import open_source
from tuner.lossless import NEAR_TIE, least_margin
from tuner.outcomes import Record
from tuner.replay import Walk
from tuner.run_folder import RunFolder
from tuner.trace_store import load_record, trace_digest
from tuner.yardsticks.base import Arena
from tuner.yardsticks.single import PLAIN

COUNTED = 8
"""Prompts with counters."""
TIMED = 32
"""Prompts with times: the longest outputs, whose times are the steadiest."""
CLEAR = 3 * NEAR_TIE
"""Margin in nats above which a decision is taken to fall alike on every machine with float32. Most of the closest ones
are between candidates that nobody accepts, so a larger margin would leave only the shortest outputs."""


def prompt_times(record: Record, comparison: Comparison, shipped: str) -> list[PromptTime]:
    """Decode times of the report prompts, longest first."""
    columns = (comparison.samples, comparison.decode_ns[PLAIN], comparison.decode_ns[shipped])
    return _longest(
        PromptTime(id=record.samples[i].id, plain_ns=float(plain), policy_ns=float(own))
        for i, plain, own in zip(*columns, strict=True)
    )


def gate_of(
    arena: Arena,
    config: TuneConfig,
    policy: CompiledPolicy,
    times: Sequence[PromptTime],
    samples: dict[str, Sample],
) -> Gate:
    """The gate of a shipped policy. `times` are of prompts on record, longest first; `samples` are by id."""
    replay, record = arena.replay, arena.replay.record
    index = {sample.id: i for i, sample in enumerate(record.samples)}
    timed = list(times[:TIMED])
    walk = replay.walk(policy, np.array([index[time.id] for time in timed], dtype=np.int64))
    gate = Gate(
        limits=config.gate,
        data=config.data.model_dump(mode="json", exclude_defaults=True),
        data_digest="",
        seed=record.manifest.sampling.seed,
        counters=tuple(_counters(record, index[id], walk) for id in _clearest(policy, walk, record, timed, index)),
        times=tuple(timed),
        bills=bills(arena, policy),
    )
    return gate.model_copy(update={"data_digest": data_digest([samples[id] for id in gate.prompt_ids()])})


def gate_of_run(profile: PolicyProfile, run: RunFolder, samples: Sequence[Sample]) -> Gate:
    """The gate of a profile that carries none, from the run that froze it. Raises ProfileError when the folder holds
    another record or another comparison."""
    if trace_digest(run.trace) != profile.provenance.trace_digest:
        raise ProfileError(f"{run.path} holds another record than the one that '{profile.name}' was tuned on")
    config, record = run.config(), load_record(run.trace)
    arena = Arena.measured(record, profile.evidence.cost_table, config.grid)
    shipped, path = profile.evidence.shipped_name, run.path / "confirm.json"
    if run.compared_policies().get(shipped) != profile.source:
        raise ProfileError(f"{path} compared another policy as '{shipped}' than '{profile.name}' ships")
    report = json.loads(path.read_text(encoding="utf-8"))["report"]
    columns = (report["prompts"], report["decode_ns"][PLAIN], report["decode_ns"][shipped])
    times = _longest(PromptTime(id=i, plain_ns=p, policy_ns=own) for i, p, own in zip(*columns, strict=True))
    by_id = {sample.id: sample for sample in samples}
    gone = [time.id for time in times if time.id not in by_id]
    if gone:
        raise ProfileError(f"the prompts of {run.path} have changed since it was recorded: '{gone[0]}' is gone")
    return gate_of(arena, config, profile.policy, times, by_id)


def gate_samples(gate: Gate, spec: PairSpec, place: str | None) -> list[Sample] | None:
    """The prompts of a gate, in its order; None when there is no place that they could be read from. `place` is where
    they lie here, if not where they lay when the profile was tuned.

    Raises BadInput when they cannot be read, one is missing, or they are not those that the profile was tuned with.
    """
    config = parse(DataConfig, {**gate.data, **({"path": place} if place else {})}, "the profile's data settings")
    data = config.path or spec.calibration_path()
    if data is None:
        return None
    source = open_source(str(data), config)
    found = {sample.id: sample for sample in parse_rows(source, config)[0]}
    missing = [id for id in gate.prompt_ids() if id not in found]
    if missing:
        raise BadInput(
            f"{data} has no prompt '{missing[0]}', which the profile was tuned with ({len(missing)} missing)"
        )
    chosen = [found[id] for id in gate.prompt_ids()]
    source.fetch([sample.line for sample in chosen])
    if data_digest(chosen) != gate.data_digest:
        raise BadInput(f"the prompts in {data} are not those that the profile was tuned with: their digest differs")
    return chosen


def _longest(times: Iterable[PromptTime]) -> list[PromptTime]:
    return sorted(times, key=lambda time: -time.plain_ns)


def _clearest(
    policy: CompiledPolicy, walk: Walk, record: Record, timed: Sequence[PromptTime], index: dict[str, int]
) -> list[str]:
    """Prompts whose every decision is clear, so that their counters are the same wherever float32 is; the longest
    first, and where they are too few the next clearest."""
    margin = {
        time.id: min(least_margin(policy, walk, index[time.id], record), _lead(record, index[time.id]))
        for time in timed
    }
    order = {time.id: place for place, time in enumerate(timed)}
    return sorted(margin, key=lambda id: (-min(margin[id], CLEAR), order[id]))[:COUNTED]


def _lead(record: Record, sample: int) -> float:
    """The smallest lead of the target's first choice over its second along an output, in nats."""
    rows = record.column("target_logprobs")[record.start[sample] : record.end[sample], :2]
    return float((rows[:, 0] - rows[:, 1]).min(initial=np.inf))


def _counters(record: Record, sample: int, walk: Walk) -> PromptCounters:
    output = record.samples[sample].output
    return PromptCounters(
        id=record.samples[sample].id,
        output_digest=digest(list(output)),
        output_tokens=len(output),
        accepted=tuple(walk.accepted[walk.samples == sample].tolist()),
    )
