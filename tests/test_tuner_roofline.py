"""Estimates: both roofs reached where they must be, monotone, marked, and from shapes that are the models' own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from profiles.config import GridConfig, TuneConfig
from profiles.errors import BadInput
from profiles.families import text_side
from profiles.measurement import PASS_KINDS
from profiles.model_shape import ModelShape
from profiles.registry import DTYPE_BYTES, GpuSpec, gpu_names, load_gpu_spec, load_pair_spec, model_names
from runtime.model_facts import shape_of
from tests.families import FAMILIES, build_tokenizer
from tuner.roofline import FREE_SLACK, PairFacts, estimate_costs, estimate_pair, free_width, pass_ns

H100 = load_gpu_spec("h100-sxm")
SHAPES = {
    name: source.shape
    for name in model_names()
    for source in [load_pair_spec(name).target]
    if source.shape is not None and source.hub is not None
}
shapes = st.sampled_from(sorted(SHAPES)).map(SHAPES.__getitem__)
gpus = st.sampled_from([n for n in gpu_names() if n != "cpu"]).map(load_gpu_spec)


def test_one_token_is_bound_by_bandwidth_and_many_by_arithmetic() -> None:
    shape = SHAPES["llava-ov-72b"]
    weights_ns = shape.dense_parameters() * 2 / 3350
    assert pass_ns(shape, H100, "bfloat16", 1, 0) == pytest.approx(weights_ns, rel=1e-3)
    n = 4096
    product_ns = 2 * shape.dense_parameters() * n / 989.4e3
    assert pass_ns(shape, H100, "bfloat16", n, 0) == pytest.approx(product_ns, rel=0.1)
    # 71.5e9 weights of two bytes over 3.35 TB/s
    assert 40e6 < pass_ns(shape, H100, "bfloat16", 1, 512) < 46e6


def test_a_cache_row_costs_its_bytes() -> None:
    shape = SHAPES["llava-ov-72b"]
    more = pass_ns(shape, H100, "bfloat16", 1, 5000) - pass_ns(shape, H100, "bfloat16", 1, 4000)
    assert more == pytest.approx(1000 * 2 * 80 * 8 * 128 * 2 / 3350)


@given(shapes, gpus, st.integers(1, 3000), st.integers(0, 30_000), st.integers(1, 500))
def test_more_tokens_or_more_context_are_never_cheaper(
    shape: ModelShape, gpu: GpuSpec, n: int, context: int, more: int
) -> None:
    once = pass_ns(shape, gpu, "bfloat16", n, context)
    assert pass_ns(shape, gpu, "bfloat16", n + more, context) >= once > 0
    assert pass_ns(shape, gpu, "bfloat16", n, context + more) >= once


@given(shapes, gpus, st.integers(0, 20_000))
def test_the_knee_is_where_a_pass_stops_being_free(shape: ModelShape, gpu: GpuSpec, context: int) -> None:
    knee = free_width(shape, gpu, "bfloat16", context)
    limit = (1 + FREE_SLACK) * pass_ns(shape, gpu, "bfloat16", 1, context)
    assert pass_ns(shape, gpu, "bfloat16", knee, context) <= limit
    assert pass_ns(shape, gpu, "bfloat16", knee + 1, context) > limit


def test_a_mixture_of_experts_pays_for_every_verified_token() -> None:
    """The dense 72B verifies a tree for nothing; the mixture reads more experts with every token."""
    moe, dense = SHAPES["qwen3-vl-235b"], SHAPES["llava-ov-72b"]
    assert free_width(dense, H100, "bfloat16", 1000) > 100 and free_width(moe, H100, "bfloat16", 1000) <= 2
    assert moe.read_parameters(1) == pytest.approx(moe.multiplied_parameters())
    everything = moe.dense_parameters() + 128 * moe.expert_parameters()
    assert moe.read_parameters(2) < 2 * moe.read_parameters(1) and moe.read_parameters(4000) == everything
    assert 21e9 < moe.multiplied_parameters() < 23e9, "22B active, as the model is named"


def test_the_table_is_marked_and_complete() -> None:
    facts = PairFacts(SHAPES["llava-ov-72b"], SHAPES["llava-ov-7b"], "bfloat16")
    grid = GridConfig()
    table = estimate_costs(facts, H100, grid, (512, 4096))
    assert table.mark == "estimated" and table.contexts() == [512, 4096]
    assert [table.sizes(kind) for kind in PASS_KINDS] == [[1], list(grid.verify_sizes), [1, 2], list(grid.widths)]
    assert all(p.samples == 0 for p in table.passes) and table.host.rounds == table.host.plain_ns == 0
    assert table.cost_ratio() == pytest.approx(10.0, rel=0.02)


def test_what_has_no_figures_is_not_estimated() -> None:
    shape = SHAPES["llava-ov-7b"]
    with pytest.raises(BadInput, match="'cpu' has no published figures"):
        pass_ns(shape, load_gpu_spec("cpu"), "bfloat16", 1, 0)
    with pytest.raises(BadInput, match=r"estimates are made for bfloat16 and float16, .* not float32"):
        pass_ns(shape, H100, "float32", 1, 0)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_registered_pairs_can_be_estimated(name: str) -> None:
    found = estimate_pair(TuneConfig(model=name, gpu="h200"))
    assert found.document()["mark"] == "estimated" and found.costs.cost_ratio() > 1
    assert found.devices() == -(-found.weights_gib // 141)


def test_a_name_of_several_devices_means_the_first_of_them() -> None:
    assert estimate_pair(TuneConfig(model="llava-ov-7b", gpu="h100")).gpu.name == "h100-sxm"
    assert estimate_pair(TuneConfig(model="llava-ov-7b", gpu="h100-nvl")).gpu.name == "h100-nvl"


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_stated_shapes_and_weights_agree(name: str) -> None:
    """A mistyped layer count or width would not add up to the published size. Beyond the decoder a model holds its
    input embedding (unless it is the head) and a vision tower, which is large only beside a very small decoder."""
    spec = load_pair_spec(name)
    for source in (spec.target, spec.draft):
        shape, weights = source.shape, source.weights_gib
        assert shape is not None and weights is not None and source.revision == "main"
        stated = weights * (1 << 30) / DTYPE_BYTES[spec.dtype]
        decoder = shape.dense_parameters() + shape.experts * shape.expert_parameters()
        embedding, tower = shape.vocab * shape.hidden, 0.8e9
        assert 0.99 * decoder < stated < 1.01 * (decoder + embedding + tower), (source.hub, decoder, stated)


@pytest.mark.parametrize("name", ["llama", *sorted(FAMILIES)])
def test_a_shape_counts_what_a_pass_multiplies(name: str) -> None:
    """Against the true class: every matrix of the decoder and the head, nothing else."""
    if name == "llama":
        config = transformers.LlamaConfig(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
        model = transformers.LlamaForCausalLM(config)
    else:
        config = FAMILIES[name].config(build_tokenizer("").get_vocab(), FAMILIES[name].vision)
        with torch.device("meta"):
            model = transformers.AutoModelForImageTextToText.from_config(config)
    shape = shape_of(config)
    matrices = [w for w in text_side(model).layers.parameters() if w.dim() > 1]
    total = sum(w.numel() for w in matrices) + model.lm_head.weight.numel()
    assert shape.dense_parameters() + shape.experts * shape.expert_parameters() == total


def test_shapes_are_checked() -> None:
    shape = SHAPES["llava-ov-7b"].model_dump()
    for wrong, message in (
        ({"kv_heads": 5}, "heads must be a multiple of kv_heads"),
        ({"experts": 8}, "experts and experts_per_token go together"),
        ({"experts": 2, "experts_per_token": 4}, "experts and experts_per_token go together"),
    ):
        with pytest.raises(ValueError, match=message):
            ModelShape.model_validate(shape | wrong)


def test_facts_of_another_dtype_take_the_same_bytes() -> None:
    facts = PairFacts(SHAPES["llava-ov-72b"], SHAPES["llava-ov-7b"], "bfloat16")
    tables = [estimate_costs(replace(facts, dtype=d), H100, GridConfig(), (64,)) for d in ("bfloat16", "float16")]
    assert tables[0] == tables[1]
