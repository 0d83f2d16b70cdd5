"""Real pairs for the tests: the embedded one on both backends, and tiny random transformers models."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from commands.opening import open_pair
from profiles.config import DataConfig, TuneConfig
from profiles.registry import load_pair_spec
from runtime.backends import load_model
from runtime.backends.base import Model, ModelFiles
from runtime.pair import Pair, PairPlan, load_pair
from tests.families import FAMILIES, build_pair
from tuner.calibration import Sample, load_samples
from tuner.machine import core_count
from tuner.plan import plan_pair


@pytest.fixture(scope="session")
def onnx_pair() -> Pair:
    return open_pair(plan_pair(TuneConfig(gpu="cpu", backend="onnx"))[0])


@pytest.fixture(scope="session")
def torch_pair() -> Pair:
    # one thread: small torch operators only wait for each other on more
    return open_pair(plan_pair(TuneConfig(gpu="cpu", backend="torch", threads=1))[0])


@pytest.fixture(scope="session", params=["onnx", "torch"])
def tiny_pair(request: pytest.FixtureRequest) -> Pair:
    pair: Pair = request.getfixturevalue(f"{request.param}_pair")
    return pair


@pytest.fixture(scope="session")
def calibration() -> list[Sample]:
    path = load_pair_spec("tiny-llava-ov").calibration_path()
    assert path is not None
    return load_samples(path, DataConfig())


TEXT_MODELS = {
    # grouped heads, and a head size that is not hidden / heads
    "llama": LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=12,
            max_position_embeddings=256,
        )
    ),
    "qwen2": Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=80,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    ),
}


@pytest.fixture(scope="session", params=sorted(TEXT_MODELS))
def text_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random text model of the true class, saved the Hugging Face way."""
    torch.manual_seed(7)
    model = TEXT_MODELS[request.param]
    model.apply(lambda m: torch.nn.init.normal_(m.weight, std=0.3) if isinstance(m, torch.nn.Linear) else None)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    return folder


def model_files(folder: Path, graph_folder: Path | None = None) -> ModelFiles:
    # the ONNX engine has one thread pool per process: every model of a test run shares its size
    return ModelFiles(str(folder), None, "float32", "cpu", core_count(), graph_folder)


@pytest.fixture(scope="session", params=["torch", "onnx"])
def text_model(request: pytest.FixtureRequest, text_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The tiny text model on every backend."""
    if request.param == "torch":
        return load_model("torch", model_files(text_folder))
    from exports.onnx_graph import export_step_graph
    from runtime.backends.torch_backend import cache_argument, load_transformers

    graphs = tmp_path_factory.mktemp("graph")
    loaded = load_transformers(model_files(text_folder))
    export_step_graph(loaded, graphs, cache_argument(loaded))
    return load_model("onnx", model_files(text_folder, graphs))


@pytest.fixture
def own_pair_file(tmp_path: Path) -> Path:
    """A user's own pair file: two random text models beside it, with the embedded pair's tokenizer."""
    spec = load_pair_spec("tiny-llava-ov")
    tokenizer = AutoTokenizer.from_pretrained(spec.resolve(spec.target))
    for name, layers in (("target", 4), ("draft", 1)):
        torch.manual_seed(layers)
        config = LlamaConfig(
            vocab_size=len(tokenizer) + 8,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
        LlamaForCausalLM(config).save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    path = tmp_path / "own.toml"
    path.write_text(
        'name = "own"\ntarget = { path = "target" }\ndraft = { path = "draft" }\n'
        'modalities = ["text"]\nweights_gib = 0.1\n'
    )
    return path


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """Loads a family's tiny pair, once: tests that need one family do not wait for the others."""

    @cache
    def load(name: str) -> Pair:
        spec = build_pair(name, tmp_path_factory.mktemp(name))
        return load_pair(PairPlan(spec, "torch", "float32", "cpu", 1))

    return load


@pytest.fixture(params=sorted(FAMILIES))
def pair(request: pytest.FixtureRequest, load: Callable[[str], Pair]) -> Pair:
    """The tiny pair of every family."""
    return load(request.param)
