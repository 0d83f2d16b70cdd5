"""Bench: which arms may be compared, that tokens come before speed, and what a divergence says."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import BadInput, Inconclusive
from profiles.measurement import PolicyResult
from profiles.policy_profile import PolicyProfile
from profiles.provenance import Fingerprint
from profiles.registry import HERE, load_pair_spec
from profiles.sampling import GREEDY, SamplingRegime
from profiles.store import load_profile
from runtime.decode import generate
from sage_tune import app
from tests.samples import pair_record, sample_profile
from tests.test_replay import PAIR, PROMPTS
from tuner import bench as benching
from tuner.bench import BenchRunner, OutputDiffers, bench, bench_arms, confounds, regime_policies
from tuner.bench_data import bench_samples
from tuner.comparison import Arm, Job
from tuner.foreign_load import Stretch
from tuner.timing import Budget

SHIPPED = HERE / "library" / "tiny-llava-ov-cpu.sage.json"
JOBS = [Job(i, prompt, limit) for i, (prompt, limit) in enumerate(PROMPTS)]


def with_table(*rows: tuple[str, str]) -> PolicyProfile:
    profile = sample_profile()
    results = tuple(
        PolicyResult(name=name, tiers=(tier,), verdict="static", acceptance_length=2, rounds=9, speedup_replayed=1.2)
        for name, tier in rows
    )
    return profile.model_copy(update={"evidence": profile.evidence.model_copy(update={"results": results})})


def runner(profile: PolicyProfile) -> BenchRunner:
    return BenchRunner(
        pair=PAIR,
        ids=[f"s{i}" for i in range(len(JOBS))],
        samplings=[GREEDY] * len(JOBS),
        policies=regime_policies({profile.name: profile}, GREEDY),
    )


def test_arms_are_plain_the_profile_and_what_was_named() -> None:
    profile = with_table(("best static", "2,2,3"), ("best chain", "3,1,3"))
    arms = bench_arms(profile, ["plain", "static", "chain", "sage-paper"], {})
    assert [arm.name for arm in arms] == ["plain", "tiny-cpu", "best static", "best chain", "sage-paper"]
    assert [tier.label() for tier in arms[2].source.tiers] == ["2,2,3"]
    assert arms[-1].policy.max_nodes < arms[-1].policy.verify_sizes[-1]
    with pytest.raises(BadInput, match="unknown arm 'statc'; known: plain, static"):
        bench_arms(profile, ["statc"], {})
    with pytest.raises(BadInput, match="only replay can walk"):
        bench_arms(profile, ["svip"], {})
    with pytest.raises(BadInput, match="needs a row best static"):
        bench_arms(sample_profile(), ["static"], {})


CONFOUNDED: list[tuple[str, Any]] = [
    ("dtype", "bfloat16"),
    ("threads", 1),
    ("backend", "torch"),
    ("device_map", "auto"),
    ("tensor_parallel", 2),
    ("governor", "powersave"),
]


@pytest.mark.parametrize(("field", "value"), CONFOUNDED)
def test_an_arm_of_other_conditions_is_refused_by_name(field: str, value: Any) -> None:
    first = sample_profile()
    other = first.model_copy(update={"fingerprint": first.fingerprint.model_copy(update={field: value})})
    with pytest.raises(BadInput, match=rf"arm 'b' is confounded with 'tiny-cpu': {field} \("):
        bench_arms(first, ["b"], {"b": other})


def test_another_pair_and_another_sampling_are_refused() -> None:
    first = sample_profile()
    other = first.model_copy(
        update={
            "pair": pair_record(draft_weights="x" * 64),
            "regime": first.regime.model_copy(update={"sampling": SamplingRegime(temperature=0.7)}),
        }
    )
    with pytest.raises(BadInput, match=r"pair \(draft weights\); sampling \(greedy"):
        bench_arms(first, ["b"], {"b": other})


def test_another_device_is_no_confound_since_both_run_here() -> None:
    first: Fingerprint = sample_profile().fingerprint
    assert confounds(first, first.model_copy(update={"cpu": "another", "host": "b", "versions": {}})) == []


def quiet() -> Callable[[], Stretch]:
    return lambda: Stretch(wall_s=1.0, own_cpu_s=1.0, others_cpu_s=0.0, steal_s=0.0, cpus=1)


def busy() -> Callable[[], Stretch]:
    return lambda: Stretch(wall_s=1.0, own_cpu_s=1.0, others_cpu_s=0.9, steal_s=0.0, cpus=1)


def test_foreign_load_is_part_of_what_was_found() -> None:
    profile = with_table(("best static", "2,2,3"))
    for watch, valid in ((quiet, True), (busy, False)):
        found = bench(runner(profile), bench_arms(profile, [], {}), JOBS, 1, Budget(None), watch, 0.15)
        assert found.load.is_valid == valid and len(found.load.problems) == len(JOBS)
        load = json.loads(json.dumps(found.document()))["foreign_load"]
        assert load["valid"] == valid and ("others used 90% of the CPUs" in load["text"]) != valid


def test_a_bench_holds_tokens_against_plain_and_reports_intervals() -> None:
    profile = with_table(("best static", "2,2,3"))
    arms = bench_arms(profile, ["static"], {})
    found = bench(runner(profile), arms, JOBS, 1, Budget(None), quiet, 0.15)
    assert [row.name for row in found.rows] == ["plain", "tiny-cpu", "best static"]
    assert found.prompts == len(JOBS) and not found.near_ties
    plain, ours, static = found.rows
    assert plain.speedup.median == 1.0 and plain.acceptance_length == 1.0
    assert ours.over_first.median == 1.0 and static.acceptance_length > 1.0
    document = json.loads(json.dumps(found.document()))
    assert document["verdict"] == "equal" and len(document["arms"]) == 3


def test_outside_its_regime_a_profile_uses_the_safe_tier() -> None:
    profile = sample_profile()  # tuned for images
    arm = Arm(profile.name, profile.source, profile.policy)
    policies = regime_policies({profile.name: profile}, GREEDY)
    assert policies(arm, "image") == profile.policy and policies(arm, "text").context_max == 0
    assert policies(replace(arm, name="plain"), "text") == profile.policy


def test_a_planted_divergence_is_a_bug_and_reports_no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = with_table(("best static", "2,2,3"))

    def wrong(pair: Any, prompt: Any, policy: Any, **how: Any) -> Any:
        made = generate(pair, prompt, policy, **how)
        if policy.drafts() and len(made.tokens) > 4:
            made.tokens[4] = 1 + made.tokens[4] % 20
        return made

    monkeypatch.setattr(benching, "generate", wrong)
    with pytest.raises(OutputDiffers, match="output differs from plain decoding at token 4") as caught:
        bench(runner(profile), bench_arms(profile, ["static"], {}), JOBS, 1, Budget(None), quiet, 0.15)
    found = caught.value.document()
    assert caught.value.exit_code == 1 and found["verdict"] == "bug" and found["position"] == 4
    assert found["margin"] > 1e-3 and len(found["top2"]) == 2


def test_a_divergence_by_a_hair_is_a_tie_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = with_table(("best static", "2,2,3"))
    tie = benching.Divergence(position=2, margin=1e-7, top2=(3, 4))
    real = benching.first_divergence

    def near(pair: Any, prompt: Any, plain: list[int], other: list[int], sampling: Any) -> Any:
        return tie if prompt is JOBS[0].prompt else real(pair, prompt, plain, other, sampling)

    monkeypatch.setattr(benching, "first_divergence", near)
    found = bench(runner(profile), bench_arms(profile, [], {}), JOBS, 1, Budget(None), quiet, 0.15)
    assert found.prompts == len(JOBS) - 1 and found.document()["verdict"] == "tie"
    assert "at token 2; the target's margin there is 1.0e-07 nats between 'c' and 'd': tie" in found.near_ties[0].text()


def test_own_prompts_are_used_whole_and_the_pairs_set_only_where_it_reports(tmp_path: Path) -> None:
    spec = load_pair_spec("tiny-llava-ov")
    held_out = bench_samples(None, spec, 12)
    assert len(held_out) == 12 and {sample.split for sample in held_out} == {"report"}
    rows = [{"id": str(i), "prompt": "What is shown?"} for i in range(5)]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert sorted(sample.id for sample in bench_samples(str(path), spec, 40)) == list("01234")
    path.write_text(json.dumps(rows[0]))
    with pytest.raises(BadInput, match="at least 2 prompts"):
        bench_samples(str(path), spec, 40)


def test_the_command_times_the_shipped_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene = HERE / "pairs" / "tiny-llava-ov" / "calibration" / "0000.png"
    rows = [
        {"id": str(i), "prompt": text, "images": [str(scene)], "max_new_tokens": 12}
        for i, text in enumerate(("Describe the image.", "What is in the image?", "What is large?"))
    ]
    data = tmp_path / "mine.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    command = ["bench", "--profile", str(SHIPPED), "--data", str(data), "--arms", "static", "--repeats", "1"]
    with suppress(Inconclusive):  # whatever else this machine does: the table comes first
        app([*command, "--budget", "1s", "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [arm["name"] for arm in document["arms"]] == ["plain", load_profile(SHIPPED).name, "best static"]
    assert document["verdict"] in ("equal", "tie") and document["tokens"] > 0
