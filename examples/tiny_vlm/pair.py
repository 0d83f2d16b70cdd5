"""The pair's sizes and files: tokenizer, configurations, and model folders the Hugging Face way."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    PreTrainedTokenizerFast,
    Qwen2Config,
    SiglipVisionConfig,
)

from examples.tiny_vlm.texts import LONG_KINDS, fact_words, make_turn
from examples.tiny_vlm.world import PATCH, SIDE, make_chart, make_scene, make_video

END, PAD, START, IMAGE, VIDEO = "<|im_end|>", "<|endoftext|>", "<|im_start|>", "<image>", "<video>"
SPECIALS = (PAD, START, END, IMAGE, VIDEO)
VOCABULARY = 1024
POSITIONS = 2048
IMAGE_TOKENS = 36
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% if message['content'] is string %}{{ '\\n' + message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'image' %}{{ '<image>' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'video' %}{{ '<video>' }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ '\\n' + part['text'] }}{% endfor %}"
    "{% endif %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# The pre-tokenizer's pattern of Qwen2, so that numbers and words split as in the large models.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Shape:
    """The sizes of one model of the pair."""

    hidden: int
    layers: int
    mlp: int
    heads: int
    key_heads: int
    tower_hidden: int
    tower_layers: int
    tower_heads: int = 4


TARGET = Shape(hidden=256, layers=8, mlp=768, heads=8, key_heads=4, tower_hidden=192, tower_layers=4)
DRAFT = Shape(hidden=128, layers=2, mlp=384, heads=4, key_heads=2, tower_hidden=96, tower_layers=3)
SHAPES_BY_ROLE = {"target": TARGET, "draft": DRAFT}


def corpus(samples: int, seed: int = 5) -> Iterable[str]:
    """Texts that the tokenizer is trained on: questions and answers of every kind, and the fact words."""
    rng = Random(seed)
    for _ in range(samples):
        for world in (make_scene(rng), make_chart(rng), make_video(rng)):
            for kind in (*LONG_KINDS, "question", "question"):
                turn = make_turn(rng, world, kind)
                yield turn.question
                yield turn.answer
    for word in fact_words():
        yield from [f" {word}", word, word.capitalize()] * 20 * samples


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE with every fact word as one token, and ChatML-style turns."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(corpus(400), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        extra_special_tokens={"image_token": IMAGE, "video_token": VIDEO},
        model_max_length=POSITIONS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_config(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> LlavaOnevisionConfig:
    """The model configuration of a shape; sizes live here and nowhere else."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    vision = SiglipVisionConfig(
        hidden_size=shape.tower_hidden,
        intermediate_size=4 * shape.tower_hidden,
        num_hidden_layers=shape.tower_layers,
        num_attention_heads=shape.tower_heads,
        image_size=SIDE,
        patch_size=PATCH,
        vision_use_head=False,
    )
    text = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 32) * 32,
        hidden_size=shape.hidden,
        intermediate_size=shape.mlp,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        max_position_embeddings=POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary[END],
        pad_token_id=vocabulary[PAD],
    )
    return LlavaOnevisionConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=vocabulary[IMAGE],
        video_token_index=vocabulary[VIDEO],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_grid_pinpoints=[[SIDE, SIDE]],
        tie_word_embeddings=True,
    )


def build_model(role: str, tokenizer: PreTrainedTokenizerFast) -> LlavaOnevisionForConditionalGeneration:
    return LlavaOnevisionForConditionalGeneration(build_config(SHAPES_BY_ROLE[role], tokenizer)).float()


def processor_files() -> dict[str, dict[str, object]]:
    """What AutoProcessor reads; nearest resampling keeps 84-pixel pictures and their multiples exact."""
    pixels: dict[str, object] = {
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": SIDE, "width": SIDE},
        "resample": 0,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    image = {
        **pixels,
        "do_pad": True,
        "image_grid_pinpoints": [[SIDE, SIDE]],
        "image_processor_type": "LlavaOnevisionImageProcessor",
        "processor_class": "LlavaOnevisionProcessor",
    }
    video = {
        **pixels,
        "do_sample_frames": False,
        "video_processor_type": "LlavaOnevisionVideoProcessor",
        "processor_class": "LlavaOnevisionProcessor",
    }
    processor: dict[str, object] = {
        "processor_class": "LlavaOnevisionProcessor",
        "image_token": IMAGE,
        "video_token": VIDEO,
        "num_image_tokens": IMAGE_TOKENS,
        "vision_aspect_ratio": "anyres_max_9",
        "vision_feature_select_strategy": "full",
    }
    return {
        "preprocessor_config.json": image,
        "video_preprocessor_config.json": video,
        "processor_config.json": processor,
    }


def save_folder(
    folder: Path, model: LlavaOnevisionForConditionalGeneration, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Write a complete model folder in fp16, aside first, then swapped in by renames."""
    aside = folder.with_name(f".{folder.name}.new")
    aside.mkdir(parents=True, exist_ok=True)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    half = LlavaOnevisionForConditionalGeneration(model.config).to(torch.float16)
    half.load_state_dict({name: value.to(torch.float16) for name, value in model.state_dict().items()})
    half.config.dtype = torch.float16
    half.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    half.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    for name, content in processor_files().items():
        (aside / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    (aside / "model.safetensors").chmod(0o644)
    for path in sorted(aside.iterdir(), key=lambda path: path.suffix == ".safetensors"):
        path.replace(folder / path.name)
    aside.rmdir()
