"""Every vision-language family on the torch backend: a tiny random pair of the true classes, loaded like any pair."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from profiles.errors import BadInput
from profiles.families import FAMILIES as KNOWN
from profiles.policy import PolicySource, Tier
from runtime.backends.torch_backend import TorchModel, require_full_attention
from runtime.decode import generate, plain_policy
from runtime.draft_prompts import OwnPromptSession
from runtime.pair import Pair, PairPlan, load_pair
from runtime.policy.compile import compile_policy
from runtime.prompts import Prompt, ask
from tests.conformance import (
    TOLERANCE,
    assert_equal,
    check_backend,
    check_compaction,
    check_tree_equals_paths,
    continue_with,
    open_session,
    scale,
    some_tokens,
    tree_pass,
)
from tests.families import FAMILIES, build_pair, picture, turns

MROPE = [name for name in KNOWN if name.startswith("qwen")]
TREE = compile_policy(PolicySource(tiers=(Tier(depth=3, width=3, nodes=9),)), (1, 2, 4, 8, 16), 4096)
REQUESTS = {
    "image first": turns("#what is it?", images=[picture(1, 100, 70)]),
    "text turn after an image": turns("#what is it?", "a thing", "and why?", images=[picture(1, 100, 70)]),
    "image at a later turn": turns("hello", "yes?", "#what is it?", images=[picture(2, 60, 110)]),
    "two images": turns("##compare", images=[picture(3, 56, 56), picture(4, 112, 60)]),
    "text only": turns("no picture here"),
}


def network(pair: Pair) -> Any:
    """The transformers model of a pair's target."""
    assert isinstance(pair.target, TorchModel)
    return pair.target.model


def test_every_known_family_has_a_tiny_pair() -> None:
    assert set(FAMILIES) == set(KNOWN)


def test_target_and_draft_conform(pair: Pair) -> None:
    prompt = pair.encoder.encode(REQUESTS["image first"])
    assert prompt.modality == "image" and prompt.vision
    check_backend(pair.target, prompt)
    check_backend(pair.draft, prompt)


@pytest.mark.parametrize("case", ["image at a later turn", "two images"])
def test_trees_equal_paths_wherever_the_images_are(pair: Pair, case: str) -> None:
    rng = np.random.default_rng(3)
    prompt = pair.encoder.encode(REQUESTS[case])
    check_tree_equals_paths(pair.target, prompt, rng)
    check_compaction(pair.target, prompt, rng)


def test_speculative_output_is_plain_output(pair: Pair) -> None:
    """One request after another on the same models, so that state left behind by one would show in the next."""
    accepted = 0
    for case, request in REQUESTS.items():
        prompt = pair.encoder.encode(request)
        plain = generate(pair, prompt, plain_policy(), max_new_tokens=48).tokens
        tree = generate(pair, prompt, TREE, max_new_tokens=48)
        assert tree.tokens == plain, case
        assert len(tree.rounds) > 3 or len(plain) < 8, case
        accepted += sum(record.accepted for record in tree.rounds)
    assert accepted > 10, "nothing drafted was accepted: equality says little"


def test_plain_decoding_is_what_transformers_generates(pair: Pair) -> None:
    for case in ("image first", "image at a later turn", "two images", "text only"):
        prompt = pair.encoder.encode(REQUESTS[case])
        ours = generate(pair, prompt, plain_policy(), max_new_tokens=24).tokens
        theirs = network(pair).generate(
            input_ids=torch.from_numpy(prompt.input_ids)[None],
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            **prompt.vision,
            max_new_tokens=24,
            do_sample=False,
        )[0]
        assert ours == theirs[len(prompt) :].tolist(), case


def test_placeholders_are_as_many_as_features(pair: Pair) -> None:
    inner = network(pair).model
    for request in (REQUESTS["image first"], REQUESTS["two images"], turns("#", images=[picture(5, 17, 90)])):
        prompt = pair.encoder.encode(request)
        features = _image_features(inner, prompt)
        assert (prompt.input_ids == inner.config.image_token_id).sum() == features
        # control: the model itself refuses a prompt that is one placeholder short
        first = int(np.argmax(prompt.input_ids == inner.config.image_token_id))
        vision = {k: v[:, 1:] if k == "mm_token_type_ids" else v for k, v in prompt.vision.items()}
        short = Prompt(np.delete(prompt.input_ids, first), vision, "image")
        with pytest.raises((ValueError, RuntimeError, IndexError)):
            pair.target.open(short, len(short))


def _image_features(inner: Any, prompt: Prompt) -> int:
    vision = {k: v for k, v in prompt.vision.items() if k != "mm_token_type_ids"}
    with torch.inference_mode():
        return sum(len(f) for f in inner.get_image_features(**vision).pooler_output)


def test_another_picture_gives_other_logits(pair: Pair) -> None:
    logits = [
        pair.target.open(prompt, len(prompt))[1].logits()
        for prompt in (pair.encoder.encode(turns("#?", images=[picture(seed)])) for seed in (1, 2))
    ]
    assert np.abs(logits[0] - logits[1]).max() > 10 * TOLERANCE * scale(logits[0])


@pytest.mark.parametrize("name", MROPE)
def test_the_rope_offset_belongs_to_the_request(load: Any, name: str) -> None:
    pair: Pair = load(name)
    rng = np.random.default_rng(5)
    seen, text = (pair.encoder.encode(REQUESTS[case]) for case in ("image first", "text only"))
    tokens = some_tokens(pair.target, rng, 8)
    alone = {id(prompt): tree_pass(open_session(pair.target, prompt), tokens) for prompt in (text, seen)}

    first = open_session(pair.target, seen)
    second = open_session(pair.target, text)
    offset: int = first._rope_delta  # type: ignore[attr-defined]
    assert offset < 0 and second._rope_delta == 0  # type: ignore[attr-defined]
    assert_equal(tree_pass(second, tokens), alone[id(text)], "text after an image request")
    assert_equal(tree_pass(first, tokens), alone[id(seen)], "the image request after the text one was opened")

    # control: the offset of another request, or one position off, must show
    for prompt, wrong in ((text, offset), (seen, 0), (seen, offset + 1)):
        session = open_session(pair.target, prompt)
        session._rope_delta = wrong  # type: ignore[attr-defined]
        moved = np.abs(tree_pass(session, tokens) - alone[id(prompt)]).max()
        assert moved > 10 * TOLERANCE * scale(alone[id(prompt)]), (wrong, moved)


def test_a_stale_rope_offset_would_be_found(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the model's offset of the request before is read instead of this request's own."""
    pair: Pair = load("qwen3_vl")
    seen, text = (pair.encoder.encode(REQUESTS[case]) for case in ("image first", "text only"))
    alone = continue_with(open_session(pair.target, text), np.array([70, 71, 72]))
    inner = network(pair).model
    pair.target.open(seen, len(seen))
    stale = inner.rope_deltas
    original = type(inner).forward

    def forgetful(self: Any, *args: Any, **kwargs: Any) -> Any:
        out = original(self, *args, **kwargs)
        self.rope_deltas = stale
        return out

    monkeypatch.setattr(type(inner), "forward", forgetful)
    wrong = continue_with(open_session(pair.target, text), np.array([70, 71, 72]))
    assert np.abs(wrong - alone).max() > 10 * TOLERANCE * scale(alone)


def test_a_draft_with_its_own_tiles_reads_its_own_prompt(load: Any) -> None:
    pair: Pair = load("smolvlm")
    prompt = pair.encoder.encode(REQUESTS["two images"])
    assert prompt.draft is not None and len(prompt.draft) != len(prompt)
    assert prompt.draft.vision["pixel_values"].shape[-1] == 32 and prompt.vision["pixel_values"].shape[-1] == 28
    session, rows = pair.draft.open(prompt, len(prompt) + 40)
    inner, inner_rows = pair.draft._model.open(prompt.draft, len(prompt.draft) + 40)  # type: ignore[attr-defined]
    assert isinstance(session, OwnPromptSession) and session.length == len(prompt)
    np.testing.assert_array_equal(rows.logits(), inner_rows.logits())
    tokens = some_tokens(pair.draft, np.random.default_rng(6), 8)
    for _ in range(2):
        assert_equal(tree_pass(session, tokens), tree_pass(inner, tokens), "a pass by the target's counting")
        for each in (session, inner):
            each.keep(each.length - len(tokens), [0, 1, 4])
    # controls: positions by the target's counting would be wrong, and so would the target's own prompt
    unshifted = tree_pass(inner, tokens, shift=len(prompt) - len(prompt.draft))
    assert np.abs(unshifted - tree_pass(session, tokens)).max() > 10 * TOLERANCE * scale(unshifted)
    with pytest.raises((ValueError, RuntimeError)):
        pair.draft.open(replace(prompt, draft=None), len(prompt))
    assert pair.encoder.encode(REQUESTS["text only"]).draft is None


def test_models_with_one_reading_share_the_prompt(load: Any) -> None:
    assert load("qwen3_vl").encoder.encode(REQUESTS["image first"]).draft is None


def test_videos_of_other_families_are_refused_by_name(load: Any, tmp_path: Path) -> None:
    for i in range(2):
        picture(i).save(tmp_path / f"{i}.png")
    frames = sorted(tmp_path.glob("*.png"))
    for name in ("qwen2_5_vl", "smolvlm", "idefics3"):
        with pytest.raises(BadInput, match="this pair reads text and image only, the request has a video"):
            load(name).encoder.encode(ask("what happens?", video=frames))


def test_pictures_must_match_their_places(pair: Pair) -> None:
    for request, places, given in (
        (turns("#one place", images=[picture(1), picture(2)]), 1, 2),
        (turns("no place", images=[picture(1)]), 0, 1),
        (turns("#no picture"), 1, 0),
    ):
        with pytest.raises(BadInput, match=f"have {places} places of type 'image', {given} were given"):
            pair.encoder.encode(request)


def test_the_begin_token_is_written_once(load: Any) -> None:
    encoder = load("llava_next").encoder
    tokenizer = encoder.tokenizer
    tokenizer.bos_token = "<|endoftext|>"
    template = tokenizer.chat_template
    try:
        request = turns("#x", images=[picture(1)])
        plain = encoder.encode(request)
        encoder.processor.chat_template = "<|endoftext|>" + template
        written = encoder.encode(request)
        assert written.input_ids[0] == tokenizer.bos_token_id and (written.input_ids[1:] == plain.input_ids).all()
    finally:
        encoder.processor.chat_template = template
        tokenizer.bos_token = None


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (transformers.MistralConfig(sliding_window=64), "sliding_attention"),
        (transformers.Qwen2Config(use_sliding_window=True, sliding_window=8, max_window_layers=1), "sliding_attention"),
        (transformers.Llama4TextConfig(), "chunked_attention"),
    ],
)
def test_layers_that_a_tree_mask_does_not_reach_are_refused(config: Any, kind: str) -> None:
    with pytest.raises(BadInput, match=f"x has {kind} layers, whose tree masks are not supported"):
        require_full_attention(config, "x")
    for harmless in (transformers.MistralConfig(sliding_window=None), transformers.Qwen2Config(sliding_window=99)):
        require_full_attention(harmless, "x")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("device_map", [None, "auto"])
@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_conform_on_cuda(tmp_path: Path, name: str, device_map: str | None) -> None:
    spec = build_pair(name, tmp_path)
    pair = load_pair(PairPlan(spec, "torch", "float32", "cuda:0", 1, device_map=device_map))
    check_backend(pair.target, pair.encoder.encode(REQUESTS["image first"]))


def test_a_template_beside_the_processor_is_found(tmp_path: Path) -> None:
    """Older hub folders keep it in chat_template.json, where a tokenizer does not look."""
    spec = build_pair("llava_next", tmp_path)
    for part in ("target", "draft"):
        inside = (tmp_path / part / "chat_template.jinja").read_text()
        (tmp_path / part / "chat_template.jinja").unlink()
        (tmp_path / part / "chat_template.json").write_text(json.dumps({"chat_template": "BEGIN " + inside}))
    pair = load_pair(PairPlan(spec, "torch", "float32", "cpu", 1))
    assert pair.encoder.tokenizer.chat_template is None
    prompt = pair.encoder.encode(turns("#what?", images=[picture(1)]))
    assert pair.decode(prompt.input_ids.tolist()).startswith("BEGIN ")


def test_a_family_that_is_not_known_is_refused(tmp_path: Path) -> None:
    spec = build_pair("qwen3_vl", tmp_path)
    for part in ("target", "draft"):
        config = tmp_path / part / "config.json"
        config.write_text(config.read_text().replace('"qwen3_vl"', '"qwen2_vl"'))
    with pytest.raises(BadInput, match="models of type 'qwen2_vl' are not supported; known: idefics3, llava_next"):
        load_pair(PairPlan(spec, "torch", "float32", "cpu", 1))
