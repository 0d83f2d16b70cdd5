"""`check`, from freezing to the verdict, on a virtual machine: what holds passes, every planted change is named."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from profiles.errors import BadInput, ProfileError
from profiles.gate import SHIPPED_BILL, PromptTime
from profiles.measurement import CostTable
from profiles.policy import PolicySource
from profiles.policy_profile import PolicyProfile
from profiles.store import load_profile, save_profile
from runtime.decode import OFF
from runtime.records import Generation
from tests.virtual import QUIET, Machine, calm, draft_cost, target_cost
from tuner import bills
from tuner.bills import fastest
from tuner.check import COSTS, COUNTERS, TIMING, Checked, check, live_bench
from tuner.check_costs import Bounds, check_costs, live_turn, timed_policies
from tuner.check_counters import GateJob, check_counters, least_lead
from tuner.costs import Measured
from tuner.foreign_load import Stretch
from tuner.gate_record import gate_of, gate_of_run, gate_samples
from tuner.gate_screens import check_screen
from tuner.junit import junit_text
from tuner.run_folder import RunFolder
from tuner.timing import Budget
from tuner.trace_store import load_record
from tuner.tuning import Tuned
from tuner.yardsticks.base import Arena
from tuner.yardsticks.single import grid_tiers, static_policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("machine")


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Tuned:
    return Machine(folder).tuned()


@pytest.fixture
def frozen(tuned: Tuned) -> PolicyProfile:
    return load_profile(tuned.path)


def statuses(checked: Checked) -> dict[str, str]:
    return {finding.check: finding.status for finding in checked.findings}


@pytest.fixture(scope="module")
def passing(folder: Path, tuned: Tuned) -> Checked:
    return Machine(folder).check(tuned.profile)


@pytest.fixture(scope="module")
def re_tuned(folder: Path, tuned: Tuned) -> Checked:
    return Machine(folder, draft=lambda n, c: 12 * draft_cost(n, c)).check(tuned.profile)


def busy() -> Callable[[], Stretch]:
    """Others use 40 % of the CPU in every stretch."""
    return lambda: Stretch(1.0, 1.0, 0.4, 0.0, 1)


@pytest.fixture(scope="module")
def disturbed(folder: Path, tuned: Tuned) -> Checked:
    """A machine on which another tier would win, and which is busy."""
    return Machine(folder, draft=lambda n, c: 12 * draft_cost(n, c)).check(tuned.profile, busy)


def test_the_machine_that_tuned_passes(passing: Checked) -> None:
    assert passing.verdict == "pass" and passing.exit_code == 0, passing.reason
    assert set(statuses(passing).values()) == {"pass"}
    document = json.loads(json.dumps(passing.document(), allow_nan=False))
    assert document["verdict"] == "pass" and document["costs"]["not_timed"] == []
    assert document["speed"]["change"]["low"] > 0.97


def test_freezing_again_gives_the_same_gate(folder: Path, frozen: PolicyProfile) -> None:
    """The run folder gives the gate that the profile carries, so a profile from before gates can be checked as well."""
    run = RunFolder(folder / "run")
    samples = Machine(folder).samples(frozen)
    assert samples is not None
    old = frozen.model_copy(update={"gate": None})
    assert gate_of_run(old, run, samples) == frozen.gate
    with pytest.raises(ProfileError, match="is gone"):
        gate_of_run(old, run, samples[1:])
    with pytest.raises(ProfileError, match="compared another policy"):
        gate_of_run(old.model_copy(update={"source": static_policy("other", OFF)}), run, samples)


def test_a_machine_that_is_slower_throughout_still_passes(folder: Path, frozen: PolicyProfile) -> None:
    slower = Machine(folder, lambda n, c: 1.5 * target_cost(n, c), lambda n, c: 1.5 * draft_cost(n, c))
    assert slower.check(frozen).verdict == "pass"


def test_a_dear_draft_asks_for_a_re_tune(re_tuned: Checked) -> None:
    assert re_tuned.verdict == "re-tune" and re_tuned.exit_code == 1
    assert re_tuned.costs is not None and re_tuned.costs.regret.low > 0.05
    assert re_tuned.costs.best in re_tuned.reason and re_tuned.timing is None, "a decided check goes on"


def doctored(table: CostTable) -> CostTable:
    """A table in which a wide verification pass is ruinous."""
    passes = tuple(
        p.model_copy(update={"time_ns": p.time_ns * p.n}) if p.kind == "verify" and p.n > 2 else p for p in table.passes
    )
    return table.model_copy(update={"passes": passes})


def frozen_under(folder: Path, frozen: PolicyProfile, source: PolicySource, table: CostTable) -> PolicyProfile:
    """The profile that would have been frozen of another policy and another cost table, from the same record."""
    run = RunFolder(folder / "run")
    config = run.config()
    arena = Arena.measured(load_record(run.trace), table, config.grid)
    samples = {sample.id: sample for sample in Machine(folder).samples(frozen) or []}
    times = [PromptTime(id=id, plain_ns=2e7, policy_ns=1e7) for id in samples]
    policy = arena.compiled(source)
    return frozen.model_copy(
        update={
            "policy": policy,
            "source": source,
            "evidence": frozen.evidence.model_copy(update={"cost_table": table}),
            "gate": gate_of(arena, config, policy, times, samples),
        }
    ).sealed()


def test_a_policy_for_a_doctored_cost_table_asks_for_a_re_tune(folder: Path, frozen: PolicyProfile) -> None:
    """The profile of a machine whose table was doctored so that another tier won."""
    table = doctored(frozen.evidence.cost_table)
    assert frozen.gate is not None
    name, _ = fastest(frozen.gate.bills, table)
    tier = next(tier for tier in grid_tiers(Machine(folder).config.grid) if tier.label() == name)
    checked = Machine(folder).check(frozen_under(folder, frozen, static_policy(name, tier), table))
    assert checked.verdict == "re-tune", checked.reason
    assert checked.costs is not None and checked.costs.best != name and checked.costs.regret_saved == 0.0


def test_a_delay_in_the_backend_is_a_regression(folder: Path, frozen: PolicyProfile) -> None:
    """Every verification pass takes 8 % longer. The policy still is the best there is, so tuning again is no cure."""
    delayed = Machine(folder, target=lambda n, c: target_cost(n, c) * (1.08 if n > 1 else 1.0))
    checked = delayed.check(frozen)
    assert checked.verdict == "regress" and checked.exit_code == 1, checked.reason
    assert statuses(checked)[COSTS] == "pass" and statuses(checked)[TIMING] == "fail"
    assert checked.timing is not None and checked.timing.look is not None and checked.timing.look.high < 1.0


def test_rounds_that_accept_less_are_a_regression(folder: Path, frozen: PolicyProfile) -> None:
    machine = Machine(folder)
    machine.draft._noise = 1.5  # another draft under the digest of the old one
    checked = machine.check(frozen)
    assert checked.verdict == "regress" and statuses(checked)[COUNTERS] == "fail"
    assert "accepted" in checked.reason and checked.costs is None


def test_another_output_of_the_target_is_a_regression(folder: Path, frozen: PolicyProfile) -> None:
    machine = Machine(folder)
    machine.target._seed = 777
    checked = machine.check(frozen)
    assert checked.verdict == "regress" and "the target's own output is not the saved one" in checked.reason


def test_a_policy_that_changes_the_output_is_named(
    folder: Path, frozen: PolicyProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = GateJob.decode

    def lossy(self, pair, policy):  # type: ignore[no-untyped-def]
        found: Generation = decode(self, pair, policy)
        if policy.drafts():
            found.tokens[3] += 1
        return found

    monkeypatch.setattr(GateJob, "decode", lossy)
    checked = Machine(folder).check(frozen)
    assert checked.verdict == "regress" and "differs from plain decoding at token 3" in checked.reason


def test_a_busy_machine_neither_passes_nor_blames_the_profile(disturbed: Checked) -> None:
    assert disturbed.verdict == "inconclusive" and disturbed.exit_code == 4
    assert statuses(disturbed)[COSTS] == statuses(disturbed)[TIMING] == "skipped"
    assert "others used 40% of the CPUs" in disturbed.reason


def test_a_spent_budget_is_inconclusive(folder: Path, frozen: PolicyProfile) -> None:
    machine = Machine(folder)
    bench = live_bench(frozen, machine.pair, calm)
    with machine.clock.running():
        checked = check(
            frozen,
            machine.pair,
            machine.fingerprint,
            frozen.gate,
            machine.samples(frozen),
            bench,
            Budget(0.0),
            QUIET,
        )
    assert checked.verdict == "inconclusive" and "larger --budget" in checked.reason
    assert checked.costs is not None and checked.costs.filled, "a spent budget times the policy's own sizes only"


def test_what_was_not_recorded_is_said_and_never_passes(folder: Path, frozen: PolicyProfile) -> None:
    checked = Machine(folder).check(frozen.model_copy(update={"gate": None}))
    assert checked.verdict == "inconclusive" and "not recorded" in checked.reason and "--run" in checked.reason
    assert statuses(checked)[COUNTERS] == "skipped"


def test_prompts_must_be_those_of_the_profile(folder: Path, frozen: PolicyProfile, tmp_path: Path) -> None:
    machine, gate = Machine(folder), frozen.gate
    assert gate is not None
    lines = (folder / "prompts.jsonl").read_text().splitlines()
    elsewhere = tmp_path / "moved.jsonl"
    elsewhere.write_text("\n".join(reversed(lines)))
    moved = gate_samples(gate, machine.pair.spec, str(elsewhere))
    assert moved is not None and [sample.id for sample in moved] == gate.prompt_ids()
    first = next(line for line in lines if json.loads(line)["id"] == gate.prompt_ids()[0])
    elsewhere.write_text("\n".join(lines).replace(json.loads(first)["prompt"], "other"))
    with pytest.raises(BadInput, match="not those that the profile was tuned with"):
        gate_samples(gate, machine.pair.spec, str(elsewhere))
    elsewhere.write_text("\n".join(line for line in lines if line != first))
    with pytest.raises(BadInput, match="has no prompt"):
        gate_samples(gate, machine.pair.spec, str(elsewhere))
    nowhere = gate.model_copy(update={"data": {}})
    assert gate_samples(nowhere, machine.pair.spec, None) is None
    checked = check(
        frozen, machine.pair, machine.fingerprint, gate, None, live_bench(frozen, machine.pair, calm), Budget(9), QUIET
    )
    assert checked.verdict == "inconclusive" and "--data" in checked.reason


def test_another_pair_and_another_engine_are_refused(folder: Path, frozen: PolicyProfile) -> None:
    machine = Machine(folder)
    other = machine.pair.record.model_copy(update={"tokenizer_digest": "e" * 64})
    machine.pair = replace(machine.pair, record=other)
    with pytest.raises(ProfileError, match="tokenizer saved"):
        machine.check(frozen)
    engine = frozen.fingerprint.model_copy(update={"device_arch": "sm_90"})
    with pytest.raises(ProfileError, match="device_arch 'sm_90'"):
        Machine(folder).check(frozen.model_copy(update={"fingerprint": engine}))


def test_a_soft_difference_is_a_note(folder: Path, frozen: PolicyProfile) -> None:
    elsewhere = frozen.fingerprint.model_copy(update={"governor": "ondemand", "host": "other"})
    checked = Machine(folder).check(frozen.model_copy(update={"fingerprint": elsewhere}))
    assert checked.verdict == "pass" and statuses(checked)["fingerprint"] == "warn"
    assert [row["field"] for row in checked.document()["fingerprint"]] == ["governor", "host"]


def test_a_profile_that_ships_plain_decoding_is_not_timed(folder: Path, frozen: PolicyProfile) -> None:
    dear = Machine(folder, draft=lambda n, c: 40 * draft_cost(n, c))
    passes = tuple(
        p.model_copy(update={"time_ns": 40 * p.time_ns}) if p.kind in ("catch_up", "frontier") else p
        for p in frozen.evidence.cost_table.passes
    )
    table = frozen.evidence.cost_table.model_copy(update={"passes": passes})
    off = frozen_under(folder, frozen, static_policy("plain", OFF), table)
    checked = dear.check(off)
    assert checked.verdict == "pass" and statuses(checked)[TIMING] == "skipped"
    assert Machine(folder).check(off).verdict == "re-tune", "speculation pays now"


def screen_of(checked: Checked) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(check_screen(checked))
    return console.export_text()


def test_reports_say_the_same(passing: Checked, re_tuned: Checked, disturbed: Checked) -> None:
    for checked, tag, failures, errors in (
        (passing, None, "0", "0"),
        (re_tuned, "failure", "2", "0"),
        (disturbed, "error", "0", "1"),
    ):
        suite = ElementTree.fromstring(junit_text(checked))
        cases = {case.get("name"): case for case in suite}
        assert list(cases) == ["fingerprint", "counters", "costs", "speed", "verdict"]
        assert [child.tag for child in cases["verdict"]] == ([tag] if tag else [])
        assert (suite.get("failures"), suite.get("errors")) == (failures, errors)
        assert f"{checked.verdict}: {checked.reason[:40]}" in screen_of(checked)


def test_only_the_policys_own_sizes_are_timed_when_time_is_short(folder: Path, frozen: PolicyProfile) -> None:
    machine, gate = Machine(folder), frozen.gate
    assert gate is not None
    table = frozen.evidence.cost_table
    own, whole = (timed_policies(frozen.policy, gate, table, everything) for everything in (False, True))
    assert len(own) < len(whole)
    samples = machine.samples(frozen) or []
    jobs = [
        GateJob(s.id, machine.pair.encoder.encode(s.request()), s.max_new_tokens, machine.config.sampling)
        for s in samples
    ]
    turn = live_turn(machine.pair, jobs, machine.config.sampling)
    with machine.clock.running():
        found = check_costs(frozen.policy, gate, table, 1, turn, calm, Budget(None), whole_grid=False)
    assert found.filled and found.verdict(0.05).status == "pass"
    assert abs(found.regret.value - bills.regret(gate.bills, table)) < 0.05
    assert isinstance(found.changes[0].found_ns, Bounds) and all(
        0.8 < c.found_ns.value / c.saved_ns < 1.2 for c in found.changes
    )


def test_sizes_that_ran_out_of_memory_are_no_candidates(folder: Path, frozen: PolicyProfile) -> None:
    machine, gate = Machine(folder), frozen.gate
    assert gate is not None
    bench = live_bench(frozen, machine.pair, calm)

    def dropping(gate, jobs):  # type: ignore[no-untyped-def]
        made = bench(gate, jobs)
        return replace(made, turn=lambda policies, n: Measured(made.turn(policies, n).outputs, (8,)))

    with machine.clock.running():
        checked = check(
            frozen,
            machine.pair,
            machine.fingerprint,
            gate,
            machine.samples(frozen),
            dropping,
            Budget(None),
            QUIET,
        )
    shipped = next(bill for bill in gate.bills if bill.name == SHIPPED_BILL)
    if any(count.kind == "verify" and count.n == 8 for count in shipped.passes):
        assert checked.verdict == "re-tune" and "ran out of memory" in checked.reason
    else:
        assert checked.verdict == "pass"


def test_outputs_too_short_to_time_are_inconclusive(folder: Path, frozen: PolicyProfile) -> None:
    machine, gate = Machine(folder), frozen.gate
    assert gate is not None
    bench = live_bench(frozen, machine.pair, calm)

    def short(gate, jobs):  # type: ignore[no-untyped-def]
        made = bench(gate, jobs)
        return replace(made, turn=lambda policies, n: Measured([r[:4] for r in made.turn(policies, n).outputs]))

    with machine.clock.running():
        samples = machine.samples(frozen)
        checked = check(frozen, machine.pair, machine.fingerprint, gate, samples, short, Budget(None), QUIET)
    assert checked.verdict == "inconclusive" and "cannot be measured on these prompts" in checked.reason
    assert statuses(checked)[TIMING] == "pass"


def test_coarser_dtypes_are_judged_by_margins(folder: Path, frozen: PolicyProfile) -> None:
    """In bfloat16 a near tie may lead to another output; without one it may not."""
    machine, gate = Machine(folder), frozen.gate
    assert gate is not None
    machine.target.dtype = machine.draft.dtype = "bfloat16"
    jobs = {
        s.id: GateJob(s.id, machine.pair.encoder.encode(s.request()), s.max_new_tokens, machine.config.sampling)
        for s in machine.samples(frozen) or []
    }
    other = gate.counters[0].model_copy(update={"output_digest": "0" * 64})
    counters = (other, *gate.counters[1:])
    lead = least_lead(machine.pair, jobs[other.id], jobs[other.id].decode(machine.pair, frozen.policy).tokens)
    tolerant = gate.limits.model_copy(update={"half_margin": lead * 1.01})
    assert check_counters(machine.pair, frozen.policy, counters, jobs, tolerant).status == "warn"
    strict = gate.limits.model_copy(update={"half_margin": lead * 0.99})
    assert check_counters(machine.pair, frozen.policy, counters, jobs, strict).status == "fail"
    machine.draft._noise = 3.0
    found = check_counters(machine.pair, frozen.policy, gate.counters, jobs, gate.limits)
    assert found.status == "fail" and "may differ by 2%" in found.text


def test_a_profile_with_a_gate_keeps_its_bytes(tuned: Tuned) -> None:
    before = tuned.path.read_bytes()
    save_profile(load_profile(tuned.path), tuned.path)
    assert tuned.path.read_bytes() == before
