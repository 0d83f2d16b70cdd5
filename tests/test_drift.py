"""Counters and drift: what is counted, that a log can be read back, and that workload and machine are told apart."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from profiles.counters import SIGNAL_BINS, CounterLine, Counters, PassTotal, Snapshot, summed
from profiles.errors import BadInput
from profiles.policy import CompiledPolicy, PolicySource, SignalSpec, Tier
from profiles.registry import HERE
from profiles.store import load_profile, save_profile
from runtime.counters import append_line, count, line_of, prometheus, read_log, signal_bin
from runtime.decode import generate, plain_policy
from runtime.policy.compile import compile_policy
from runtime.records import COLD_ROUNDS
from sage_tune import app
from tests.samples import sample_profile
from tests.strategies import SIGNAL_LOGPROBS, VERIFY_SIZES
from tests.test_replay import PAIR, PROMPTS, costs, record  # noqa: F401  # a fixture
from tuner.drift import Drift, compare_snapshots, replayed_counters, snapshot
from tuner.outcomes import Record

SOURCE = PolicySource(
    signal=SignalSpec(top_k=SIGNAL_LOGPROBS),
    edges=(0.5,),
    tiers=(Tier(depth=3, width=2, nodes=5), Tier(depth=2, width=2, nodes=3)),
)
POLICY = compile_policy(SOURCE, VERIFY_SIZES, 1000)
TOLERANCE, SIGNAL_TOLERANCE = 0.1, 0.05


def counted(policy: CompiledPolicy = POLICY) -> list[Counters]:
    made = [generate(PAIR, prompt, policy, max_new_tokens=limit) for prompt, limit in PROMPTS]
    return [count(generation, policy) for generation in made]


def synthetic(
    requests: int, seed: int, accept: float = 0.7, signal: float = 0.3, target: float = 1.0, draft: float = 1.0
) -> list[Counters]:
    """Requests of a chain of four on the machine of `costs`, slower by factors; `accept` is the chance of every draft
    token."""
    rng, table = np.random.default_rng(seed), costs()
    made = []
    for _ in range(requests):
        rounds = int(rng.integers(20, 80))
        survived = np.cumprod(rng.random((rounds, 4)) < accept, axis=1).sum(axis=1)
        signals = np.clip(rng.normal(signal, 0.1, rounds), 0, 1)
        passes = []
        for kind, n, times, factor in (("verify", 5, 1, target), ("catch_up", 1, 1, draft), ("frontier", 1, 3, draft)):
            size = next(s for s in table.sizes(kind) if s >= n)
            time_ns = times * rounds * factor * table.mean_ns(kind, size) * float(rng.normal(1.0, 0.02))
            passes.append(
                PassTotal(kind=kind, n=size, count=times * rounds, time_ns=round(time_ns), context=100 * times * rounds)
            )
        host_ns = rounds * (table.host.round_ns + 4 * table.host.level_ns)
        made.append(
            Counters(
                requests=1,
                tokens=int(survived.sum()) + rounds,
                rounds=rounds,
                drafts=rounds,
                proposed=4 * rounds,
                accepted=int(survived.sum()),
                reached=(rounds,) * 4,
                accepted_at=tuple(int((survived > depth).sum()) for depth in range(4)),
                signal_counts=tuple(np.bincount([signal_bin(s) for s in signals], minlength=SIGNAL_BINS).tolist()),
                signal_sum=float(signals.sum()),
                passes=tuple(passes),
                warm_host_ns=round(host_ns),
            )
        )
    return made


def compared(log: list[Counters], base: list[Counters] | None = None) -> Drift:
    then = snapshot(synthetic(72, 1) if base is None else base, costs())
    return compare_snapshots(then, snapshot(log, costs()), TOLERANCE, SIGNAL_TOLERANCE)


def test_counters_are_sums_over_the_rounds() -> None:
    prompt, limit = PROMPTS[5]
    made = generate(PAIR, prompt, POLICY, max_new_tokens=limit)
    found, rounds = count(made, POLICY), made.rounds
    assert found.rounds == len(rounds) > COLD_ROUNDS and found.tokens == len(made.tokens) - 1
    assert found.acceptance_length == made.acceptance_length
    assert found.proposed == sum(r.nodes for r in rounds) and found.accepted == sum(r.accepted for r in rounds)
    assert sum(found.accepted_at) == found.accepted, "every accepted token has one depth"
    assert list(found.accepted_at) == sorted(found.accepted_at, reverse=True)
    assert sum(found.tier_rounds) == sum(found.signal_counts) == len(rounds)
    assert {POLICY.tiers[i].label(): n for i, n in enumerate(found.tier_rounds) if n} == made.tier_rounds()
    assert found.draft_ns + found.verify_ns + found.host_ns == made.decode_ns
    warm = rounds[COLD_ROUNDS:]
    assert sum(p.time_ns for p in found.passes) + found.warm_host_ns == sum(r.round_ns for r in warm)
    assert sum(p.count for p in found.passes if p.kind == "verify") == len(warm)
    assert sum(p.context for p in found.passes if p.kind == "verify") == sum(r.context - 1 for r in warm)


def test_plain_decoding_counts_plain_passes_and_no_draft() -> None:
    found = count(generate(PAIR, *PROMPTS[5][:1], plain_policy(), max_new_tokens=20), plain_policy())
    assert found.drafts == found.proposed == sum(found.signal_counts) == 0
    assert {p.kind for p in found.passes} == {"plain"} and found.acceptance_length == 1.0


def test_sums_keep_every_place_and_every_pass() -> None:
    each = counted()
    total = summed(each)
    assert total.requests == len(each) and total.rounds == sum(c.rounds for c in each)
    assert sum(total.accepted_at) == total.accepted
    assert sum(p.count for p in total.passes) == sum(p.count for c in each for p in c.passes)
    assert summed([total]) == total


def test_replayed_counters_are_the_live_ones(record: Record) -> None:  # noqa: F811
    reported = Record(
        record.manifest, [s.model_copy(update={"split": "report"}) for s in record.samples], record._frame
    )
    policy = compile_policy(SOURCE, VERIFY_SIZES, record.context_max)
    for sample, found in zip(reported.samples, replayed_counters(policy, reported, costs()), strict=True):
        prompt, limit = PROMPTS[int(sample.id[1:])]
        live = count(generate(PAIR, prompt, policy, max_new_tokens=limit), policy)
        timeless = {"passes": (), "warm_host_ns": 0, "draft_ns": 0, "verify_ns": 0, "host_ns": 0}
        assert found.signal_sum == pytest.approx(live.signal_sum, abs=1e-4)
        same = {**timeless, "signal_sum": 0.0}
        assert found.model_copy(update=same) == live.model_copy(update=same)


def test_a_log_is_read_back_and_survives_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "counters.jsonl"
    lines = [CounterLine(digest="d", tiers=("off",), unix_s=i, counters=c) for i, c in enumerate(counted()[:3])]
    append_line(path, lines[0])
    with path.open("a") as file:
        file.write('{"digest": "d", "ti')
    assert read_log(path) == lines[:1]
    append_line(path, lines[1])
    with pytest.raises(BadInput, match=r"counters.jsonl:2 is no line of a counter log"):
        read_log(path)


def test_prometheus_text_carries_the_names_of_the_engines() -> None:
    made = [generate(PAIR, prompt, POLICY, max_new_tokens=limit) for prompt, limit in PROMPTS]
    lines = [line_of(generation, POLICY, "0123456789abcdef") for generation in made]
    text, total = prometheus(lines), summed([line.counters for line in lines])
    values = dict(re.findall(r"^([^#\n]+) (\S+)$", text, flags=re.MULTILINE))
    label = 'profile="0123456789ab"'
    assert float(values[f"vllm:spec_decode_num_drafts_total{{{label}}}"]) == total.drafts
    assert float(values[f"vllm:spec_decode_num_draft_tokens_total{{{label}}}"]) == total.proposed
    assert float(values[f"vllm:spec_decode_num_accepted_tokens_total{{{label}}}"]) == total.accepted
    per_pos = [float(v) for k, v in values.items() if "accepted_tokens_per_pos" in k]
    assert per_pos == list(total.accepted_at)
    assert float(values[f"sglang:spec_accept_length{{{label}}}"]) == pytest.approx(total.acceptance_length, rel=1e-4)
    buckets = [float(v) for k, v in values.items() if k.startswith("sage_tune:signal_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == sum(total.signal_counts)
    names = re.findall(r"^# TYPE (\S+)", text, flags=re.MULTILINE)
    assert len(names) == len(set(names)), "every family is announced once"


def test_no_drift_is_no_drift() -> None:
    found = compared(synthetic(200, 2))
    assert (found.verdict("workload"), found.verdict("machine"), found.exit_code) == ("same", "same", 0)


@pytest.mark.parametrize("change", [{"accept": 0.5}, {"signal": 0.5}])
def test_another_workload_is_workload_drift_alone(change: dict[str, float]) -> None:
    found = compared(synthetic(200, 2, **change))
    assert (found.verdict("workload"), found.verdict("machine"), found.exit_code) == ("moved", "same", 1)
    moved = [c.name for c in found.changes if c.verdict == "moved"]
    assert ("mean signal" in moved) == ("signal" in change)


@pytest.mark.parametrize("change", [{"target": 1.3}, {"draft": 0.7}])
def test_another_machine_is_machine_drift_alone(change: dict[str, float]) -> None:
    found = compared(synthetic(200, 2, **change))
    assert (found.verdict("workload"), found.verdict("machine"), found.exit_code) == ("same", "moved", 1)
    name = next(iter(change))
    assert [c.verdict for c in found.changes if c.name == f"time of {name} passes"] == ["moved"]


def test_swapped_counters_are_found() -> None:
    """The planted fault: a writer that swaps what it proposed with what it accepted, and drafts with rounds."""
    log = [c.model_copy(update={"accepted": c.proposed, "proposed": c.accepted}) for c in synthetic(200, 2)]
    assert compared(log).verdict("workload") == "moved"


def test_few_requests_leave_it_open() -> None:
    found = compared(synthetic(3, 2))
    assert found.verdict("workload") == "open" and found.exit_code == 4


def test_false_alarms_are_rare_and_a_quarter_less_acceptance_is_found() -> None:
    base = synthetic(72, 1)
    assert sum(compared(synthetic(60, seed), base).exit_code == 1 for seed in range(40)) <= 1
    assert sum(compared(synthetic(60, seed, accept=0.55), base).exit_code == 1 for seed in range(40)) >= 38


def test_an_older_profile_compares_costs_and_says_what_is_missing() -> None:
    found = compare_snapshots(None, snapshot(synthetic(200, 2), costs()), TOLERANCE, SIGNAL_TOLERANCE)
    assert found.verdict("workload") is None and found.verdict("machine") == "same" and found.exit_code == 0
    assert "mean signal" in found.not_recorded


def test_passes_that_the_table_does_not_know_are_left_out() -> None:
    log = synthetic(30, 2)
    odd = PassTotal(kind="verify", n=999, count=1, time_ns=1, context=10)
    found = snapshot([c.model_copy(update={"passes": (*c.passes, odd)}) for c in log], costs())
    assert found.target_cost is None and found.round_cost is None and found.draft_cost is not None


def write_case(folder: Path, base: Snapshot | None, log: list[Counters]) -> tuple[Path, Path]:
    profile = sample_profile()
    evidence = profile.evidence.model_copy(update={"baseline": base, "cost_table": costs()})
    path, log_path = folder / "p.sage.json", folder / "log.jsonl"
    sealed = save_profile(profile.model_copy(update={"evidence": evidence}), path)
    assert load_profile(path).evidence.baseline == base
    for i, counters in enumerate(log):
        digest = sealed.digest if i else "another"
        append_line(log_path, CounterLine(digest=digest, tiers=("x",), counters=counters))
    return path, log_path


@pytest.mark.parametrize(("accept", "code"), [(0.7, 0), (0.5, 1)])
def test_the_command_exits_with_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], accept: float, code: int
) -> None:
    path, log = write_case(tmp_path, snapshot(synthetic(72, 1), costs()), synthetic(200, 2, accept=accept))
    assert app(["drift", str(path), str(log), "--json"], standalone_mode=False) == code
    printed = capsys.readouterr()
    document = json.loads(printed.out.splitlines()[-1])
    assert document["requests"] == 199 and document["workload"] == ("same" if code == 0 else "moved")
    assert "1 lines belong to other profiles" in printed.err
    app(["counters", str(log), "--out", str(tmp_path / "m.prom")], standalone_mode=False)
    assert "vllm:spec_decode_num_drafts_total" in (tmp_path / "m.prom").read_text()


def test_run_appends_a_line_of_its_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped, log = HERE / "library" / "tiny-llava-ov-cpu.sage.json", tmp_path / "log.jsonl"
    scene = HERE / "pairs" / "tiny-llava-ov" / "calibration" / "0000.png"
    asked = ["run", "--profile", str(shipped), "--image", str(scene), "--prompt", "Describe the image."]
    app([*asked, "--max-new-tokens", "12", "--guard", "--counters", str(log), "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    (line,) = read_log(log)
    assert line.digest == load_profile(shipped).digest == document["digest"] and line.unix_s is not None
    assert (line.counters.rounds, line.counters.guarded) == (document["rounds"], document["guarded"])
