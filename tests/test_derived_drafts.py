"""Drafts that are no model of their own: how they are named, loaded, recorded, checked and estimated."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from commands.opening import open_pair
from exports.onnx_graph import export_step_graph
from profiles.config import TuneConfig
from profiles.draft_kinds import LookupSettings, parse_lookup
from profiles.errors import BadInput
from profiles.policy import PolicySource, Tier
from profiles.policy_profile import PairRecord
from profiles.registry import ModelSource, PairSpec, derived_draft, load_pair_spec, named_pair
from profiles.store import load_profile
from runtime.backends import load_model
from runtime.backends.torch_backend import TorchModel, cache_argument, load_transformers
from runtime.decode import generate, plain_policy
from runtime.early_exit import first_layers, shortened
from runtime.model_facts import needed_gib, own_pair, parameter_count
from runtime.model_side import read_side
from runtime.pair import Pair, PairPlan, load_pair, model_record
from runtime.policy.compile import compile_policy
from runtime.prompt_lookup import LookupModel
from runtime.prompts import Prompt
from tests.conformance import check_backend
from tests.conftest import TEXT_MODELS, model_files
from tests.families import build_pair, picture, turns
from tests.test_cli import sage
from tests.test_cli_pairs import profile_and_tune
from tuner.calibration import Sample
from tuner.doctor import check_files, examine
from tuner.machine import core_count
from tuner.plan import plan_pair
from tuner.roofline import estimate_pair

TINY = load_pair_spec("tiny-llava-ov")
TREE = compile_policy(PolicySource(tiers=(Tier(depth=4, width=2, nodes=7),)), (1, 8), 4096)


def with_draft(file: Path, draft: str) -> PairSpec:
    """The pair of a file with another draft."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("draft", "weights_gib"))]
    other = file.with_name("other.toml")
    other.write_text("\n".join([*lines, f"draft = {draft}"]))
    return load_pair_spec(str(other))


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, "exactly one of path, hub, prompt_lookup, early_exit_layers must be given, got none"),
        ({"path": "x", "early_exit_layers": 2}, "exactly one of"),
        ({"prompt_lookup": {}, "early_exit_layers": 2}, "exactly one of"),
        ({"prompt_lookup": {"max_ngram": 0}}, "greater than or equal to 1"),
        ({"prompt_lookup": {"max_ngram": 2, "min_ngram": 3}}, "min_ngram <= max_ngram must hold, got 3 > 2"),
        ({"prompt_lookup": {"prior": 2.0}}, "less than or equal to 1"),
        ({"prompt_lookup": {"window": 3}}, "Extra inputs are not permitted"),
        ({"early_exit_layers": 0}, "greater than or equal to 1"),
        ({"early_exit_layers": 2, "weights_gib": 1.0}, "weights_gib belongs to a model of its own"),
        ({"prompt_lookup": {}, "revision": "main"}, "a revision belongs to a hub id"),
        ({"hub": "a/b", "made_by": "make it"}, "made_by belongs to a path"),
    ],
)
def test_a_source_is_one_thing(given: dict[str, object], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        ModelSource.model_validate(given)


def test_a_target_is_a_model_of_its_own() -> None:
    with pytest.raises(ValueError, match="the target must be a path or a hub id, got 'early-exit:2'"):
        PairSpec(name="x", target=ModelSource(early_exit_layers=2), draft=ModelSource(path="x"))


@given(
    st.builds(
        lambda low, more, prior, recency: LookupSettings(
            min_ngram=low, max_ngram=low + more, prior=prior, recency=recency
        ),
        st.integers(1, 4),
        st.integers(0, 4),
        st.floats(0.01, 1.0),
        st.floats(0.01, 1.0),
    )
)
def test_a_label_names_its_settings_again(chosen: LookupSettings) -> None:
    assert parse_lookup(chosen.label()) == chosen
    assert derived_draft(chosen.label()) == ModelSource(prompt_lookup=chosen)


def test_labels_are_read_or_refused() -> None:
    assert LookupSettings().label() == "prompt-lookup"
    assert derived_draft("early-exit:7") == ModelSource(early_exit_layers=7)
    assert ModelSource(early_exit_layers=7).label() == "early-exit:7"
    for other in ("Qwen/Qwen3-VL-2B-Instruct", "./draft", "prompt-lookups"):
        assert derived_draft(other) is None
    with pytest.raises(BadInput, match=r"'prompt-lookup:ngram=3': ngram: .* known: max_ngram, min_ngram"):
        derived_draft("prompt-lookup:ngram=3")
    for text in ("early-exit", "early-exit:", "early-exit:0", "early-exit:-2", "early-exit:x"):
        with pytest.raises(BadInput, match="an early exit is written early-exit:N with N >= 1"):
            derived_draft(text)


def test_a_derived_draft_takes_the_place_of_a_pairs_own(own_pair_file: Path) -> None:
    lookup = own_pair(TINY, None, "prompt-lookup:max_ngram=5")
    assert lookup.name == "tiny-llava-ov+prompt-lookup-max_ngram-5" and lookup.backend == TINY.backend == "onnx"
    assert lookup.draft == ModelSource(prompt_lookup=LookupSettings(max_ngram=5))
    assert lookup.resolve(lookup.draft) == lookup.resolve(lookup.target) == TINY.resolve(TINY.target)
    assert needed_gib(lookup, "float32") == pytest.approx(parameter_count(TINY, TINY.target) * 4 / (1 << 30))
    exit_ = own_pair(TINY, str(own_pair_file.parent / "target"), "early-exit:2")
    assert exit_.name == "target+early-exit-2" and exit_.modalities == ("text",) and exit_.draft.early_exit_layers == 2
    # under torch an early exit is free of charge, as a graph it holds its layers again
    alone = parameter_count(exit_, exit_.target) * 4 / (1 << 30)
    assert needed_gib(exit_, "float32") == pytest.approx(alone)
    assert alone < needed_gib(exit_, "float32", "onnx") < 2 * alone


def test_a_recorded_derived_draft_is_named_again() -> None:
    spec = own_pair(TINY, None, "prompt-lookup:prior=0.5")
    target, draft = model_record(spec, spec.target), model_record(spec, spec.draft)
    record = PairRecord(name=spec.name, target=target, draft=draft, tokenizer_digest="", processor_digest="")
    assert named_pair(record, None) == {"target": TINY.resolve(TINY.target), "draft": "prompt-lookup:prior=0.5"}


def test_records_cover_what_a_derived_draft_depends_on(own_pair_file: Path) -> None:
    def records(draft: str) -> tuple[str, str]:
        spec = with_draft(own_pair_file, draft)
        record = model_record(spec, spec.draft)
        return record.config_digest, record.weights_digest

    drafts = ["{ prompt_lookup = {} }", "{ prompt_lookup = { recency = 0.8 } }", "{ early_exit_layers = 1 }"]
    found = [records(draft) for draft in [*drafts, "{ early_exit_layers = 2 }"]]
    assert len(set(found)) == 4
    assert found[2][1] == found[3][1] != found[0][1] == found[1][1]
    # other weights of the target: another early exit, the same lookup
    model = AutoModelForCausalLM.from_pretrained(own_pair_file.parent / "target")
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    model.save_pretrained(own_pair_file.parent / "target")
    assert records(drafts[0]) == found[0] and records(drafts[2]) != found[2]


def test_records_of_models_are_what_they_were() -> None:
    """The shipped profile was frozen before there were other drafts."""
    frozen = load_profile(Path("profiles/library/tiny-llava-ov-cpu.sage.json").resolve())
    for role in ("target", "draft"):
        assert model_record(TINY, getattr(TINY, role)) == getattr(frozen.pair, role)


@pytest.mark.parametrize("name", sorted(TEXT_MODELS))
def test_an_early_exit_is_the_truncated_model_on_shared_weights(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = TEXT_MODELS[name].eval()
    layers = model.config.num_hidden_layers - 1
    shorter = first_layers(model, layers)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    whole = model.state_dict()
    alone = type(model)(config)
    alone.load_state_dict({name: whole[name].clone() for name in alone.state_dict()})
    ids = torch.arange(3, 20)[None]
    with torch.inference_mode():
        expected = alone.eval()(input_ids=ids).logits
        assert torch.equal(shorter(input_ids=ids).logits, expected)
        assert not torch.allclose(model(input_ids=ids).logits, expected)
    mine, theirs = dict(shorter.named_parameters()), dict(model.named_parameters())
    assert mine and all(p.data_ptr() == theirs[name].data_ptr() for name, p in mine.items())
    assert len(model.model.layers) == model.config.num_hidden_layers == layers + 1, "the target is as it was"


def test_an_early_exit_leaves_a_layer_out() -> None:
    config = TEXT_MODELS["llama"].config
    assert shortened(config, 1).num_hidden_layers == 1
    for layers in (0, config.num_hidden_layers, 40):
        with pytest.raises(BadInput, match=f"must hold, got {layers} of {config.num_hidden_layers}"):
            shortened(config, layers)


def check_speculates(pair: Pair, prompts: list[Prompt]) -> None:
    for prompt in prompts:
        plain = generate(pair, prompt, plain_policy(), max_new_tokens=24)
        assert generate(pair, prompt, TREE, max_new_tokens=24).tokens == plain.tokens


@pytest.mark.parametrize("draft", ["{ prompt_lookup = {} }", "{ early_exit_layers = 2 }"])
def test_a_text_pair_with_a_derived_draft_runs_on_torch(own_pair_file: Path, draft: str) -> None:
    spec = with_draft(own_pair_file, draft)
    pair = load_pair(PairPlan(spec, "torch", "float32", "cpu", 1))
    prompts = [Prompt(np.random.default_rng(i).integers(3, 60, size=12), {}, "text") for i in range(3)]
    check_speculates(pair, prompts)
    assert pair.draft.vocab_size == pair.target.vocab_size and pair.draft.max_positions == pair.target.max_positions
    if spec.draft.early_exit_layers:
        assert isinstance(pair.draft, TorchModel) and isinstance(pair.target, TorchModel)
        head, own = pair.target.model.lm_head.weight, pair.draft.model.lm_head.weight
        assert own.data_ptr() == head.data_ptr()
        check_backend(pair.draft, prompts[0])
    else:
        assert isinstance(pair.draft, LookupModel)


def test_the_embedded_pair_runs_with_a_lookup_and_pictures(torch_pair: Pair, calibration: list[Sample]) -> None:
    pair = load_pair(PairPlan(own_pair(TINY, None, "prompt-lookup"), "torch", "float32", "cpu", 1))
    samples = [s for s in calibration if s.modality in ("image", "video")][:3]
    check_speculates(pair, [pair.encoder.encode(s.request()) for s in samples])


def test_an_early_exit_has_a_graph_of_its_own(own_pair_file: Path, tmp_path: Path) -> None:
    whole = load_transformers(model_files(own_pair_file.parent / "target"))
    shorter = first_layers(whole, 2)
    assert export_step_graph(shorter, tmp_path / "graph", cache_argument(shorter)).layers == 2
    exit_ = load_model("onnx", model_files(own_pair_file.parent / "target", tmp_path / "graph"))
    prompt = Prompt(np.random.default_rng(1).integers(3, 60, size=12), {}, "text")
    by_torch = TorchModel(model_files(own_pair_file.parent / "target"), shorter)
    logits = [model.open(prompt, len(prompt))[1].logits() for model in (exit_, by_torch)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-5)
    check_backend(exit_, prompt)


@pytest.mark.slow
def test_a_vision_pair_runs_with_an_early_exit_on_both_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGE_TUNE_CACHE", str(tmp_path / "cache"))
    exit_ = own_pair(build_pair("llava_next", tmp_path), None, "early-exit:1")
    by_graph = open_pair(PairPlan(exit_, "onnx", "float32", "cpu", core_count()))
    by_torch = load_pair(PairPlan(exit_, "torch", "float32", "cpu", 1))
    assert len(list((tmp_path / "cache" / "sage_tune" / "graphs").iterdir())) == 2
    prompt = by_torch.encoder.encode(turns("#what is this?", images=[picture(1)]))
    logits = [pair.draft.open(prompt, len(prompt))[1].logits() for pair in (by_graph, by_torch)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)
    check_backend(by_graph.draft, prompt)
    check_speculates(by_graph, [prompt])


def test_an_early_exit_needs_its_target_on_one_device(own_pair_file: Path) -> None:
    spec = with_draft(own_pair_file, "{ early_exit_layers = 2 }")
    with pytest.raises(BadInput, match="an early exit needs its target on one device, got device_map='cpu'"):
        load_pair(PairPlan(spec, "torch", "float32", "cpu", 1, None, "cpu"))


def test_the_doctor_says_which_checks_do_not_apply(own_pair_file: Path) -> None:
    for draft, label in (("{ prompt_lookup = {} }", "prompt-lookup"), ("{ early_exit_layers = 2 }", "early-exit:2")):
        spec = with_draft(own_pair_file, draft)
        found = {f.check: f for f in check_files(read_side(spec, "target"), read_side(spec, "draft"))}
        for name in ("tokenizers", "special tokens", "processors", "rotary embedding", "maximal positions"):
            assert found[name].status == "skipped" and found[name].text.startswith(f"{label} drafts with the target's")
        assert found["vocabulary padding"].text.startswith("the target's head has")
        assert found["end of sequence"].text.startswith("the target ends at")
        assert {f.status for f in found.values()} <= {"pass", "skipped"}


def test_the_doctor_renders_text_templates_with_strings(own_pair_file: Path) -> None:
    """As Llama and SmolLM2 write them: a list of parts cannot be joined to a role."""
    spec = with_draft(own_pair_file, "{ prompt_lookup = {} }")
    tokenizer = AutoTokenizer.from_pretrained(spec.resolve(spec.target))
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + '\\n' + m['content'] }}{% endfor %}"
    tokenizer.save_pretrained(spec.resolve(spec.target))
    found = {f.check: f for f in check_files(read_side(spec, "target"), read_side(spec, "draft"))}
    assert found["chat templates"].status == "pass", found["chat templates"].text


def test_the_doctor_examines_a_live_lookup(own_pair_file: Path) -> None:
    spec = with_draft(own_pair_file, "{ prompt_lookup = {} }")
    config = TuneConfig(gpu="cpu", backend="torch", threads=1)
    report, error = examine(spec, config, lambda: load_pair(PairPlan(spec, "torch", "float32", "cpu", 1)))
    assert error is None
    by_name = {f.check: f.status for f in report.findings}
    assert by_name["tree pass"] == by_name["cache rollback"] == by_name["losslessness"] == "pass"


def test_estimates_charge_a_derived_draft_for_what_it_moves() -> None:
    config = TuneConfig(model="llama3-8b", gpu="h100")
    whole = estimate_pair(config)
    lookup = estimate_pair(config.model_copy(update={"draft": "prompt-lookup"}))
    half = estimate_pair(config.model_copy(update={"draft": "early-exit:16"}))
    assert lookup.costs.mean_ns("frontier", 1) == 1.0 and lookup.document()["cost_ratio"] is None
    assert lookup.costs.mean_ns("verify", 8) == half.costs.mean_ns("verify", 8) == whole.costs.mean_ns("verify", 8)
    assert 1.5 < half.costs.cost_ratio() < 2.0, "half the layers and the whole head"
    assert lookup.weights_gib == half.weights_gib == 15.0 < whole.weights_gib
    with pytest.raises(BadInput, match="must hold, got 32 of 32"):
        estimate_pair(config.model_copy(update={"draft": "early-exit:32"}))


def test_weights_that_were_not_made_yet_are_named_with_their_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGE_TUNE_CACHE", str(tmp_path))
    done = sage("profile", "--model", "smollm2-135m", "--gpu", "cpu")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "holds no model (config.json is missing); make it with: python -m examples.smollm2.build" in done.stderr
    assert str(tmp_path) in done.stderr.replace("\n", "")


def test_mistakes_with_derived_drafts_are_found_before_anything_is_loaded() -> None:
    for draft, message in (
        ("early-exit:0", "an early exit is written early-exit:N"),
        ("early-exit:99", "early exit layers < layers of the target must hold, got 99 of 8"),
        ("prompt-lookup:max_ngram=0", "max_ngram: Input should be greater than or equal to 1"),
    ):
        with pytest.raises(BadInput, match=message):
            plan_pair(TuneConfig(gpu="cpu", draft=draft))


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["prompt-lookup:max_ngram=3", "early-exit:3"])
def test_a_derived_draft_goes_all_the_way(tmp_path: Path, draft: str) -> None:
    """On the embedded pair and its pictures, by the command line alone; decoded without naming it again."""
    data = TINY.calibration_path()
    document = profile_and_tune(tmp_path, Path(str(data)), "--draft", draft)
    assert document["lossless"] is True and document["rounds_equal_share"] == 1.0
    assert load_profile(Path(str(document["profile"]))).pair.draft.source == draft
    question = ["--image", "examples/tiny_vlm/scene.png", "--prompt", "Describe the image.", "--max-new-tokens", "8"]
    done = sage("run", "--profile", str(document["profile"]), *question, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tokens"] <= 8
