"""The embedded pair is a real Hugging Face pair: plain loading, one tokenizer, a target that sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaOnevisionForConditionalGeneration,
)

from profiles.errors import BadInput, HardwareMissing
from profiles.registry import PairSpec, load_pair_spec
from runtime.decode import generate, plain_policy
from runtime.pair import Pair, PairPlan, check_same_tokens, load_pair
from runtime.prompts import Request, ask, load_image, load_video
from tuner.calibration import Sample

FOLDER = Path(__file__).resolve().parent.parent / "profiles" / "pairs" / "tiny-llava-ov"


def test_both_models_load_by_plain_from_pretrained_and_stay_small() -> None:
    total = sum(f.stat().st_size for part in ("target", "draft") for f in (FOLDER / part).iterdir())
    assert total <= 30e6
    sizes = {}
    for part in ("target", "draft"):
        model = LlavaOnevisionForConditionalGeneration.from_pretrained(FOLDER / part)
        assert model.dtype == torch.float16, "weights are saved in half precision"
        sizes[part] = model.config.text_config.num_hidden_layers
        assert (FOLDER / part / "tokenizer.json").exists() and (FOLDER / part / "processor_config.json").exists()
    assert sizes["target"] >= 3 * sizes["draft"], "the target is deep, the draft shallow"
    check_same_tokens(*(AutoTokenizer.from_pretrained(FOLDER / p).get_vocab() for p in ("target", "draft")))


def test_the_placeholders_are_as_many_as_the_features(torch_pair: Pair, calibration: list[Sample]) -> None:
    model = torch_pair.target.model.model  # type: ignore[attr-defined]
    for sample in [s for s in calibration if s.modality == "image"][:3]:
        prompt = torch_pair.encoder.encode(sample.request())
        with torch.inference_mode():
            features = model.get_image_features(
                prompt.vision["pixel_values"], prompt.vision["image_sizes"], batch_num_images=torch.tensor([1])
            ).pooler_output
        assert sum(len(f) for f in features) == (prompt.input_ids == model.config.image_token_id).sum()
    video = next(s for s in calibration if s.modality == "video")
    prompt = torch_pair.encoder.encode(video.request())
    frames = len(video.line["video"])
    assert prompt.vision["pixel_values_videos"].shape[:2] == (1, frames)
    assert (prompt.input_ids == model.config.video_token_id).sum() == frames * 9 + 1


def test_another_picture_gives_another_answer(onnx_pair: Pair, calibration: list[Sample]) -> None:
    samples = [s for s in calibration if s.kind == "describe"][:6]
    changed = 0
    for a, b in zip(samples, samples[1:] + samples[:1], strict=True):
        own, other = a.request(), b.request()
        answers = [
            generate(
                onnx_pair,
                onnx_pair.encoder.encode(Request(own.messages, images=images)),
                plain_policy(),
                max_new_tokens=60,
            ).tokens
            for images in (own.images, other.images)
        ]
        changed += answers[0] != answers[1]
    assert changed == len(samples)


def test_unequal_tokenizers_name_the_first_difference() -> None:
    with pytest.raises(BadInput, match="id 1 is 'b' in the target and 'x' in the draft"):
        check_same_tokens({"a": 0, "b": 1, "c": 2}, {"a": 0, "x": 1, "y": 2})


def test_a_pair_too_large_for_this_machine_is_refused_before_loading() -> None:
    plan = PairPlan(load_pair_spec("llava-ov-72b"), "torch", "bfloat16", "cpu", 1, memory_bytes=24 << 30)
    with pytest.raises(HardwareMissing, match=r"needs 151 GiB for its weights alone \(bfloat16\), cpu has 24 GiB"):
        load_pair(plan)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    spec = PairSpec.model_validate(
        {"name": "x", "target": {"path": str(tmp_path)}, "draft": {"path": str(tmp_path)}, "weights_gib": 0.1}
    )
    with pytest.raises(BadInput, match=r"holds no model \(config.json is missing\)"):
        load_pair(PairPlan(spec, "torch", "float32", "cpu", 1))


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_empty_prompts_are_refused(text: str) -> None:
    with pytest.raises(BadInput, match="the prompt is empty"):
        ask(text)


def test_unreadable_pictures_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such image"):
        load_image(tmp_path / "absent.png")
    (tmp_path / "text.png").write_text("not a picture")
    with pytest.raises(BadInput, match="is not an image in a known format"):
        load_image(tmp_path / "text.png")
    Image.new("RGB", (84, 84), "red").save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:90])
    with pytest.raises(BadInput, match=r"cut.png cannot be decoded"):
        load_image(tmp_path / "cut.png")


def test_videos_come_as_folders_animations_or_lists(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (84, 84), (40 * i, 0, 0)) for i in range(4)]
    folder = tmp_path / "frames"
    folder.mkdir()
    for i, frame in enumerate(frames):
        frame.save(folder / f"{i}.png")
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:])
    for paths in ([folder], [tmp_path / "clip.gif"], sorted(folder.iterdir())):
        loaded = load_video(paths)
        assert [np.asarray(f)[0, 0, 0] // 30 for f in loaded] == [0, 1, 2, 4]
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="holds no png, jpg or webp frames"):
        load_video([tmp_path / "empty"])


def test_a_text_pair_refuses_pictures(own_pair_file: Path, tmp_path: Path) -> None:
    pair = load_pair(PairPlan(load_pair_spec(str(own_pair_file)), "torch", "float32", "cpu", 1))
    Image.new("RGB", (84, 84)).save(tmp_path / "x.png")
    with pytest.raises(BadInput, match="reads text only, the request has a image"):
        pair.encoder.encode(ask("what is this?", [tmp_path / "x.png"]))


def test_a_head_smaller_than_the_tokenizer_is_refused(own_pair_file: Path) -> None:
    folder = own_pair_file.parent / "draft"
    config = LlamaConfig.from_pretrained(folder)
    config.vocab_size = 100
    LlamaForCausalLM(config).save_pretrained(folder)
    with pytest.raises(BadInput, match="goes up to 888, the draft has 100 rows"):
        load_pair(PairPlan(load_pair_spec(str(own_pair_file)), "torch", "float32", "cpu", 1))


def test_generation_settings_are_applied_or_refused_by_name(own_pair_file: Path) -> None:
    settings = own_pair_file.parent / "target" / "generation_config.json"
    GenerationConfig(eos_token_id=2, repetition_penalty=1.1).save_pretrained(settings.parent)
    pair = load_pair(PairPlan(load_pair_spec(str(own_pair_file)), "torch", "float32", "cpu", 1))
    assert pair.repetition_penalty == 1.1 and pair.eos_ids == {2}
    GenerationConfig(eos_token_id=2, no_repeat_ngram_size=3).save_pretrained(settings.parent)
    with pytest.raises(BadInput, match="settings of 'own' ask for no_repeat_ngram_size = 3, which cannot be applied"):
        load_pair(PairPlan(load_pair_spec(str(own_pair_file)), "torch", "float32", "cpu", 1))
    own_pair_file.write_text(own_pair_file.read_text() + 'without = ["no_repeat_ngram_size"]\n')
    assert load_pair(PairPlan(load_pair_spec(str(own_pair_file)), "torch", "float32", "cpu", 1)).eos_ids == {2}
