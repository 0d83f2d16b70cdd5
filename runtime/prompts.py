"""Requests and prompts: what a user asks, and what a model is fed.

A `Request` is chat messages with images or video frames; a `Prompt` is the token ids with every placeholder
expanded plus the tensors that the vision tower takes. Images go into the prefill only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from profiles.errors import BadInput
from profiles.families import Modality
from runtime.policy.tree import FloatArray, IntArray

VIDEO_MAX_FRAMES = 64


@dataclass(frozen=True)
class Request:
    """Chat messages in the Hugging Face form; `{"type": "image"}` entries take `images` in order."""

    messages: list[dict[str, Any]]
    images: list[Image.Image] = field(default_factory=list)
    videos: list[list[Image.Image]] = field(default_factory=list)

    @property
    def modality(self) -> Modality:
        return "video" if self.videos else "image" if self.images else "text"

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages of a text request with strings as contents: templates of text-only models know no parts."""
        return [
            m | {"content": "".join(part["text"] for part in m["content"])} if isinstance(m.get("content"), list) else m
            for m in self.messages
        ]

    def places(self, kind: str) -> int:
        """Entries of a kind in the messages."""
        contents = [m.get("content") for m in self.messages]
        return sum(part.get("type") == kind for c in contents if isinstance(c, list) for part in c)


@dataclass(frozen=True)
class Prompt:
    """Token ids [L] with placeholders expanded, and the vision inputs (torch tensors by argument name)."""

    input_ids: IntArray
    vision: dict[str, Any]
    modality: Modality
    visual: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Rows that stand for pictures or frames, ascending."""
    kept: IntArray | None = None
    """Rows that enter the decoder, ascending; None for all. The vision tower sees every one."""
    draft: Prompt | None = None
    """The same request as the draft reads it, where it reads other placeholders than the target, or fewer."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def rows(self) -> int:
        """Rows that a prefill puts into the cache."""
        return len(self) if self.kept is None else len(self.kept)

    @property
    def read_ids(self) -> IntArray:
        """[rows] their token ids."""
        return self.input_ids if self.kept is None else self.input_ids[self.kept]

    @property
    def draft_dropped(self) -> int:
        """Visual rows that the draft does without."""
        return 0 if self.draft is None else len(self.draft) - self.draft.rows

    def extended(self, tokens: IntArray) -> Prompt:
        """The prompt followed by text tokens [n], for the draft's own reading as well. Vision inputs with an entry per
        token (token types) grow by the entry of text, 0."""
        length, more = len(self), len(tokens)
        vision = {
            name: value if tuple(value.shape) != (1, length) else _padded(value, more)
            for name, value in self.vision.items()
        }
        ids = np.concatenate([self.input_ids, np.asarray(tokens, dtype=np.int64)])
        kept = None if self.kept is None else np.concatenate([self.kept, np.arange(length, length + more)])
        draft = None if self.draft is None else self.draft.extended(tokens)
        return Prompt(ids, vision, self.modality, self.visual, kept, draft)


@dataclass(frozen=True)
class EmbeddedPrompt:
    """A prompt as a language model's inputs, for engines that hold the text side only."""

    embeds: FloatArray
    """[L, hidden] float32, picture features in their places."""
    positions: IntArray
    """[axes, L] rotary positions: one axis, or the three of M-RoPE."""
    rope_delta: int = 0
    """What is added to the position of every later token: pictures take fewer positions than rows."""
    deepstack: FloatArray | None = None
    """[layers, L, hidden] added to the hidden states after the first layers; None when the family has none."""

    def __len__(self) -> int:
        return len(self.embeds)

    def subset(self, rows: IntArray) -> EmbeddedPrompt:
        """Some rows [k], ascending, at their own positions."""
        deepstack = None if self.deepstack is None else self.deepstack[:, rows]
        return EmbeddedPrompt(self.embeds[rows], self.positions[:, rows], self.rope_delta, deepstack)


def _padded(rows: Any, more: int) -> Any:
    """[1, L] tensor to [1, L + more], filled with zeros."""
    longer = rows.new_zeros((1, rows.shape[1] + more))
    longer[:, : rows.shape[1]] = rows
    return longer


def ask(text: str, images: Sequence[Path] = (), video: Sequence[Path] = ()) -> Request:
    """A one-turn request. Raises BadInput on an empty prompt or an unreadable picture."""
    if not text.strip():
        raise BadInput("the prompt is empty; a prompt needs at least one character that is not a space")
    return Request(
        messages=question(text, len(images), bool(video)),
        images=[load_image(path) for path in images],
        videos=[load_video(video)] if video else [],
    )


def question(text: str, images: int, video: bool) -> list[dict[str, Any]]:
    """One user turn: places for its pictures, then the text."""
    content: list[dict[str, Any]] = [{"type": "image"} for _ in range(images)]
    content += [{"type": "video"}] if video else []
    content.append({"type": "text", "text": text})
    return [{"role": "user", "content": content}]


def load_image(path: Path) -> Image.Image:
    """Decode a picture fully, as RGB. Raises BadInput naming the file and what is wrong with it."""
    if not path.exists():
        raise BadInput(f"no such image: {path}")
    try:
        with Image.open(path) as image:
            image.load()
            return image.convert("RGB")
    except UnidentifiedImageError:
        raise BadInput(f"{path} is not an image in a known format") from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadInput(f"{path} cannot be decoded: {error}") from error


def load_video(paths: Sequence[Path]) -> list[Image.Image]:
    """Frames of a video: a list of pictures, one folder of pictures, or one animated picture (GIF, WebP)."""
    if len(paths) == 1 and paths[0].is_dir():
        paths = sorted(p for p in paths[0].iterdir() if p.suffix.lower() in {".png", ".jpg", ".jpeg", ".webp"})
        if not paths:
            raise BadInput("the video folder holds no png, jpg or webp frames")
    frames = _animation(paths[0]) if len(paths) == 1 else [load_image(path) for path in paths]
    if not 1 <= len(frames) <= VIDEO_MAX_FRAMES:
        raise BadInput(f"a video must have 1 to {VIDEO_MAX_FRAMES} frames, got {len(frames)}; sample it first")
    return frames


def _animation(path: Path) -> list[Image.Image]:
    load_image(path)  # one place decides what an unreadable picture is
    frames = []
    with Image.open(path) as image:
        for i in range(min(getattr(image, "n_frames", 1), VIDEO_MAX_FRAMES + 1)):
            image.seek(i)
            frames.append(image.convert("RGB"))
    return frames


class PromptEncoder:
    """Messages to prompts, through the pair's own tokenizer, chat template and processor.

    `reads` is what the pair's family takes, `placeholders` are the ids that stand for pictures and frames;
    `draft_processor` is given when the draft reads pictures by rules of its own.
    """

    def __init__(
        self,
        tokenizer: Any,
        processor: Any | None,
        draft_processor: Any | None = None,
        reads: Sequence[Modality] = ("text",),
        placeholders: Iterable[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.processor = processor
        self._draft_processor = draft_processor
        self._reads = reads
        self._placeholders = list(placeholders)

    def encode(self, request: Request) -> Prompt:
        """Raises BadInput for a modality that the pair does not read, pictures that do not match their places in
        the messages, or a prompt without tokens."""
        if request.modality not in self._reads:
            read = "text only" if self.processor is None else f"{' and '.join(self._reads)} only"
            raise BadInput(f"this pair reads {read}, the request has a {request.modality}")
        for kind, given in (("image", request.images), ("video", request.videos)):
            places = request.places(kind)
            if places != len(given):
                raise BadInput(f"the messages have {places} places of type '{kind}', {len(given)} were given")
        template = chat_template(self.tokenizer, self.processor)
        if template is None:
            raise BadInput("the pair has no chat template; messages cannot be turned into a prompt")
        messages = request.messages if self.processor is not None else request.plain_messages()
        text = self.tokenizer.apply_chat_template(
            messages, chat_template=template, add_generation_prompt=True, tokenize=False
        )
        if request.modality == "text":
            ids = np.asarray(self.tokenizer(text, **self._special(text))["input_ids"], dtype=np.int64)
            prompt = Prompt(ids, {}, "text")
        else:
            prompt = self._expand(self.processor, text, request)
            if self._draft_processor is not None:
                prompt = replace(prompt, draft=self._expand(self._draft_processor, text, request))
        if not len(prompt):
            raise BadInput("the prompt has no tokens")
        return prompt

    def _expand(self, processor: Any, text: str, request: Request) -> Prompt:
        """A model's own placeholders and pixels."""
        try:
            made = processor(
                text=[text],
                images=request.images or None,
                videos=request.videos or None,
                return_tensors="pt",
                **self._special(text),
            )
        except ValueError as error:
            raise BadInput(f"the pictures cannot be read: {str(error).strip().splitlines()[0]}") from error
        inputs = dict(made)
        inputs.pop("attention_mask", None)
        ids = inputs.pop("input_ids")[0].numpy().astype(np.int64)
        return Prompt(ids, inputs, request.modality, np.flatnonzero(np.isin(ids, self._placeholders)))

    def _special(self, text: str) -> dict[str, bool]:
        """The tokenizer adds its begin token, unless the chat template already wrote it."""
        begin = self.tokenizer.bos_token
        return {"add_special_tokens": not (begin and text.startswith(begin))}


def chat_template(tokenizer: Any, processor: Any | None) -> str | None:
    """The template of a pair's messages: the processor's where it has one, since it knows of pictures."""
    template = (None if processor is None else processor.chat_template) or tokenizer.chat_template
    found: str | None = template["default"] if isinstance(template, dict) else template
    return found
