"""Vision-language families on the ONNX backend: the text side as a graph, pictures by the family's own tower."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from profiles.errors import BadInput
from profiles.families import FAMILIES as KNOWN
from profiles.registry import PairSpec
from runtime.backends import load_model
from runtime.backends.torch_backend import cache_argument, load_transformers
from runtime.model_facts import read_config
from runtime.pair import PairPlan, load_pair
from tests.conformance import check_backend
from tests.conftest import model_files
from tests.families import build_pair, picture, turns

EXPORTABLE = sorted(name for name, family in KNOWN.items() if not family.no_graph)


def check_family(spec: PairSpec, folder: Path) -> None:
    """Conformance of the target's graph, and the same prefill as the torch backend's."""
    from exports.onnx_graph import export_step_graph

    torch_pair = load_pair(PairPlan(spec, "torch", "float32", "cpu", 1))
    files = model_files(Path(spec.resolve(spec.target)), folder / "graph")
    loaded = load_transformers(files)
    export_step_graph(loaded, folder / "graph", cache_argument(loaded))
    model = load_model("onnx", files)
    for request in (
        turns("hello", "yes?", "##compare", images=[picture(1), picture(2, 70, 90)]),
        turns("no picture"),
        turns("#what?", images=[picture(3)]),
    ):
        prompt = torch_pair.encoder.encode(request)
        logits = [m.open(prompt, len(prompt))[1].logits() for m in (model, torch_pair.target)]
        np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)
    check_backend(model, prompt)


def test_smolvlm_conforms_as_a_graph(tmp_path: Path) -> None:
    check_family(build_pair("smolvlm", tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXPORTABLE if name != "smolvlm"])
def test_exportable_families_conform_as_graphs(name: str, tmp_path: Path) -> None:
    check_family(build_pair(name, tmp_path), tmp_path)


@pytest.mark.parametrize("name", sorted(set(KNOWN) - set(EXPORTABLE)))
def test_other_families_are_refused_by_name(name: str, tmp_path: Path) -> None:
    from exports.onnx_graph import export_step_graph

    spec = build_pair(name, tmp_path)
    loaded = load_transformers(model_files(Path(spec.resolve(spec.target))))
    with pytest.raises(BadInput, match=f"'{name}' has no step graph: .* use --backend torch"):
        export_step_graph(loaded, tmp_path / "graph", cache_argument(loaded))
    assert not (tmp_path / "graph").exists() and read_config(spec, spec.target).model_type == name
