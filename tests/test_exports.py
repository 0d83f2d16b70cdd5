"""Exports: golden files by engine and version, rules of the engines, what is named as lost, what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from commands.export import ExportJob, export_configuration, exporters, write_export
from exports.lowering import HANDLED, by_profile, lost, truncated
from exports.readme import readme
from exports.request import ExportRequest
from exports.targets import TARGETS, Target, report
from exports.trtllm_config import SpeculativeConfig, block
from profiles.errors import BadInput
from profiles.growth import GrowthTree
from profiles.lowering import REPORT_NAME, Abilities, Lowered, LoweringReport, TreeRoom, fixed
from profiles.policy import DraftRule, HistorySpec, PolicySource, SignalSpec, Tier
from profiles.policy_profile import PolicyProfile
from profiles.store import load_profile, read_json
from tests.strategies import sources, tiers

GOLDEN = Path(__file__).parent / "golden" / "exports"
SHIPPED = Path(__file__).resolve().parent / "fixtures" / "profile_exported.sage.json"
"""A shipped profile of an earlier release: golden files outlive what the library holds."""
OFF = Tier(depth=0, nodes=0)
CHAIN, TREE = Tier(depth=4, width=1, nodes=4), Tier(depth=5, width=2, nodes=7)
ABILITIES = [method.abilities for target in TARGETS.values() for method in target.methods.values()]
EVERYTHING = PolicySource(
    name="everything",
    signal=SignalSpec(kind="target_entropy", lag=1, smoothing=0.5),
    edges=(0.4,),
    tiers=(
        Tier(depth=3, width=2, nodes=8, stops=(0.3, 0.2), keep=(0.1, 0.1, 0.1)),
        Tier(depth=2, width=3, nodes=7, stop=0.4, rule=DraftRule(kind="margin", mu=0.3)),
    ),
    history=HistorySpec(),
    growth=GrowthTree(leaves=(0,)),
)


@pytest.fixture(scope="module")
def shipped() -> PolicyProfile:
    return stamped()


def stamped() -> PolicyProfile:
    """The shipped profile under a fixed digest, so that golden files outlive a schema."""
    return load_profile(SHIPPED).model_copy(update={"digest": "0123456789ab" + "0" * 52})


def lowered_for(target: Target, method: str) -> Lowered:
    abilities = target.methods[method].abilities
    if abilities.confidence == "capped":
        return fixed(CHAIN, OFF, 0.4)
    if abilities.confidence == "uncapped":
        return fixed(CHAIN, OFF, 0.4, capped=False)
    return fixed(CHAIN if abilities.room == "chain" else TREE, OFF)


def request_of(profile: PolicyProfile, target: Target, version: str, method: str, lowered: Lowered) -> ExportRequest:
    head = "org/head" if target.methods[method].head else None
    return target.request(profile, lowered, version, method, ("org/target", "org/draft"), head)


CASES = [
    (target.name, version, method)
    for target in TARGETS.values()
    for version in target.versions
    for method in target.methods
]


@pytest.mark.parametrize(("name", "version", "method"), CASES)
def test_golden_files(shipped: PolicyProfile, name: str, version: str, method: str) -> None:
    """Every artefact of every named release. `python -m tests.test_exports` writes them after a wanted change."""
    folder = GOLDEN / f"{name}-{version}-{method}"
    saved = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert saved == golden(shipped, name, version, method)


def golden(profile: PolicyProfile, name: str, version: str, method: str) -> dict[str, str]:
    target = TARGETS[name]
    made = request_of(profile, target, version, method, lowered_for(target, method))
    files = target.files(made)
    return {**files, "README.md": readme(target, made, report(target, made, None, None, files))}


@pytest.mark.parametrize("name", TARGETS)
def test_an_unknown_version_is_refused_with_those_that_are_known(name: str) -> None:
    target = TARGETS[name]
    with pytest.raises(BadInput, match=target.versions[-1].replace(".", r"\.")):
        target.version("0.0.1")
    assert target.version(None) == target.versions[-1]


@pytest.mark.parametrize(("name", "version", "method"), CASES)
def test_without_speculation_every_engine_starts_plainly(
    shipped: PolicyProfile, name: str, version: str, method: str
) -> None:
    target = TARGETS[name]
    made = request_of(shipped, target, version, method, fixed(OFF, OFF))
    files = target.files(made)
    assert "No speculation" in readme(target, made, report(target, made, None, None, files))
    text = "".join(files.values())
    assert "org/draft" not in text and "org/head" not in text and "num_assistant_tokens" not in text


def test_dependent_knobs_agree_about_the_root(shipped: PolicyProfile) -> None:
    """SGLang counts the root among draft tokens, TensorRT-LLM does not, vLLM has a chain and no such number."""
    sglang = TARGETS["sglang"].files(request_of(shipped, TARGETS["sglang"], "0.5.23", "standalone", fixed(TREE, OFF)))
    assert "--speculative-num-steps 5" in sglang["launch.sh"] and "--speculative-eagle-topk 2" in sglang["launch.sh"]
    assert "--speculative-num-draft-tokens 8" in sglang["launch.sh"]
    trtllm = TARGETS["trtllm"].files(request_of(shipped, TARGETS["trtllm"], "1.4.0rc4", "eagle3", fixed(TREE, OFF)))
    tree = yaml.safe_load(trtllm["trtllm.yaml"])["speculative_config"]
    assert tree["max_draft_len"] == 5 and tree["dynamic_tree_max_topK"] == 2 and tree["max_total_draft_tokens"] == 7
    chain = yaml.safe_load(
        TARGETS["trtllm"].files(request_of(shipped, TARGETS["trtllm"], "1.4.0rc4", "draft_target", fixed(CHAIN, OFF)))[
            "trtllm.yaml"
        ]
    )["speculative_config"]
    assert chain["draft_len_schedule"] == {1: 4} and "max_total_draft_tokens" not in chain


def test_tails_are_explicit(shipped: PolicyProfile) -> None:
    """Beyond the tuned batch the safe tier holds. Left unsaid, lengths carry on in vLLM and end in TensorRT-LLM."""
    safe = Tier(depth=2, width=1, nodes=2)
    for tail, lowered in ((0, fixed(CHAIN, OFF)), (2, fixed(CHAIN, safe)), (4, fixed(CHAIN, Tier(depth=6, nodes=6)))):
        vllm = TARGETS["vllm"].files(request_of(shipped, TARGETS["vllm"], "0.33.0", "draft_model", lowered))
        ranges = json.loads(vllm["speculative_config.json"])["num_speculative_tokens_per_batch_size"]
        assert ranges == [[1, 1, 4], [2, 1024, tail]]
        trt = block(request_of(shipped, TARGETS["trtllm"], "1.4.0rc4", "draft_target", lowered)).draft_len_schedule
        assert trt == {1: 4} | ({1024: tail} if tail else {})
        adaptive = TARGETS["sglang"].files(request_of(shipped, TARGETS["sglang"], "0.5.23", "eagle3-chain", lowered))
        assert json.loads(adaptive["adaptive.json"])["2"] == {"candidate_steps": [tail]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"use_dynamic_tree": True},
        {"decoding_type": "Eagle3", "use_dynamic_tree": True},
        {"dynamic_tree_max_topK": 2},
        {"max_total_draft_tokens": 5},
        {"decoding_type": "Eagle3", "use_dynamic_tree": True, "dynamic_tree_max_topK": 2, "max_total_draft_tokens": 9},
        {"draft_len_schedule": {1: 3}},
        {"draft_len_schedule": {1: 4, 8: 5}},
        {"draft_len_schedule": {1: 4}, "max_concurrency": 1},
        {"max_batch_size": 8},
        {"draft_len_schedule": {0: 4}},
    ],
)
def test_trtllm_rules_are_kept_here_already(wrong: dict[str, object]) -> None:
    good = {"decoding_type": "DraftTarget", "speculative_model": "d", "max_draft_len": 4}
    SpeculativeConfig.model_validate(good)
    with pytest.raises(ValidationError):
        SpeculativeConfig.model_validate({**good, **wrong})


@settings(deadline=None, max_examples=150)
@given(tier=tiers(), confidence=st.sampled_from([0.0, 0.3, 0.9]))
def test_every_shape_that_an_engine_holds_can_be_written(tier: Tier, confidence: float) -> None:
    profile = load_profile(SHIPPED)
    for target in TARGETS.values():
        for method, way in target.methods.items():
            if not way.abilities.holds(tier):
                if not tier.reacts:
                    with pytest.raises(BadInput):
                        request_of(profile, target, target.versions[-1], method, fixed(tier, OFF))
                continue
            own = confidence if way.abilities.confidence != "none" and tier.width == 1 and tier.depth else 0.0
            capped = way.abilities.confidence != "uncapped" or not own
            for version in target.versions:
                made = request_of(profile, target, version, method, fixed(tier, OFF, own, capped))
                files = target.files(made)
                assert files and all(text.endswith("\n") for text in files.values())
                assert readme(target, made, report(target, made, None, None, files))


@settings(deadline=None, max_examples=200)
@given(source=sources(), room=st.sampled_from(get_args(TreeRoom)))
def test_a_truncation_is_expressible_and_nothing_is_dropped_in_silence(source: PolicySource, room: TreeRoom) -> None:
    abilities = Abilities(room=room)
    assert abilities.holds(truncated(source, abilities).tier)
    profile = load_profile(SHIPPED).model_copy(update={"source": source})
    named = {part.field for part in lost(profile, abilities)}
    assert ("signal" in named) == bool(source.edges)
    assert ("history" in named) == (source.history is not None)
    assert ("growth" in named) == (source.growth is not None)
    for field in ("stop", "stops", "keep"):
        assert (f"tiers.{field}" in named) == any(
            any(value) if isinstance(value := getattr(tier, field), tuple) else value for tier in source.tiers
        )
    assert ("tiers.rule" in named) == any(tier.rule.kind != "beam" for tier in source.tiers)
    assert ("tiers.width" in named) == (room == "chain" and any(tier.width > 1 for tier in source.tiers))


def test_everything_that_can_be_lost_has_a_reason(shipped: PolicyProfile) -> None:
    profile = shipped.model_copy(update={"source": EVERYTHING})
    found = lost(profile, Abilities(room="rows", confidence="capped"))
    assert [part.field for part in found] == [
        *("signal", "history", "tiers.stop", "tiers.stops", "tiers.keep", "tiers.rule"),
        *("tiers.nodes", "growth", "context_max", "batch"),
    ]
    assert all(part.value and part.reason for part in found)
    assert "target's distribution" in found[0].reason and "of the round before" in found[0].value
    assert "own probability" in found[2].reason


def test_a_field_that_nobody_knows_is_lost_by_name(shipped: PolicyProfile) -> None:
    class Younger(PolicySource):
        flavour: str = "plain"

    source = Younger(**{**EVERYTHING.model_dump(), "flavour": "hot"})
    found = lost(shipped.model_copy(update={"source": source}), Abilities(room="pool"))
    assert ("flavour", "hot") in [(part.field, part.value) for part in found]
    assert set(PolicySource.model_fields) == HANDLED, "say in exports/lowering.py what becomes of the new field"


def test_without_a_record_the_profile_speaks(shipped: PolicyProfile) -> None:
    lowered, found = by_profile(shipped, Abilities(room="chain"))
    assert lowered.label() == "4,1,4" and found is not None and found.row == "best chain"
    lowered, found = by_profile(shipped, Abilities(room="pool"))
    assert lowered.label() == "4,2,5" and found is not None and found.full_speedup is not None
    silent = shipped.evidence.model_copy(update={"results": ()})
    lowered, found = by_profile(shipped.model_copy(update={"evidence": silent}), Abilities(room="chain"))
    assert lowered.label() == "5,1,5" and found is None


@pytest.mark.parametrize("name", TARGETS)
def test_the_command_exports_the_shipped_profile(tmp_path: Path, name: str) -> None:
    assert set(exporters()) >= set(TARGETS)
    out = tmp_path / "out"
    job = ExportJob(load_profile(SHIPPED), name, None, None, None, out, None)
    export_configuration(job)
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    saved = read_json(out / REPORT_NAME, LoweringReport)
    assert saved.profile_digest == job.profile.digest and saved.lowered_digest == saved.lowered.digest()
    assert {"README.md", REPORT_NAME, *saved.files} == set(first)
    export_configuration(job)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first
    if "launch.sh" in first:
        subprocess.run(["sh", "-n", str(out / "launch.sh")], check=True)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, shipped: PolicyProfile) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(BadInput, match="no export"):
        export_configuration(ExportJob(shipped, "vllm", None, None, None, tmp_path, None))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_files_of_an_earlier_export_do_not_stay(tmp_path: Path, shipped: PolicyProfile) -> None:
    job = ExportJob(shipped, "sglang", None, "eagle3-chain", "org/head", tmp_path / "o", None)
    export_configuration(job)
    assert (tmp_path / "o" / "adaptive.json").exists()
    export_configuration(ExportJob(shipped, "sglang", None, None, None, tmp_path / "o", None))
    assert not (tmp_path / "o" / "adaptive.json").exists()


def test_a_head_must_be_named(tmp_path: Path, shipped: PolicyProfile) -> None:
    with pytest.raises(BadInput, match="--draft"):
        export_configuration(ExportJob(shipped, "vllm", None, "eagle3", None, tmp_path / "o", None))
    with pytest.raises(BadInput, match="draft_model, eagle3"):
        export_configuration(ExportJob(shipped, "vllm", None, "medusa", None, tmp_path / "o", None))


def test_a_changed_report_is_found(tmp_path: Path, shipped: PolicyProfile) -> None:
    export_configuration(ExportJob(shipped, "vllm", None, None, None, tmp_path / "o", None))
    path = tmp_path / "o" / REPORT_NAME
    raw = json.loads(path.read_text())
    raw["lowered"]["source"]["tiers"][0].update(depth=5, nodes=5)
    path.write_text(json.dumps(raw))
    with pytest.raises(BadInput, match="lowered_digest"):
        read_json(path, LoweringReport)


def test_nothing_is_half_written(tmp_path: Path, shipped: PolicyProfile) -> None:
    """The report comes last: an export without one is no export."""
    target = TARGETS["vllm"]
    made = request_of(shipped, target, "0.33.0", "draft_model", fixed(CHAIN, OFF))
    saved = report(target, made, None, None, {})
    with pytest.raises(TypeError):
        write_export(tmp_path / "o", {"a": "fine", "b": 3}, saved)  # type: ignore[dict-item]
    assert not (tmp_path / "o" / REPORT_NAME).exists()


if __name__ == "__main__":
    for case in CASES:
        place = GOLDEN / "-".join(case)
        place.mkdir(parents=True, exist_ok=True)
        for file, text in golden(stamped(), *case).items():
            (place / file).write_text(text, encoding="utf-8")
