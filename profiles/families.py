"""Model families: what is known of each vision-language `model_type` of transformers.

A family stands here when its tree passes were compared with plain ones on a tiny model of its true class
(`tests/families.py`). Any other vision-language family is refused by name. Text-only models need no entry: they
share one interface, and layers that a tree mask does not reach are refused when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from profiles.errors import BadInput
from profiles.frozen import Frozen

Modality = Literal["text", "image", "video"]


class Family(Frozen):
    """One vision-language family."""

    processor: str
    """Class of transformers that expands placeholders."""
    reads: tuple[Modality, ...]
    text_side: str
    """Attribute of the inner model that holds the decoder."""


FAMILIES: Mapping[str, Family] = {
    "idefics3": Family(processor="Idefics3Processor", reads=("text", "image"), text_side="text_model"),
    "llava_next": Family(processor="LlavaNextProcessor", reads=("text", "image"), text_side="language_model"),
    "llava_onevision": Family(
        processor="LlavaOnevisionProcessor", reads=("text", "image", "video"), text_side="language_model"
    ),
    "qwen2_5_vl": Family(processor="Qwen2_5_VLProcessor", reads=("text", "image"), text_side="language_model"),
    "qwen3_vl": Family(processor="Qwen3VLProcessor", reads=("text", "image"), text_side="language_model"),
    "qwen3_vl_moe": Family(processor="Qwen3VLProcessor", reads=("text", "image"), text_side="language_model"),
    "smolvlm": Family(processor="SmolVLMProcessor", reads=("text", "image"), text_side="text_model"),
}


def vision_family(model_type: str, has_vision: bool) -> Family | None:
    """The family of a model, None for a text-only one. Raises BadInput for a vision family that is not known."""
    if not has_vision:
        return None
    if model_type not in FAMILIES:
        raise BadInput(
            f"vision-language models of type '{model_type}' are not supported; known: {', '.join(sorted(FAMILIES))}"
        )
    return FAMILIES[model_type]


def text_side(model: Any) -> Any:
    """The decoder inside a transformers model, without tower and head."""
    family = FAMILIES.get(model.config.model_type)
    return model.model if family is None else getattr(model.model, family.text_side)
