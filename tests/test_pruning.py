"""Draft-side pruning: which rows stay, that the rest is as if hidden, and that the output never notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import BadInput
from profiles.families import FAMILIES as KNOWN
from profiles.families import text_side
from profiles.policy import PolicySource, Tier
from profiles.pruning import MAX_RATIO, NO_PRUNING, Pruning
from profiles.sampling import Sampling
from runtime.backends import torch_backend
from runtime.backends.torch_prefill import decoder_rows
from runtime.decode import generate, plain_policy
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.policy.tree import FloatArray, IntArray, ancestor_mask
from runtime.prompts import Prompt
from runtime.pruning import GUIDED_MASS, guided, kept_count, pruned, spaced
from tests.conformance import DEPTHS, PARENTS, TOLERANCE, assert_equal, check_backend, scale, some_tokens, tree_pass
from tests.families import picture, turns

REQUESTS = {
    "image first": turns("#what is it?", images=[picture(1, 100, 70)]),
    "image at a later turn": turns("hello", "yes?", "#what is it?", images=[picture(2, 60, 110)]),
    "two images": turns("##compare", images=[picture(3, 56, 56), picture(4, 112, 60)]),
}
UNIFORM, GUIDED = Pruning(kind="uniform", ratio=0.7), Pruning(kind="verifier", ratio=0.7)
ratios = st.floats(0.01, MAX_RATIO)


def no_attention() -> FloatArray:
    raise AssertionError("only verifier-guided pruning asks for attention")


def read(prompt: Prompt, pruning: Pruning) -> Prompt:
    """The draft's own reading of a pruned prompt."""
    found = pruned(prompt, pruning, no_attention).draft
    assert found is not None
    return found


@given(n=st.integers(1, 4000), ratio=ratios)
def test_spaced_indices_are_distinct_ordered_and_even(n: int, ratio: float) -> None:
    count = kept_count(n, ratio)
    indices = spaced(n, count)
    assert len(indices) == count and indices[0] >= 0 and indices[-1] < n
    gaps = np.diff(indices)
    assert (gaps >= 1).all() and (not len(gaps) or gaps.max() - gaps.min() <= 1)
    assert count >= 1 and abs(count - (1 - ratio) * n) <= max(0.5, 1 - (1 - ratio) * n) + 1e-9


@given(scores=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=200), ratio=ratios)
def test_guided_indices_hold_the_best_up_to_their_share(scores: list[float], ratio: float) -> None:
    values = np.array(scores, dtype=np.float32)
    count = kept_count(len(values), ratio)
    indices = guided(values, count)
    assert len(indices) == count == len(set(indices.tolist())) and (np.diff(indices) > 0).all()
    order = np.argsort(-values, kind="stable")
    share = np.cumsum(values[order], dtype=np.float64)
    best = order[: min(int((share < GUIDED_MASS * share[-1]).sum()) + 1, count)]
    assert set(best.tolist()) <= set(indices.tolist())


def test_a_ratio_belongs_to_a_kind() -> None:
    for fields in ({"kind": "none", "ratio": 0.5}, {"kind": "uniform"}, {"kind": "uniform", "ratio": 0.96}):
        with pytest.raises(ValueError, match="ratio"):
            Pruning.model_validate(fields)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.9, MAX_RATIO])
def test_as_many_rows_stay_as_are_asked_for(pair: Pair, ratio: float) -> None:
    for case, request in REQUESTS.items():
        prompt = pair.encoder.encode(request)
        whole = prompt.draft or prompt
        found = read(prompt, Pruning(kind="uniform", ratio=ratio))
        assert found.kept is not None and len(whole.visual) > 4, case
        assert found.rows == len(whole) - len(whole.visual) + kept_count(len(whole.visual), ratio), case
        text = np.setdiff1d(np.arange(len(whole)), whole.visual)
        assert np.isin(text, found.kept).all(), "only visual rows may be left out"
        placeholders = np.isin(whole.input_ids[found.kept], whole.input_ids[whole.visual])
        assert placeholders.sum() == kept_count(len(whole.visual), ratio)


@pytest.mark.parametrize("frames", [1, 3, 8])
def test_frames_of_a_video_are_thinned_evenly(load: Callable[[str], Pair], frames: int) -> None:
    pair = load("llava_onevision")
    ask = {"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "?"}]}
    video = [picture(i, 40, 40) for i in range(frames)]
    prompt = pair.encoder.encode(replace(turns("?"), messages=[ask], videos=[video]))
    assert len(prompt.visual) == int((prompt.input_ids == pair.target.model.config.video_token_id).sum())  # type: ignore[attr-defined]
    for ratio in (0.25, 0.5, 0.9):
        found = read(prompt, Pruning(kind="uniform", ratio=ratio))
        assert found.rows == len(prompt) - len(prompt.visual) + kept_count(len(prompt.visual), ratio)
        session, _ = pair.draft.open(replace(prompt, draft=found), len(prompt) + 4)
        assert session.length == len(prompt)


def test_left_out_rows_are_as_if_hidden(pair: Pair) -> None:
    """The reference reads the whole prompt and hides the rows by a mask, in the prefill and in every pass after it:
    another computation with the same meaning, positions included."""
    rng = np.random.default_rng(8)
    for case, request in REQUESTS.items():
        prompt = pair.encoder.encode(request)
        found = read(prompt, UNIFORM)
        assert found.kept is not None
        session, rows = pair.draft.open(replace(prompt, draft=found), len(prompt) + 40)
        tokens = some_tokens(pair.draft, rng, len(PARENTS))
        prefill, tree = hidden_reference(pair, found, tokens)
        assert_equal(rows.logits()[0], prefill, f"{case}: prefill")
        assert_equal(tree_pass(session, tokens), tree, f"{case}: tree pass")
        # controls: the whole prompt, and rows moved together, give other logits
        whole, _ = pair.draft.open(prompt, len(prompt) + 40)
        assert differs(tree_pass(whole, tokens), tree), f"{case}: hiding has no effect"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch_backend, "decoder_rows", moved_rows)
            moved, _ = pair.draft.open(replace(prompt, draft=found), len(prompt) + 40)
        assert differs(tree_pass(moved, tokens), tree), f"{case}: positions have no effect"


def hidden_reference(pair: Pair, found: Prompt, tokens: IntArray) -> tuple[FloatArray, FloatArray]:
    """Logits of the last prompt row and of a tree pass, dropped rows hidden by the attention mask."""
    model = pair.draft._model  # type: ignore[attr-defined]
    assert found.kept is not None
    seen = np.isin(np.arange(len(found)), found.kept)
    mask = np.tril(np.ones((len(found), len(found)), dtype=np.bool_)) & seen
    mask |= np.eye(len(found), dtype=np.bool_)
    additive = torch.where(torch.from_numpy(mask), 0.0, torch.finfo(torch.float32).min)[None, None]

    def hide(_module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, "attention_mask": additive}

    handle = text_side(model.model).register_forward_pre_hook(hide, with_kwargs=True)
    session, rows = model.open(replace(found, kept=None), len(found) + 40)
    handle.remove()
    visible = np.concatenate([np.tile(seen, (len(tokens), 1)), ancestor_mask(PARENTS)], axis=1)
    tree = session.forward(tokens, len(found) + np.array(DEPTHS), visible).logits()
    return rows.logits()[0], tree


@contextmanager
def moved_rows(text: Any, kept: IntArray | None) -> Iterator[None]:
    """Planted: kept rows are moved together, as if nothing had stood between them."""

    def together(_module: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        positions = kwargs["position_ids"]
        return args, {**kwargs, "position_ids": torch.arange(positions.shape[-1]).expand_as(positions)}

    with decoder_rows(text, kept):
        handle = text.register_forward_pre_hook(together, with_kwargs=True)
        yield
        handle.remove()


def differs(a: FloatArray, b: FloatArray) -> bool:
    return bool(np.abs(a - b).max() > 10 * TOLERANCE * scale(b))


def test_a_pruned_draft_conforms(pair: Pair) -> None:
    prompt = pruned(pair.encoder.encode(REQUESTS["two images"]), UNIFORM, no_attention)
    check_backend(pair.draft, prompt)


def test_attention_is_that_of_one_eager_pass(pair: Pair) -> None:
    prompt = pair.encoder.encode(REQUESTS["image at a later turn"])
    session, rows = pair.target.open(prompt, len(prompt) + 40)
    tokens = some_tokens(pair.target, np.random.default_rng(2), len(PARENTS))
    found = session.prompt_attention(prompt)
    network: Any = pair.target.model  # type: ignore[attr-defined]
    assert found.shape == (len(prompt),) and found.sum() == pytest.approx(1.0, abs=1e-4)
    first = int(prompt.visual[-1]) + 1
    seen: list[torch.Tensor] = []
    text = text_side(network)
    handles = [
        layer.self_attn.register_forward_hook(lambda _m, _a, out: seen.append(out[1][0, :, first:].mean((0, 1))))
        for layer in text.layers
    ]
    network.set_attn_implementation("eager")
    with torch.inference_mode():
        network(input_ids=torch.from_numpy(prompt.input_ids)[None], **prompt.vision)
    network.set_attn_implementation("sdpa")
    for handle in handles:
        handle.remove()
    np.testing.assert_allclose(found, torch.stack(seen).mean(0).numpy(), atol=1e-6)
    # asking leaves the session as it was
    fresh, fresh_rows = pair.target.open(prompt, len(prompt) + 40)
    np.testing.assert_array_equal(rows.logits(), fresh_rows.logits())
    np.testing.assert_array_equal(tree_pass(session, tokens), tree_pass(fresh, tokens))


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3)], ids=["greedy", "sampled"])
def test_the_output_never_notices(pair: Pair, sampling: Sampling) -> None:
    for case, request in REQUESTS.items():
        prompt = pair.encoder.encode(request)
        plain = generate(pair, prompt, plain_policy(), max_new_tokens=24, sampling=sampling).tokens
        for pruning in (UNIFORM, GUIDED):
            policy = tree_policy(pruning)
            if pruning is GUIDED and prompt.draft is not None:
                with pytest.raises(BadInput, match="a draft that reads pictures as the target does"):
                    generate(pair, prompt, policy, max_new_tokens=24, sampling=sampling)
                continue
            drafted = generate(pair, prompt, policy, max_new_tokens=24, sampling=sampling)
            assert drafted.tokens == plain, (case, pruning)
            dropped = drafted.rounds[0].context - drafted.rounds[0].draft_context
            visual = len((prompt.draft or prompt).visual)
            assert dropped == visual - kept_count(visual, pruning.ratio)


def test_text_is_never_pruned(pair: Pair) -> None:
    prompt = pair.encoder.encode(turns("no picture here"))
    assert pruned(prompt, UNIFORM, no_attention) is prompt and pruned(prompt, GUIDED, no_attention) is prompt
    record = generate(pair, prompt, tree_policy(UNIFORM), max_new_tokens=12).rounds[0]
    assert record.draft_context == record.context


def test_graphs_prune_uniformly_and_refuse_guidance(onnx_pair: Pair, torch_pair: Pair) -> None:
    request = turns("#what is it?", images=[picture(1, 200, 160)])
    prompt = torch_pair.encoder.encode(request)
    both = [
        pair.draft.open(pruned(prompt, UNIFORM, no_attention), len(prompt) + 8)[1] for pair in (onnx_pair, torch_pair)
    ]
    np.testing.assert_allclose(both[0].logits(), both[1].logits(), atol=1e-3)
    plain = generate(onnx_pair, prompt, plain_policy(), max_new_tokens=32).tokens
    assert generate(onnx_pair, prompt, tree_policy(UNIFORM), max_new_tokens=32).tokens == plain
    with pytest.raises(BadInput, match="gives no attention weights"):
        generate(onnx_pair, prompt, tree_policy(GUIDED), max_new_tokens=32)


def tree_policy(pruning: Pruning) -> Any:
    source = PolicySource(tiers=(Tier(depth=3, width=3, nodes=9),), pruning=pruning)
    return compile_policy(source, (1, 2, 4, 8, 16), 4096)


def test_every_family_that_reads_pictures_is_covered() -> None:
    assert NO_PRUNING.label() == "" and UNIFORM.label() == "uniform 0.7"
    assert all("image" in family.reads for family in KNOWN.values())
