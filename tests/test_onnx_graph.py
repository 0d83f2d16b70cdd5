"""Step graphs as files: precision, weights in a file of their own, truncated models, parity, the user's bundle."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import exports.step_modules as step_modules
from commands.export_graphs import export_graphs
from exports.onnx_graph import export_step_graph, graph_key
from exports.onnx_parity import CASES, Parity
from profiles.errors import BadInput, ModelOutputError, ProfileError
from profiles.graph_contract import GRAPH_FILE, PARITY_FILE, SIDE_FILE, WEIGHTS_FILE, read_graph
from profiles.policy_profile import PolicyProfile
from profiles.store import load_profile, read_json
from runtime.backends import load_model
from runtime.backends.step_inputs import read_embeddings
from runtime.backends.torch_backend import cache_argument
from runtime.pair import Pair
from runtime.prompts import Prompt
from tests.conformance import check_backend
from tests.conftest import model_files

LIBRARY = Path(__file__).resolve().parent.parent / "profiles" / "library"


def tiny_model(dtype: torch.dtype = torch.float32, layers: int = 2) -> Any:
    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=256,
        )
    )
    model.apply(lambda m: torch.nn.init.normal_(m.weight, std=0.3) if isinstance(m, torch.nn.Linear) else None)
    return model.to(dtype).eval()


def test_weights_may_have_a_file_of_their_own(tmp_path: Path) -> None:
    model = tiny_model()
    graph = export_step_graph(model, tmp_path, cache_argument(model), external_from_bytes=1000)
    assert set(graph.files) == {GRAPH_FILE, WEIGHTS_FILE, "embeddings.npy"}
    assert str(Path(sys.prefix)).encode() not in (tmp_path / GRAPH_FILE).read_bytes(), "source lines of this machine"
    onnx_model = load_model("onnx", model_files(tmp_path, tmp_path))
    check_backend(onnx_model, Prompt(np.arange(5, 16), {}, "text"))
    assert read_graph(tmp_path).digest == graph.digest
    changed = graph.model_copy(update={"files": graph.files | {WEIGHTS_FILE: "0" * 64}})
    assert changed.digest != graph.digest, "the digest covers what lies beside the graph"
    (tmp_path / WEIGHTS_FILE).rename(tmp_path / "elsewhere")
    with pytest.raises(ProfileError, match=r"incomplete: step\.onnx\.data is missing"):
        read_graph(tmp_path)
    (tmp_path / SIDE_FILE).unlink()
    with pytest.raises(ProfileError, match=r"holds no step graph: no such file step\.json"):
        read_graph(tmp_path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_graph_has_the_models_precision(dtype: str, tmp_path: Path) -> None:
    model = tiny_model(getattr(torch, dtype))
    graph = export_step_graph(model, tmp_path, cache_argument(model))
    assert graph.dtype == dtype
    table = read_embeddings(tmp_path, graph)
    assert table.dtype == np.float32
    assert np.array_equal(table, model.get_input_embeddings().weight.float().detach().numpy())
    parity = read_json(tmp_path / PARITY_FILE, Parity)
    # it is rounded as its precision says, and by no more
    assert 1e-5 < parity.worst < parity.tolerance and ("widened" in parity.engine) == (dtype == "bfloat16")
    with pytest.raises(BadInput, match=f"is {dtype}, float32 was asked for"):
        load_model("onnx", model_files(tmp_path, tmp_path))


def test_the_first_layers_of_a_model_are_a_graph_like_any_other(tmp_path: Path) -> None:
    model = tiny_model(layers=3)
    model.model.layers = model.model.layers[:1]
    graph = export_step_graph(model, tmp_path, cache_argument(model))
    assert graph.layers == 1 and len(graph.outputs) == 3
    parity = read_json(tmp_path / PARITY_FILE, Parity)
    assert [(case.past, case.n) for case in parity.cases] == [c for past, n in CASES for c in ((0, past), (past, n))]
    assert parity.worst < 1e-5 and all(case.same_argmax == 1 for case in parity.cases)


def test_a_wrong_graph_does_not_pass_for_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = step_modules.two_part_attention

    def wrong(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **more: Any) -> Any:
        return right(module, q, k, v, mask, scaling * 1.01, **more)

    monkeypatch.setattr(step_modules, "two_part_attention", wrong)
    model = tiny_model()
    with pytest.raises(ModelOutputError, match=r"the graph's numbers must be the model's within 0\.0001"):
        export_step_graph(model, tmp_path, cache_argument(model))
    assert (tmp_path / PARITY_FILE).exists() and not (tmp_path / SIDE_FILE).exists()


def test_a_cached_graph_belongs_to_its_weights_precision_and_opset() -> None:
    keys = {graph_key("w", "c"), graph_key("v", "c"), graph_key("w", "c", "float16"), graph_key("w", "c", opset=23)}
    assert len(keys) == 4


@pytest.fixture
def frozen() -> PolicyProfile:
    return load_profile(LIBRARY / "tiny-llava-ov-cpu.sage.json")


def test_a_bundle_runs_as_its_readme_says(onnx_pair: Pair, frozen: PolicyProfile, tmp_path: Path) -> None:
    export_graphs(frozen, "onnx", tmp_path)
    report = export_graphs(frozen, "onnx", tmp_path)  # over an earlier one
    assert [part.role for part in report.parts] == ["target", "draft"]
    assert all(part.parity_worst < 1e-5 and part.same_argmax == 1 for part in report.parts)
    assert report.document() == json.loads(json.dumps(report.document())) and dict(report.lines())["target parity"]
    policy = json.loads((tmp_path / "policy.json").read_text())
    assert policy["profile_digest"] == frozen.digest and policy["policy_digest"] == report.policy_digest
    readme = (tmp_path / "README.md").read_text()
    assert report.policy_digest[:12] in readme
    code = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0]
    # offer the target's own continuation, so that there is something to accept
    session, rows = onnx_pair.target.open(Prompt(np.array([11, 12, 13, 14]), {}, "text"), 64)
    tokens = [int(rows.argmax()[0])]
    for i in range(3):
        rows = session.forward(tokens[-1:], np.array([4 + i]), np.ones((1, 5 + i), dtype=np.bool_))
        tokens.append(int(rows.argmax()[0]))
    other = next(i for i in range(15, 30) if i != tokens[1])
    for drafted, printed in (
        (f"root, {tokens[1]}, {other}, {tokens[2]}", f"accepted [{tokens[1]}, {tokens[2]}] then {tokens[3]}\n"),
        (f"root, {other}, {tokens[1]}, {tokens[2]}", f"accepted [{tokens[1]}] then {tokens[2]}\n"),
    ):
        run = [sys.executable, "-c", code.replace("root, 15, 16, 17", drafted)]
        assert subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == printed


def test_a_profile_of_other_weights_is_refused(frozen: PolicyProfile, tmp_path: Path) -> None:
    draft = frozen.pair.draft.model_copy(update={"weights_digest": "0" * 64})
    other = frozen.model_copy(update={"pair": frozen.pair.model_copy(update={"draft": draft})})
    with pytest.raises(ProfileError, match="tuned for another draft: weights_digest saved 000000000000, found"):
        export_graphs(other, "onnx", tmp_path)
    (tmp_path / "mine.txt").write_text("not to be lost")
    with pytest.raises(BadInput, match="holds something that is no bundle"):
        export_graphs(frozen, "onnx", tmp_path)
