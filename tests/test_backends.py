"""Every backend passes the conformance kit, on text models of the true class and on the embedded VLM pair."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageTextToText

from profiles.errors import BadInput, HardwareMissing, ProfileError
from profiles.graph_contract import read_graph
from profiles.registry import load_pair_spec
from runtime.backends import load_model
from runtime.backends.base import Model, ModelFiles
from runtime.decode import generate, plain_policy
from runtime.pair import Pair
from runtime.prompts import Prompt
from tests.conformance import check_backend
from tuner.calibration import Sample


def test_text_models_conform(text_model: Model) -> None:
    ids = np.random.default_rng(1).integers(3, text_model.token_limit, size=11)
    check_backend(text_model, Prompt(ids, {}, "text"))


@pytest.mark.parametrize("modality", ["image", "video"])
def test_the_embedded_pair_conforms(tiny_pair: Pair, calibration: list[Sample], modality: str) -> None:
    sample = next(s for s in calibration if s.modality == modality)
    prompt = tiny_pair.encoder.encode(sample.request())
    assert prompt.modality == modality and prompt.vision
    check_backend(tiny_pair.target, prompt)
    check_backend(tiny_pair.draft, prompt)


def test_backends_agree_on_the_prefill(onnx_pair: Pair, torch_pair: Pair, calibration: list[Sample]) -> None:
    for sample in calibration[:6]:
        logits = []
        for pair in (onnx_pair, torch_pair):
            prompt = pair.encoder.encode(sample.request())
            logits.append(pair.target.open(prompt, len(prompt))[1].logits())
        np.testing.assert_allclose(logits[0], logits[1], atol=2e-4)


def test_plain_decoding_is_what_transformers_generates(torch_pair: Pair, calibration: list[Sample]) -> None:
    spec = load_pair_spec("tiny-llava-ov")
    model = AutoModelForImageTextToText.from_pretrained(spec.resolve(spec.target), dtype=torch.float32).eval()
    for sample in [s for s in calibration if s.modality == "image"][:3] + [
        s for s in calibration if s.modality == "video"
    ][:2]:
        prompt = torch_pair.encoder.encode(sample.request())
        ours = generate(torch_pair, prompt, plain_policy(), max_new_tokens=40).tokens
        theirs = model.generate(
            input_ids=torch.from_numpy(prompt.input_ids)[None],
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            **prompt.vision,
            max_new_tokens=40,
            do_sample=False,
        )[0]
        assert ours == theirs[-len(ours) :].tolist()


def test_a_changed_or_incomplete_graph_is_refused(text_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such file"):
        read_graph(tmp_path)
    from exports.onnx_graph import export_step_graph
    from runtime.backends.torch_backend import cache_argument, load_transformers

    model = load_transformers(ModelFiles(str(text_folder), None, "float32", "cpu", 1))
    export_step_graph(model, tmp_path, cache_argument(model))
    assert read_graph(tmp_path).opset == 20
    table = tmp_path / "embeddings.npy"
    data = table.read_bytes()
    table.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ProfileError, match="was changed since it was exported"):
        read_graph(tmp_path)
    table.unlink()
    with pytest.raises(ProfileError, match=r"embeddings\.npy is missing"):
        read_graph(tmp_path)


def test_impossible_requests_name_rule_and_value(text_folder: Path) -> None:
    files = ModelFiles(str(text_folder), None, "bfloat16", "cpu", 1)
    with pytest.raises(BadInput, match="backend must be one of onnx, tensorrt, torch, got 'tpu'"):
        load_model("tpu", files)
    with pytest.raises(BadInput, match="runs float32, 'bfloat16'"):
        load_model("onnx", files)
    if not torch.cuda.is_available():
        with pytest.raises(HardwareMissing, match="sees no CUDA device"):
            load_model("torch", ModelFiles(str(text_folder), None, "bfloat16", "cuda:0", 1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_text_models_conform_on_cuda(text_folder: Path) -> None:
    model = load_model("torch", ModelFiles(str(text_folder), None, "float32", "cuda:0", 1))
    ids = np.random.default_rng(1).integers(3, model.token_limit, size=11)
    check_backend(model, Prompt(ids, {}, "text"))
