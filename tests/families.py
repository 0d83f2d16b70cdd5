"""Tiny random pairs of every supported family: the true transformers classes, processors and file layout.

Two layers and a hidden size of 32; a byte-level tokenizer; pictures of a few patches. A draft is its target with
some noise on the weights, so that drafted paths are accepted now and then.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from profiles.registry import PairSpec, load_pair_spec
from runtime.prompts import Request

END, START = "<|im_end|>", "<|im_start|>"
SPECIALS = (
    "<|endoftext|>",
    START,
    END,
    "<image>",
    "<video>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
)
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
NORMALISED: dict[str, Any] = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


@dataclass(frozen=True)
class TinyFamily:
    """How one family's tiny pair is built. `config` takes the vocabulary (token to id) and the vision settings."""

    config: Callable[[dict[str, int], dict[str, Any]], Any]
    images: dict[str, Any]
    """preprocessor_config.json"""
    processor: dict[str, Any]
    """processor_config.json, which some families are published without"""
    vision: dict[str, Any] = field(default_factory=dict)
    markup: str = "<image>"
    draft: TinyFamily | None = None
    """Another layout for the draft; None builds it like the target."""


def _siglip(**sizes: int) -> dict[str, Any]:
    return {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, **sizes}


def _llava(kind: str, tower: str, text: str) -> Callable[[dict[str, int], dict[str, Any]], Any]:
    def build(vocabulary: dict[str, int], vision: dict[str, Any]) -> Any:
        extra = {} if kind == "LlavaNextConfig" else {"video_token_index": vocabulary["<video>"]}
        return getattr(transformers, kind)(
            vision_config={"model_type": tower, **vision},
            text_config={"model_type": text, "vocab_size": len(vocabulary), **TEXT},
            image_token_index=vocabulary["<image>"],
            image_grid_pinpoints=[[28, 56], [56, 28], [56, 56]],
            **extra,
        )

    return build


def _qwen(kind: str, **text: Any) -> Callable[[dict[str, int], dict[str, Any]], Any]:
    def build(vocabulary: dict[str, int], vision: dict[str, Any]) -> Any:
        sizes = TEXT | {"vocab_size": len(vocabulary), "head_dim": 16} | text
        sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
        return getattr(transformers, kind)(
            vision_config={"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, **vision},
            text_config=sizes,
            image_token_id=vocabulary["<|image_pad|>"],
            video_token_id=vocabulary["<|video_pad|>"],
            vision_start_token_id=vocabulary["<|vision_start|>"],
            vision_end_token_id=vocabulary["<|vision_end|>"],
        )

    return build


def _idefics(kind: str, scale_factor: int) -> Callable[[dict[str, int], dict[str, Any]], Any]:
    def build(vocabulary: dict[str, int], vision: dict[str, Any]) -> Any:
        return getattr(transformers, kind)(
            vision_config=vision,
            text_config={"model_type": "llama", "vocab_size": len(vocabulary), "pad_token_id": 0, **TEXT},
            image_token_id=vocabulary["<image>"],
            scale_factor=scale_factor,
        )

    return build


def _tiles(kind: str, side: int) -> dict[str, Any]:
    return NORMALISED | {
        "image_processor_type": f"{kind}ImageProcessor",
        "size": {"longest_edge": 2 * side},
        "max_image_size": {"longest_edge": side},
    }


def _patches(patch: int) -> dict[str, Any]:
    return NORMALISED | {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": patch,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": (2 * patch) ** 2, "longest_edge": 12 * (2 * patch) ** 2},
    }


QWEN_MARKUP = "<|vision_start|><|image_pad|><|vision_end|>"
QWEN3_VISION = {
    "patch_size": 16,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
}
FAMILIES: dict[str, TinyFamily] = {
    "llava_onevision": TinyFamily(
        _llava("LlavaOnevisionConfig", "siglip_vision_model", "qwen2"),
        NORMALISED
        | {
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": 28, "width": 28},
            "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
        },
        {"num_image_tokens": 4, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_9"},
        _siglip(image_size=28, patch_size=14) | {"vision_use_head": False},
    ),
    "llava_next": TinyFamily(
        _llava("LlavaNextConfig", "clip_vision_model", "llama"),
        NORMALISED
        | {
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"shortest_edge": 28},
            "crop_size": {"height": 28, "width": 28},
            "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]],
        },
        {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        _siglip(image_size=28, patch_size=14) | {"projection_dim": 32},
    ),
    "qwen2_5_vl": TinyFamily(
        _qwen("Qwen2_5_VLConfig", hidden_size=64),
        _patches(14),
        {},
        {"patch_size": 14, "out_hidden_size": 64, "window_size": 56, "fullatt_block_indexes": [1]},
        QWEN_MARKUP,
    ),
    "qwen3_vl": TinyFamily(_qwen("Qwen3VLConfig"), _patches(16), {}, QWEN3_VISION, QWEN_MARKUP),
    "qwen3_vl_moe": TinyFamily(
        _qwen("Qwen3VLMoeConfig", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
        _patches(16),
        {},
        QWEN3_VISION,
        QWEN_MARKUP,
    ),
    "idefics3": TinyFamily(
        _idefics("Idefics3Config", 2),
        _tiles("Idefics3", 28),
        {"image_seq_len": 1},
        _siglip(image_size=28, patch_size=14),
    ),
    # as published: the small model cuts larger tiles, and a tile is another number of tokens
    "smolvlm": TinyFamily(
        _idefics("SmolVLMConfig", 2),
        _tiles("SmolVLM", 28),
        {"image_seq_len": 1},
        _siglip(image_size=28, patch_size=14),
        draft=TinyFamily(
            _idefics("SmolVLMConfig", 2),
            _tiles("SmolVLM", 32),
            {"image_seq_len": 4},
            _siglip(image_size=32, patch_size=8),
        ),
    ),
}


def build_tokenizer(markup: str) -> PreTrainedTokenizerFast:
    """One token per byte, the specials of every family, and ChatML turns with the family's picture markup."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*SPECIALS, *alphabet])}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=SPECIALS[0],
        extra_special_tokens={f"special_{i}": token for i, token in enumerate(SPECIALS)},
    )
    tokenizer.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}" + markup + "{% elif part['type'] == 'video' %}<video>"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return tokenizer


def build_pair(name: str, folder: Path, noise: float = 0.03) -> PairSpec:
    """Write target, draft and the pair's TOML into `folder`; returns the pair as the registry reads it."""
    family = FAMILIES[name]
    target = build_model(name, family, folder / "target")
    draft = build_model(name, family.draft or family, folder / "draft")
    weights = dict(target.state_dict())
    with torch.no_grad():
        for key, value in draft.state_dict().items():
            if key in weights and weights[key].shape == value.shape:
                value.copy_(weights[key])
            value.add_(noise * torch.randn_like(value) * value.std())
    draft.save_pretrained(folder / "draft")
    (folder / "pair.toml").write_text(
        f'name = "tiny-{name}"\nfamily = "{name}"\n[target]\npath = "target"\n[draft]\npath = "draft"\n'
    )
    return load_pair_spec(str(folder / "pair.toml"))


def build_model(name: str, family: TinyFamily, folder: Path) -> Any:
    """One model with random weights, saved the Hugging Face way with tokenizer and processor files."""
    tokenizer = build_tokenizer(family.markup)
    config = family.config(tokenizer.get_vocab(), family.vision)
    torch.manual_seed(11)
    model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.apply(_spread)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(family.images))
    if family.processor:
        (folder / "processor_config.json").write_text(json.dumps(family.processor))
    return model


def _spread(module: torch.nn.Module) -> None:
    """Larger weights than the library's: logits of the usual scale, so that errors show."""
    if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
        torch.nn.init.normal_(module.weight, std=0.3)


def picture(seed: int, width: int = 56, height: int = 40) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def turns(*messages: str, images: list[Image.Image] | None = None) -> Request:
    """Alternating user and assistant messages; every `#` at the head of one stands for a picture."""
    built = []
    for i, text in enumerate(messages):
        marks = len(text) - len(text.lstrip("#"))
        content: list[dict[str, Any]] = [{"type": "image"} for _ in range(marks)]
        content.append({"type": "text", "text": text[marks:]})
        built.append({"role": ("user", "assistant")[i % 2], "content": content})
    return Request(messages=built, images=images or [])
