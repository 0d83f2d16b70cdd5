"""TensorRT: engines are parsed and built here, with the profiles that a policy asks for; running needs a GPU.

What the backend does around a plan (padding, pieces, lent caches, replayed passes) is held to the conformance kit
with ONNX Runtime in the plan's place (`tests/fake_plan.py`).
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands.export_graphs import export_graphs
from exports.onnx_graph import export_step_graph
from exports.tensorrt_engine import EngineOptions, build_engine, draft_sizes, pass_shapes, target_sizes
from profiles.engine_contract import CONTEXT_STEP, ENGINE_FILE, PLAN_FILE, EngineRecord, read_engine
from profiles.errors import BadInput, CapacityError, HardwareMissing, ProfileError
from profiles.graph_contract import StepGraph, read_graph
from profiles.policy import PolicySource, Tier
from profiles.registry import PairSpec
from profiles.store import load_profile
from profiles.tensorrt_module import load_tensorrt
from runtime.backends import load_model
from runtime.backends.base import ModelFiles
from runtime.backends.onnx_backend import share_threads
from runtime.backends.tensorrt_backend import TensorrtModel
from runtime.backends.torch_backend import TorchModel, cache_argument, load_transformers
from runtime.decode import plain_policy
from runtime.pair import Pair, PairPlan, load_pair
from runtime.policy.compile import compile_policy
from tests.conformance import check_backend
from tests.conftest import model_files
from tests.fake_plan import OnnxPlan
from tests.families import build_pair, picture, turns
from tuner.machine import core_count

trt = pytest.importorskip("tensorrt_rtx", reason="needs pip install 'sage_tune[tensorrt-rtx]'")
LIBRARY = Path(__file__).resolve().parent.parent / "profiles" / "library"
TIERS = (Tier(depth=4, width=2, nodes=7), Tier(depth=2, width=5, nodes=12))
POLICY = compile_policy(PolicySource(edges=(0.5,), tiers=TIERS), (1, 4, 8, 16), 700)
OPTIONS = EngineOptions(compute_capabilities=("sm_89", "sm_120"), prompt_piece=20)


@dataclass(frozen=True)
class Built:
    """A random vision-language pair, the step graph of its target, and the engine built from it."""

    spec: PairSpec
    graph: Path
    engine: Path

    @property
    def files(self) -> ModelFiles:
        return model_files(Path(self.spec.resolve(self.spec.target)), self.engine)


@pytest.fixture(scope="module", params=["qwen2_5_vl"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp(request.param)
    spec = build_pair(request.param, folder)
    loaded = load_transformers(model_files(Path(spec.resolve(spec.target))))
    export_step_graph(loaded, folder / "graph", cache_argument(loaded))
    build_engine(folder / "graph", folder / "engine", POLICY, target_sizes(POLICY), OPTIONS)
    return Built(spec, folder / "graph", folder / "engine")


def test_sizes_are_those_of_the_policys_passes() -> None:
    assert target_sizes(POLICY) == (1, 4, 8, 16)
    assert draft_sizes(POLICY) == (1, 2, 5)  # frontiers of 2 and 5, catching up with up to 5
    assert target_sizes(plain_policy()) == draft_sizes(plain_policy()) == (1,)


def test_an_engine_has_a_profile_for_every_pass(built: Built) -> None:
    record = read_engine(built.engine)
    graph = read_graph(built.graph)
    assert (built.engine / PLAN_FILE).stat().st_size > 100_000
    assert record.graph_digest == graph.digest and record.builder_version == trt.__version__
    assert record.compute_capabilities == ("sm_89", "sm_120")
    assert record.step_sizes == (1, 4, 8, 16) and record.shapes[-1].n == (1, 10, 20)
    # the tuned context of 700 and the largest tree, in whole steps
    assert record.max_past == 3 * CONTEXT_STEP >= POLICY.context_max + 16
    assert all(shape.past == (CONTEXT_STEP, 2 * CONTEXT_STEP, 3 * CONTEXT_STEP) for shape in record.shapes)


def test_profiles_reach_the_library_as_they_are_recorded(built: Built) -> None:
    from exports.tensorrt_engine import _profile

    graph = read_graph(built.graph)
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    for shape in pass_shapes(graph, POLICY, target_sizes(POLICY), OPTIONS):
        profile = _profile(builder, graph, shape)
        mask, rows = ([tuple(dims) for dims in profile.get_shape(name)] for name in ("mask", "past_value_1"))
        for i in range(3):
            assert mask[i] == (1, 1, shape.n[i], shape.past[i] + shape.n[i])
            assert rows[i] == (shape.past[i], graph.kv_heads, graph.head_dim)


@pytest.mark.slow
def test_the_tiny_pair_gets_engines_for_its_policys_sizes(onnx_pair: Pair, tmp_path: Path) -> None:
    frozen = load_profile(LIBRARY / "tiny-llava-ov-cpu.sage.json")
    options = EngineOptions(compute_capabilities=("sm_89",))
    report = export_graphs(frozen, "tensorrt", tmp_path, engine=options)
    for part, sizes in zip(report.parts, (target_sizes, draft_sizes), strict=True):
        record = read_engine(tmp_path / part.role)
        assert record == part.engine and record.step_sizes == sizes(frozen.policy)
        assert record.policy_digest == report.policy_digest and record.graph_digest == part.digest
        assert record.max_past >= min(frozen.policy.context_max, onnx_pair.target.max_positions)
        assert (tmp_path / part.role / PLAN_FILE).stat().st_size > 100_000
    text = (tmp_path / "README.md").read_text()
    assert trt.__version__ in text and 'load_pair_spec("tiny-llava-ov")' in text and "built, not run" in text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("qwen3_vl_moe", "float32"), ("qwen3_vl", "bfloat16")])
def test_experts_deepstack_and_half_precision_build(name: str, dtype: str, tmp_path: Path) -> None:
    spec = build_pair(name, tmp_path)
    loaded = load_transformers(replace(model_files(Path(spec.resolve(spec.target))), dtype=dtype))
    # weights in a file of their own, and an opset that has newer operators
    export_step_graph(loaded, tmp_path / "graph", cache_argument(loaded), opset=23, external_from_bytes=0)
    record = build_engine(tmp_path / "graph", tmp_path / "engine", POLICY, (1, 8), OPTIONS)
    assert record.graph.dtype == dtype and (tmp_path / "engine" / PLAN_FILE).stat().st_size > 100_000


def replaced_plan(built: Built, monkeypatch: pytest.MonkeyPatch) -> TensorrtModel:
    monkeypatch.setattr("runtime.backends.tensorrt_backend.PlanRunner", OnnxPlan)
    monkeypatch.setattr(OnnxPlan, "graph_folder", built.graph, raising=False)
    share_threads(core_count())
    model = load_model("tensorrt", built.files)
    assert isinstance(model, TensorrtModel)
    return model


def test_the_backend_conforms_around_a_plan(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = replaced_plan(built, monkeypatch)
    pair = load_pair(PairPlan(built.spec, "torch", "float32", "cpu", 1))
    prompt = pair.encoder.encode(turns("#what?", images=[picture(3)]))
    expected = pair.target.open(prompt, len(prompt))[1].logits()
    np.testing.assert_allclose(model.open(prompt, len(prompt))[1].logits(), expected, atol=1e-4)
    assert model.runner.passes == [4] * -(-len(prompt) // 20), "a prompt runs in pieces"
    some = replace(prompt, kept=np.delete(np.arange(len(prompt)), prompt.visual[::2]))
    pruned = [m.open(some, len(prompt))[1].logits() for m in (model, pair.target)]
    np.testing.assert_allclose(pruned[0], pruned[1], atol=1e-4)
    check_backend(model, prompt)
    # many passes, few graphs: sizes and whole steps of context of the caches that were lent at one time
    assert len(model.slots) <= 3 and len(model.runner.captured) <= 12 < len(model.runner.passes)
    gc.collect()
    assert sorted(model.free) == list(range(len(model.slots)))


def test_a_longer_pass_than_the_largest_size_runs_in_pieces(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    model = replaced_plan(built, monkeypatch)
    pair = load_pair(PairPlan(built.spec, "torch", "float32", "cpu", 1))
    prompt = pair.encoder.encode(turns("no picture"))
    tokens = np.random.default_rng(2).integers(20, 200, size=40)
    visible = np.tril(np.ones((40, len(prompt) + 40), dtype=np.bool_), len(prompt))
    positions = len(prompt) + np.arange(40)
    logits = [m.open(prompt, 300)[0].forward(tokens, positions, visible).logits() for m in (model, pair.target)]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)
    with pytest.raises(ValueError, match="only see tokens before it"):
        model.open(prompt, 300)[0].forward(tokens, positions, np.ones_like(visible))
    with pytest.raises(CapacityError, match="cache rows <= rows of the engine must hold, got 800 > 768"):
        model.open(prompt, 800, 100)


def test_a_moved_or_changed_engine_is_refused(built: Built, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"holds no engine: no such file engine\.json"):
        read_engine(tmp_path)
    for name in (ENGINE_FILE, "embeddings.npy", PLAN_FILE):
        (tmp_path / name).write_bytes((built.engine / name).read_bytes())
    read_engine(tmp_path)
    with (tmp_path / PLAN_FILE).open("r+b") as plan:
        plan.write(b"x")
    with pytest.raises(ProfileError, match=r"step\.plan was changed since it was built"):
        read_engine(tmp_path)
    (tmp_path / PLAN_FILE).unlink()
    with pytest.raises(ProfileError, match=r"incomplete: step\.plan is missing"):
        read_engine(tmp_path)


def test_a_plan_for_something_else_names_what_was_saved_and_found(built: Built) -> None:
    record = read_engine(built.engine)
    record.check_architecture("sm_89")
    with pytest.raises(HardwareMissing, match=r"built for sm_89, sm_120 .* this device is sm_90"):
        record.check_architecture("sm_90")
    record.model_copy(update={"hardware_compatibility": "ampere_plus"}).check_architecture("sm_90")
    record.check_version(trt.__version__)
    with pytest.raises(HardwareMissing, match=rf"tensorrt_rtx {trt.__version__}, this machine has 9\.9"):
        record.check_version("9.9")
    with pytest.raises(BadInput, match="is float32, bfloat16 was asked for"):
        load_model("tensorrt", replace(built.files, dtype="bfloat16"))
    with pytest.raises(BadInput, match="needs a built engine"):
        load_model("tensorrt", replace(built.files, graph_folder=None))
    with pytest.raises(HardwareMissing, match=r"runs on a CUDA device \(sm_89, sm_120\), 'cpu' was asked for"):
        load_model("tensorrt", built.files)


def test_impossible_builds_are_refused_by_name(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(**options: Any) -> EngineRecord:
        return build_engine(built.graph, tmp_path, POLICY, (1,), OPTIONS.model_copy(update=options))

    with pytest.raises(BadInput, match=r"builds for sm_75, .* got sm_90; tensorrt builds on other GPUs"):
        build(compute_capabilities=("sm_90",))
    with pytest.raises(BadInput, match="timing_cache belongs to tensorrt"):
        build(timing_cache=tmp_path / "timing")
    if not torch.cuda.is_available():
        with pytest.raises(BadInput, match="no GPU here to build for: name an architecture"):
            build(compute_capabilities=())
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    with pytest.raises(HardwareMissing, match=r"tensorrt is not installed \(pip install 'sage_tune\[tensorrt\]'\)"):
        load_tensorrt("tensorrt")
    assert not list(tmp_path.iterdir())


def test_a_graph_that_the_library_cannot_parse_gives_its_reason(built: Built, tmp_path: Path) -> None:
    for path in built.graph.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "step.onnx").write_bytes(b"no graph")
    side = StepGraph.model_validate_json((tmp_path / "step.json").read_text())
    from profiles.provenance import file_digest

    files = side.files | {"step.onnx": file_digest(tmp_path / "step.onnx")}
    (tmp_path / "step.json").write_text(side.model_copy(update={"files": files}).model_dump_json())
    with pytest.raises(BadInput, match="tensorrt_rtx cannot parse"):
        build_engine(tmp_path, tmp_path / "engine", POLICY, (1,), OPTIONS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("builder", ["tensorrt", "tensorrt_rtx"])
def test_the_backend_conforms_on_a_gpu(built: Built, builder: str, tmp_path: Path) -> None:
    pytest.importorskip(builder)
    options = EngineOptions(builder=builder, prompt_piece=20)  # type: ignore[arg-type]
    build_engine(built.graph, tmp_path, POLICY, target_sizes(POLICY), options)
    model = load_model("tensorrt", replace(built.files, graph_folder=tmp_path, device="cuda:0"))
    pair = load_pair(PairPlan(built.spec, "torch", "float32", "cpu", 1))
    assert isinstance(pair.target, TorchModel)
    prompt = pair.encoder.encode(turns("#what?", images=[picture(3)]))
    expected = pair.target.open(prompt, len(prompt))[1].logits()
    np.testing.assert_allclose(model.open(prompt, len(prompt))[1].logits(), expected, atol=1e-3)
    check_backend(model, prompt)
