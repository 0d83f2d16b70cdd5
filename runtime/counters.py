"""Counters of decoding: from the rounds of a request to one line of a log, and to Prometheus text."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from profiles.counters import SIGNAL_BINS, CounterLine, Counters, PassTotal, summed
from profiles.errors import BadInput
from profiles.measurement import PassKind
from profiles.policy import CompiledPolicy
from runtime.records import COLD_ROUNDS, Generation, StepRecord


def count(generation: Generation, policy: CompiledPolicy) -> Counters:
    """Counters of one request."""
    rounds = generation.rounds
    drafts = [step for step in rounds if step.nodes]
    deepest = max((step.levels for step in drafts), default=0)
    index = {tier: i for i, tier in enumerate(policy.tiers)}
    tiers, bins, signal_sum = [0] * len(policy.tiers), [0] * SIGNAL_BINS, 0.0
    for step in rounds:
        # a policy that never drafts makes rounds of a tier that it may not list
        if step.tier in index:
            tiers[index[step.tier]] += 1
        if step.signal == step.signal:
            bins[signal_bin(step.signal)] += 1
            signal_sum += step.signal
    warm = rounds[COLD_ROUNDS:]
    return Counters(
        requests=1,
        tokens=sum(step.emitted for step in rounds),
        rounds=len(rounds),
        drafts=len(drafts),
        proposed=sum(step.nodes for step in drafts),
        accepted=sum(step.accepted for step in drafts),
        reached=tuple(sum(step.levels > depth for step in drafts) for depth in range(deepest)),
        accepted_at=tuple(sum(step.accepted > depth for step in drafts) for depth in range(deepest)),
        tier_rounds=tuple(tiers),
        signal_counts=tuple(bins),
        signal_sum=signal_sum,
        outside_hull=generation.outside_hull,
        guarded=generation.guarded,
        guard_trips=generation.guard_trips,
        draft_ns=sum(step.draft_ns for step in rounds),
        verify_ns=sum(step.verify_ns for step in rounds),
        host_ns=sum(step.host_ns for step in rounds),
        passes=_passes(warm, policy.verify_sizes),
        warm_host_ns=sum(step.host_ns for step in warm),
    )


def signal_bin(signal: float) -> int:
    """The bin of a signal in [0, 1]; 1 belongs to the last."""
    return min(int(signal * SIGNAL_BINS), SIGNAL_BINS - 1)


def line_of(generation: Generation, policy: CompiledPolicy, digest: str, unix_s: float | None = None) -> CounterLine:
    """The line of a log for one request under the profile with this digest."""
    labels = tuple(tier.label() for tier in policy.tiers)
    return CounterLine(digest=digest, tiers=labels, unix_s=unix_s, counters=count(generation, policy))


def append_line(path: Path, line: CounterLine) -> None:
    """Add a line to a log in one write, so that several processes may share it. A line that a killed writer left
    without its end stays a line of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = line.model_dump_json() + "\n"
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            text = text if file.read(1) == b"\n" else "\n" + text
        file.write(text.encode())


def read_log(path: Path) -> list[CounterLine]:
    """Lines of a log in their order. Raises BadInput naming a line that is none; the last one may be cut short."""
    try:
        rows = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from error
    lines = []
    for number, row in enumerate(rows, start=1):
        if not row.strip():
            continue
        try:
            lines.append(CounterLine.model_validate_json(row))
        except ValidationError as error:
            if number == len(rows):
                break  # its writer was killed or is still writing
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "line"
            raise BadInput(f"{path}:{number} is no line of a counter log: {where}: {first['msg']}") from None
    return lines


def prometheus(lines: Sequence[CounterLine]) -> str:
    """Prometheus text of all lines together, per profile. Names and meanings are those of vLLM and SGLang where they
    have one, so that their dashboards read it; the rest begins with `sage_tune:`."""
    groups: dict[tuple[str, tuple[str, ...]], list[Counters]] = {}
    for line in lines:
        groups.setdefault((line.digest, line.tiers), []).append(line.counters)
    metrics: dict[tuple[str, str, str], list[str]] = {}

    def put(name: str, kind: str, text: str, value: float, **labels: object) -> None:
        inside = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        suffix = "_total" if kind == "counter" else ""
        metrics.setdefault((name + suffix, kind, text), []).append(f"{name}{suffix}{{{inside}}} {value:g}")

    for (digest, tiers), counters in groups.items():
        c, profile = summed(counters), digest[:12]
        put("vllm:spec_decode_num_drafts", "counter", "drafts verified", c.drafts, profile=profile)
        put("vllm:spec_decode_num_draft_tokens", "counter", "draft tokens verified", c.proposed, profile=profile)
        put("vllm:spec_decode_num_accepted_tokens", "counter", "draft tokens accepted", c.accepted, profile=profile)
        for place, accepted in enumerate(c.accepted_at):
            text = "draft tokens accepted by depth position"
            name = "vllm:spec_decode_num_accepted_tokens_per_pos"
            put(name, "counter", text, accepted, profile=profile, position=place)
        put(
            "sglang:spec_accept_length",
            "gauge",
            "tokens per round, bonus included",
            c.acceptance_length,
            profile=profile,
        )
        rate = c.accepted / c.proposed if c.proposed else 0.0
        put("sglang:spec_accept_rate", "gauge", "draft tokens accepted over verified", rate, profile=profile)
        put("sglang:spec_verify_calls", "counter", "target passes", c.rounds, profile=profile)
        put("sage_tune:requests", "counter", "requests", c.requests, profile=profile)
        put("sage_tune:generation_tokens", "counter", "tokens of all rounds", c.tokens, profile=profile)
        for i, rounds in enumerate(c.tier_rounds):
            shape = tiers[i] if i < len(tiers) else ""
            put("sage_tune:tier_rounds", "counter", "rounds by tier", rounds, profile=profile, tier=i, shape=shape)
        put(
            "sage_tune:outside_hull_rounds",
            "counter",
            "rounds beyond the tuned contexts",
            c.outside_hull,
            profile=profile,
        )
        put("sage_tune:guarded_rounds", "counter", "rounds that the guard held back", c.guarded, profile=profile)
        put("sage_tune:guard_trips", "counter", "times the guard began to hold", c.guard_trips, profile=profile)
        for what, time_ns in (("draft", c.draft_ns), ("verify", c.verify_ns), ("host", c.host_ns)):
            put(
                "sage_tune:round_seconds",
                "counter",
                "time of rounds by part",
                time_ns / 1e9,
                profile=profile,
                part=what,
            )
        _histogram(metrics, c, profile)
    out = []
    for (name, kind, text), rows in metrics.items():
        out += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *rows]
    return "\n".join(out) + "\n"


def _histogram(metrics: dict[tuple[str, str, str], list[str]], counters: Counters, profile: str) -> None:
    """The signal as a Prometheus histogram: cumulative buckets."""
    rows = metrics.setdefault(("sage_tune:signal", "histogram", "signal of the rounds"), [])
    below = 0
    for i, here in enumerate(counters.signal_counts, start=1):
        below += here
        rows.append(f'sage_tune:signal_bucket{{profile="{profile}",le="{i / SIGNAL_BINS:g}"}} {below}')
    rows.append(f'sage_tune:signal_bucket{{profile="{profile}",le="+Inf"}} {below}')
    rows.append(f'sage_tune:signal_sum{{profile="{profile}"}} {counters.signal_sum:g}')
    rows.append(f'sage_tune:signal_count{{profile="{profile}"}} {below}')


def _passes(rounds: Sequence[StepRecord], verify_sizes: tuple[int, ...]) -> tuple[PassTotal, ...]:
    totals: dict[tuple[PassKind, int], list[int]] = {}
    for step in rounds:
        for kind, n, cached, time_ns in step.passes(verify_sizes):
            total = totals.setdefault((kind, n), [0, 0, 0])
            for i, value in enumerate((1, time_ns, cached)):
                total[i] += value
    return tuple(
        PassTotal(kind=kind, n=n, count=many, time_ns=time_ns, context=context)
        for (kind, n), (many, time_ns, context) in sorted(totals.items())
    )


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
