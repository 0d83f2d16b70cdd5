"""Vision-language families on the ONNX backend: the text side as a graph, pictures by the family's own tower."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from exports.onnx_graph import export_step_graph
from profiles.families import FAMILIES as KNOWN
from profiles.policy import PolicySource, Tier
from profiles.pruning import Pruning
from profiles.registry import PairSpec
from runtime.backends.torch_backend import cache_argument, load_transformers
from runtime.decode import generate
from runtime.pair import PairPlan, load_pair
from runtime.policy.compile import compile_policy
from tests.conformance import check_backend
from tests.families import build_pair, picture, turns
from tuner.machine import core_count

TREE = compile_policy(PolicySource(tiers=(Tier(depth=3, width=3, nodes=9),)), (1, 2, 4, 8, 16), 4096)
REQUESTS = (
    turns("hello", "yes?", "##compare", images=[picture(1), picture(2, 70, 90)]),
    turns("no picture"),
    turns("#what?", images=[picture(3)]),
)
PRUNED = TREE.model_copy(update={"pruning": Pruning(kind="uniform", ratio=0.6)})
EVERYDAY = ("qwen3_vl_moe",)
"""What no other model of the tests has: three position axes, DeepStack and experts."""


def check_family(spec: PairSpec, folder: Path) -> None:
    """Conformance of the target's graph, and the prefills, rounds and tokens of the torch backend."""
    plan = PairPlan(spec, "onnx", "float32", "cpu", core_count())
    for role, source in (("target", spec.target), ("draft", spec.draft)):
        loaded = load_transformers(plan.files(source, None))
        export_step_graph(loaded, folder / f"{role}-graph", cache_argument(loaded))
    graphs = load_pair(plan, (folder / "target-graph", folder / "draft-graph"))
    torch_pair = load_pair(PairPlan(spec, "torch", "float32", "cpu", 1))
    accepted = 0
    for request in REQUESTS:
        prompt = torch_pair.encoder.encode(request)
        logits = [pair.target.open(prompt, len(prompt))[1].logits() for pair in (graphs, torch_pair)]
        np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)
        for policy in (TREE, PRUNED):
            ours, theirs = (generate(pair, prompt, policy, max_new_tokens=24) for pair in (graphs, torch_pair))
            assert ours.tokens == theirs.tokens
            assert [(r.position, r.nodes, r.accepted) for r in ours.rounds] == [
                (r.position, r.nodes, r.accepted) for r in theirs.rounds
            ]
            accepted += sum(record.accepted for record in ours.rounds)
    assert accepted > 3, "nothing drafted was accepted: equal rounds say little"
    check_backend(graphs.target, prompt)


@pytest.mark.parametrize("name", EVERYDAY)
def test_a_family_conforms_as_a_graph(name: str, tmp_path: Path) -> None:
    check_family(build_pair(name, tmp_path), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN.keys() - set(EVERYDAY)))
def test_every_other_family_conforms_as_a_graph(name: str, tmp_path: Path) -> None:
    check_family(build_pair(name, tmp_path), tmp_path)
