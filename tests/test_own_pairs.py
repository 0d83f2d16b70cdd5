"""Pairs beyond the registry: two hub ids or folders, what is known of them before loading, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from profiles.config import TuneConfig, load_config
from profiles.errors import BadInput, HardwareMissing
from profiles.policy_profile import ModelRecord, PairRecord
from profiles.registry import ModelSource, PairSpec, gpu_specs, load_gpu_spec, load_pair_spec, named_pair
from runtime import model_facts
from runtime.backends import load_model
from runtime.model_facts import given_source, needed_gib, own_pair, parameter_count, require_reachable
from runtime.pair import PairPlan, load_pair
from runtime.prompts import Request
from tests.conftest import model_files
from tests.families import build_pair
from tuner import machine
from tuner.machine import Device, find_device, memory_bytes
from tuner.plan import plan_pair

TINY = load_pair_spec("tiny-llava-ov")


def test_a_source_is_a_folder_that_is_here_or_a_hub_id(tmp_path: Path) -> None:
    assert given_source(str(tmp_path)) == ModelSource(path=str(tmp_path))
    assert given_source("Qwen/Qwen3-VL-2B-Instruct") == ModelSource(hub="Qwen/Qwen3-VL-2B-Instruct", revision="main")
    assert given_source("a/b@v1.0") == ModelSource(hub="a/b", revision="v1.0")
    for text in ("nowhere", "./absent/model", "/absent", "a/b/c", ""):
        with pytest.raises(BadInput, match="is neither a folder that is here nor a hub id"):
            given_source(text)
    with pytest.raises(ValueError, match="a revision belongs to a hub id"):
        ModelSource(path="x", revision="main")


def test_two_folders_make_a_pair_of_their_own(own_pair_file: Path) -> None:
    folder = own_pair_file.parent
    spec = own_pair(TINY, str(folder / "target"), str(folder / "draft"))
    assert (spec.name, spec.dtype, spec.backend) == ("target+draft", "float32", "torch")
    assert spec.modalities == ("text",) and spec.family is None and spec.calibration is None
    parameters = sum(
        sum(w.numel() for w in AutoModelForCausalLM.from_pretrained(folder / part).parameters())
        for part in ("target", "draft")
    )
    assert parameter_count(spec, spec.target) + parameter_count(spec, spec.draft) == parameters
    assert needed_gib(spec, "bfloat16") == needed_gib(spec, "float32") / 2 == parameters * 2 / (1 << 30)
    pair = load_pair(PairPlan(spec, "torch", "float32", "cpu", 1))
    assert pair.record.target.source == str(folder / "target")


def test_weights_in_several_files_are_counted_once_and_only_whole(own_pair_file: Path) -> None:
    folder = own_pair_file.parent
    spec = load_pair_spec(str(own_pair_file))
    whole = parameter_count(spec, spec.target)
    model = AutoModelForCausalLM.from_pretrained(folder / "target")
    model.save_pretrained(folder / "target", max_shard_size="50KB")
    (folder / "target" / "model.safetensors").unlink(missing_ok=True)
    shards = sorted((folder / "target").glob("*.safetensors"))
    assert len(shards) > 1 and parameter_count(spec, spec.target) == whole
    shards[0].unlink()
    with pytest.raises(BadInput, match="holds no complete safetensors weights"):
        parameter_count(spec, spec.target)
    with pytest.raises(BadInput, match="cannot be loaded"):
        load_model("torch", model_files(folder / "target"))


def test_one_given_model_takes_the_place_of_the_pairs_own(tmp_path: Path) -> None:
    build_pair("qwen3_vl", tmp_path)
    other = str(tmp_path / "draft")
    by_draft = own_pair(TINY, None, other)
    assert by_draft.name == "tiny-llava-ov+draft" and by_draft.draft.path == other
    assert by_draft.resolve(by_draft.target) == TINY.resolve(TINY.target) and by_draft.family == "llava_onevision"
    assert by_draft.calibration_path() == TINY.calibration_path() and by_draft.modalities == TINY.modalities
    by_target = own_pair(TINY, other, None)
    assert by_target.family == "qwen3_vl" and by_target.modalities == ("image",)
    assert own_pair(TINY, None, None) is TINY
    with pytest.raises(BadInput, match="target and draft must share one tokenizer"):
        load_pair(PairPlan(by_draft, "torch", "float32", "cpu", 1))


def test_templates_of_text_models_are_given_strings(own_pair_file: Path) -> None:
    """As Llama and Qwen write them: the content is joined to the role, a list of parts would not go in."""
    pair = load_pair(PairPlan(load_pair_spec(str(own_pair_file)), "torch", "float32", "cpu", 1))
    pair.encoder.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + '\n' + m['content'] + '<|im_end|>' }}{% endfor %}"
    )
    told = {"role": "system", "content": "Be brief."}
    parts = {"role": "user", "content": [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]}
    ids = pair.encoder.encode(Request(messages=[told, parts])).input_ids
    assert pair.encoder.tokenizer.decode(ids) == "system\nBe brief.<|im_end|>user\nWhat is it?<|im_end|>"


def test_stated_weights_follow_the_dtype() -> None:
    spec = load_pair_spec("llava-ov-72b")
    assert spec.stated_gib("float32") == 2 * spec.stated_gib("bfloat16")  # type: ignore[operator]
    whole = PairSpec(name="x", target=spec.target, draft=spec.draft, dtype="float32", weights_gib=10.0)
    assert whole.stated_gib("float32") == 10.0 and whole.stated_gib("float16") == 5.0
    assert TINY.stated_gib("float32") is None and 0.02 < needed_gib(TINY, "float32") < 0.05


def test_a_hub_id_that_cannot_be_had_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def dead(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to the hub\nsecond line")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", dead)
    monkeypatch.setattr(huggingface_hub, "get_safetensors_metadata", dead)
    source = ModelSource(hub="nobody/nothing", revision="main")
    spec = PairSpec(name="x", target=source, draft=source)
    for ask in (lambda: require_reachable(source), lambda: parameter_count(spec, source)):
        with pytest.raises(BadInput, match=r"'nobody/nothing' is not in the local cache .* no route to the hub$"):
            ask()
    with pytest.raises(BadInput, match="'nobody/nothing' is not in the local cache"):
        plan_pair(TuneConfig(gpu="cpu", target="nobody/nothing", draft="nobody/nothing"))
    # a cached snapshot needs no hub
    monkeypatch.setattr(model_facts, "_cached", lambda _: Path(TINY.resolve(TINY.draft)))
    require_reachable(source)
    assert parameter_count(spec, source) == parameter_count(TINY, TINY.draft)


def test_a_recorded_pair_is_named_again() -> None:
    def record(name: str, source: str, revision: str | None) -> PairRecord:
        model = ModelRecord(source=source, revision=revision, config_digest="", weights_digest="")
        return PairRecord(name=name, target=model, draft=model, tokenizer_digest="", processor_digest="")

    assert named_pair(record("tiny-llava-ov", "pairs/x", None), None) == {"model": "tiny-llava-ov"}
    assert named_pair(record("a+b", "o/a", "abc"), None) == {"target": "o/a@abc", "draft": "o/a@abc"}
    assert named_pair(record("a+b", "/models/a", None), None) == {"target": "/models/a", "draft": "/models/a"}
    assert named_pair(record("own", "target", None), None) == {"model": "own"}
    assert named_pair(record("a+b", "o/a", "abc"), "own.toml") == {"model": "own.toml"}


def test_models_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    spec = build_pair("llava_next", tmp_path)
    wrong = spec.model_copy(update={"family": "llava_onevision"})
    with pytest.raises(BadInput, match="said to be of family 'llava_onevision', its target is 'llava_next'"):
        load_pair(PairPlan(wrong, "torch", "float32", "cpu", 1))
    text = tmp_path / "text"
    (tmp_path / "draft").rename(text)
    config = json.loads((text / "config.json").read_text())
    plain = {**config["text_config"], "architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    (text / "config.json").write_text(json.dumps(plain))
    with pytest.raises(BadInput, match="reads pictures, its draft reads text only"):
        load_pair(PairPlan(own_pair(spec, None, str(text)), "torch", "float32", "cpu", 1))
    with pytest.raises(BadInput, match="family must be one of"):
        (tmp_path / "pair.toml").write_text((tmp_path / "pair.toml").read_text().replace("llava_next", "llava_later"))
        load_pair_spec(str(tmp_path / "pair.toml"))


def test_an_automatic_dtype_is_one_that_the_engine_runs() -> None:
    for backend, dtype in (("onnx", "float32"), ("torch", "bfloat16")):
        plan = plan_pair(TuneConfig(model="smolvlm", gpu="cpu", backend=backend))[0]  # type: ignore[arg-type]
        assert plan.dtype == dtype


def test_devices_are_known_by_their_whole_name() -> None:
    assert [spec.name for spec in gpu_specs("h100")] == ["h100-sxm", "h100-nvl", "h100-pcie"]
    assert [spec.name for spec in gpu_specs("h20")] == ["h20"]
    assert [spec.name for spec in gpu_specs("a100")] == ["a100-sxm", "a100-pcie"]
    h100 = load_gpu_spec("h100-sxm")
    assert h100.matches_product("nvidia H100 80GB HBM3")
    for other in ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA H100 PCIe", "NVIDIA H200"):
        assert not h100.matches_product(other)
    assert not load_gpu_spec("h20").matches_product("NVIDIA H200")


def _plugged(monkeypatch: pytest.MonkeyPatch, *devices: tuple[str, int]) -> None:
    found = [Device(product, f"cuda:{i}", product, "sm_90", gib << 30) for i, (product, gib) in enumerate(devices)]
    monkeypatch.setattr(machine, "accelerators", lambda: found)


def test_a_device_that_is_not_here_is_named_beside_what_is(monkeypatch: pytest.MonkeyPatch) -> None:
    _plugged(monkeypatch, ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40), ("NVIDIA H100 PCIe", 80))
    assert find_device("h100").torch_name == "cuda:1" and find_device("auto").torch_name == "cuda:0"
    with pytest.raises(
        HardwareMissing, match=r"asks for NVIDIA H200 .* has NVIDIA H100 80GB HBM3 MIG .*, NVIDIA H100 P"
    ):
        find_device("h200")


def test_memory_is_that_of_all_devices_under_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    _plugged(monkeypatch, ("NVIDIA H200", 140), ("NVIDIA H200", 140))
    device = find_device("auto")
    assert memory_bytes(device, None) == memory_bytes(device, "cuda:1") == 140 << 30
    assert memory_bytes(device, "auto") == 280 << 30
    plans = [plan_pair(TuneConfig(model="llava-ov-72b", device_map=m))[0] for m in (None, "auto")]
    with pytest.raises(HardwareMissing, match=r"needs 151 GiB .*, cuda:0 has 140 GiB of memory; --device-map auto"):
        plans[0].check_memory()
    assert plans[1].check_memory() == pytest.approx(151, abs=1) and plans[1].device_map == "auto"
    big = plan_pair(TuneConfig(model="qwen3-vl-235b", device_map="auto"))[0]
    with pytest.raises(HardwareMissing, match=r"needs 456 GiB .*, device map 'auto' has 280 GiB of memory$"):
        big.check_memory()


def test_device_maps_are_checked_before_anything_is_loaded() -> None:
    with pytest.raises(BadInput, match="device_map: String should match pattern"):
        load_config(None, {"device_map": "everywhere"})
    with pytest.raises(BadInput, match="a device map needs --backend torch"):
        plan_pair(TuneConfig(gpu="cpu", backend="onnx", device_map="auto"))
    with pytest.raises(HardwareMissing, match="asks for an accelerator, the device is the CPU"):
        plan_pair(TuneConfig(gpu="cpu", backend="torch", device_map="cuda:0"))
