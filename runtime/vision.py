"""The vision side of a prompt: processors that need no torchvision, and embeddings for graph engines.

Every family's own processor of transformers expands the placeholders; its pictures go through the Pillow image
processor. The stock video processors insist on torchvision. LLaVA-OneVision's frames need nothing of it: they
are resized and normalised like pictures. The same code runs with and without torchvision, so a profile does
not depend on which one is installed.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoImageProcessor
from transformers.feature_extraction_utils import BatchFeature

from profiles.errors import BadInput
from profiles.families import FAMILIES, text_side
from runtime.policy.tree import FloatArray
from runtime.prompts import EmbeddedPrompt, Prompt


class FrameProcessor:
    """Video frames to `pixel_values_videos` [videos, frames, 3, height, width] by the picture processor's rules."""

    def __init__(self, image_processor: Any) -> None:
        self._images = image_processor

    def __call__(self, videos: list[list[Any]], **_: Any) -> BatchFeature:
        pixels = [np.stack([self._frame(frame) for frame in frames]) for frames in videos]
        return BatchFeature({"pixel_values_videos": torch.from_numpy(np.stack(pixels))})

    def _frame(self, frame: Any) -> FloatArray:
        rule = self._images
        image = np.asarray(frame.convert("RGB")).transpose(2, 0, 1)
        image = rule.resize(image=image, size=rule.size, resample=rule.resample)
        image = rule.rescale(image=image, scale=rule.rescale_factor)
        image = rule.normalize(image=image, mean=rule.image_mean, std=rule.image_std)
        return np.asarray(image, dtype=np.float32)


class NoFrames:
    """Stands where a family's processor wants a video processor; the family's videos are not read."""


class _TakesFrames:
    """Mixed into a processor of transformers, so that it accepts the video parts of this file."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        if isinstance(argument, FrameProcessor | NoFrames):
            return type(argument)
        return super().check_argument_for_proper_class(argument_name, argument)  # type: ignore[misc]


def load_processor(source: str, revision: str | None, model_type: str, tokenizer: Any) -> Any | None:
    """The processor of a model folder or hub id, with pictures read by Pillow; None for a text-only model.

    Raises BadInput when a family's processor needs a package that is missing.
    """
    family = FAMILIES.get(model_type)
    if family is None:
        return None
    kind: Any = getattr(transformers, family.processor)
    parameters = inspect.signature(kind.__init__).parameters
    settings, _ = kind.get_processor_dict(source, revision=revision)
    images = AutoImageProcessor.from_pretrained(source, revision=revision, backend="pil")
    parts = {"image_processor": images, "tokenizer": tokenizer}
    if "video_processor" in parameters:
        parts["video_processor"] = FrameProcessor(images) if "video" in family.reads else NoFrames()
        kind = type(f"Frames{family.processor}", (_TakesFrames, kind), {})
    own = {name: settings[name] for name in parameters.keys() & settings.keys() - parts.keys() - {"chat_template"}}
    try:
        return kind(**parts, **own, chat_template=settings.get("chat_template") or tokenizer.chat_template)
    except ImportError as error:
        raise BadInput(
            f"the processor of '{model_type}' needs a package that is not installed (pip install "
            f"'sage_tune[vision]'): {str(error).strip().splitlines()[0]}"
        ) from error


def reading_rules(processor: Any) -> dict[str, Any]:
    """Everything that decides which pixels and how many placeholders a picture becomes."""
    arguments = inspect.signature(type(processor).__init__).parameters.keys() - {"chat_template"}
    plain = {k: v for k, v in vars(processor).items() if k in arguments and isinstance(v, int | float | str)}
    return {**plain, "processor": type(processor).__name__, "images": processor.image_processor.to_dict()}


class _Captured(Exception):
    """Carries the language model's inputs out of a forward pass that has done its vision part."""

    def __init__(self, inputs: dict[str, Any]) -> None:
        super().__init__()
        self.inputs = inputs


class PromptEmbedder:
    """Prompts with pictures to language-model inputs, for engines whose graph holds the text side only.

    The family's own forward pass merges the picture features and counts the positions; it is cut off where the
    language model starts, so its decoder layers are dropped to free their memory; the rest runs on `device`.
    """

    def __init__(self, model: Any, device: str) -> None:
        text = text_side(model)
        text.layers = torch.nn.ModuleList()
        self._model, self._device = model.to(device), device
        text.register_forward_pre_hook(self._capture, with_kwargs=True)

    @staticmethod
    def _capture(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        raise _Captured(kwargs)

    def __call__(self, prompt: Prompt) -> EmbeddedPrompt:
        """One prompt, which must have vision inputs."""
        inner, ids = self._model.model, torch.from_numpy(prompt.input_ids)[None].to(self._device)
        vision = {
            name: value.to(self._device, self._model.dtype if name.startswith("pixel_values") else None)
            for name, value in prompt.vision.items()
        }
        if hasattr(inner, "rope_deltas"):
            inner.rope_deltas = None  # state of the prompt before
        with torch.inference_mode():
            try:
                self._model(input_ids=ids, **vision, use_cache=False)
            except _Captured as captured:
                return self._embedded(captured.inputs)
        raise RuntimeError("the language model was never reached; the family merges its inputs elsewhere")

    def _embedded(self, inputs: dict[str, Any]) -> EmbeddedPrompt:
        embeds = inputs["inputs_embeds"][0].float().cpu()
        deltas = getattr(self._model.model, "rope_deltas", None)
        positions = torch.arange(len(embeds))[None]
        if deltas is not None:
            positions = inputs["position_ids"][:, 0].cpu()
        features, deepstack = inputs.get("deepstack_visual_embeds"), None
        if features is not None:
            deepstack = torch.zeros(len(features), *embeds.shape)
            deepstack[:, inputs["visual_pos_masks"][0].cpu()] = torch.stack(list(features)).float().cpu()
        return EmbeddedPrompt(
            embeds=np.ascontiguousarray(embeds.numpy()),
            positions=np.ascontiguousarray(positions.numpy()),
            rope_delta=0 if deltas is None else int(deltas.flatten()[0]),
            deepstack=None if deepstack is None else deepstack.numpy(),
        )
