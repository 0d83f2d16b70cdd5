"""Device maps of transformers pass through, are recorded, and may not hide a model that does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from profiles.errors import BadInput, HardwareMissing
from profiles.provenance import Fingerprint
from runtime.backends import load_model, torch_backend
from runtime.backends.torch_backend import spread
from runtime.decode import generate, plain_policy
from runtime.pair import PairPlan, load_pair
from runtime.prompts import Prompt
from tests.conformance import check_backend
from tests.conftest import model_files
from tests.families import build_pair, picture, turns
from tests.samples import MACHINE
from tuner.machine import find_device, fingerprint


@pytest.mark.parametrize("device_map", ["cpu", "auto"])
def test_a_map_on_the_cpu_changes_nothing_but_the_record(
    tmp_path: Path, device_map: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = build_pair("qwen3_vl", tmp_path)
    plain = PairPlan(spec, "torch", "float32", "cpu", 1)
    asked = []
    load = torch_backend.AutoModelForImageTextToText.from_pretrained
    monkeypatch.setattr(
        torch_backend.AutoModelForImageTextToText,
        "from_pretrained",
        lambda *args, **kwargs: asked.append(kwargs.get("device_map")) or load(*args, **kwargs),
    )
    mapped = load_pair(replace(plain, device_map=device_map))
    assert asked == [None, device_map], "the draft stays whole, the target is spread"
    assert (mapped.target.device_map, mapped.target.devices, mapped.draft.device_map) == (device_map, 1, None)
    prompt = mapped.encoder.encode(turns("#what?", images=[picture(1, 90, 60)]))
    outputs = [generate(pair, prompt, plain_policy(), max_new_tokens=12).tokens for pair in (mapped, load_pair(plain))]
    assert outputs[0] == outputs[1]
    assert fingerprint(mapped.target, find_device("cpu"), 1).device_map == device_map


def test_a_mapped_model_conforms(text_folder: Path) -> None:
    model = load_model("torch", replace(model_files(text_folder), device_map="auto"))
    ids = np.random.default_rng(1).integers(3, model.token_limit, size=11)
    check_backend(model, Prompt(ids, {}, "text"))


def test_layers_left_in_host_memory_are_refused(text_folder: Path) -> None:
    model = SimpleNamespace(hf_device_map={"embed": 0, "layers.0": 0, "layers.1": 1, "lm_head": "cpu"})
    files = replace(model_files(text_folder), device="cuda:0", device_map="auto")
    with pytest.raises(HardwareMissing, match=r"device map 'auto' left 1 parts of .* \(lm_head, \.\.\.\)"):
        spread(model, files)
    model.hf_device_map["lm_head"] = 1
    assert spread(model, files) == 2


def test_a_missing_package_names_its_extra(text_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'sage_tune\[multi-gpu\]'"):
        load_model("torch", replace(model_files(text_folder), device_map="auto"))


def test_fingerprints_of_older_documents_keep_their_bytes() -> None:
    written = MACHINE.model_dump(mode="json")
    assert "device_map" not in written and "devices" not in written
    spread_out = MACHINE.model_copy(update={"device_map": "auto", "devices": 4})
    assert Fingerprint.model_validate(spread_out.model_dump(mode="json")) == spread_out
    assert [row[:2] for row in MACHINE.differences(spread_out)] == [("device_map", "hard"), ("devices", "hard")]
