"""From worlds and turns to tensors: the processor's token layout, with several turns sharing one picture.

Every turn of a pack sees the picture and itself only, at the positions it would have alone, so that a pack is
exactly a set of independent conversations that pay for their picture once.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast

from examples.tiny_vlm.data import make_pack
from examples.tiny_vlm.labels import GRID, Dense, dense_labels
from examples.tiny_vlm.pair import END, IMAGE, PAD, SPECIALS, START, VIDEO
from examples.tiny_vlm.tower import normalise, tower_features
from examples.tiny_vlm.turns import Turn
from examples.tiny_vlm.world import Pixels, Video, World, draw

CLASSES = ("fixed", "choice", "fact")
TEXT, NEWLINE = -1, -2
FACT_WEIGHT, WORDING_WEIGHT = 12.0, 0.5
PATCHES, POOLED = GRID * GRID, (GRID // 2) ** 2


@dataclass
class Batch:
    """Packed sequences; `visual` says which visual feature stands at a position (TEXT: none)."""

    pictures: list[Pixels]
    labels: list[Dense]
    ids: Tensor
    visual: Tensor
    segments: Tensor
    positions: Tensor
    classes: Tensor
    weights: Tensor

    @property
    def mask(self) -> Tensor:
        """`[batch, 1, query, key]`: causal, within a turn or towards the picture in front of all turns."""
        query, key = self.segments[:, :, None], self.segments[:, None, :]
        length = self.ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        return (((key == query) | (key == 0)) & causal)[:, None]

    def to(self, device: torch.device) -> Batch:
        tensors = (self.ids, self.visual, self.segments, self.positions, self.classes, self.weights)
        return Batch(self.pictures, self.labels, *(tensor.to(device) for tensor in tensors))


class Encoder:
    """Encodes turns as the chat template does, with the class of every answer token."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.core = tokenizer.backend_tokenizer
        vocabulary = tokenizer.get_vocab()
        self.special: dict[str, int] = {token: vocabulary[token] for token in SPECIALS}
        self.opening = [self.special[START], *self._ids("user ")]
        self.bridge = [self.special[END], self.special[START], *self._ids("assistant\n")]

    def _ids(self, text: str) -> list[int]:
        return list(self.core.encode(text).ids)

    def prompt(self, question: str) -> list[int]:
        """What follows the picture, up to the first token of the answer."""
        return self._ids(f"\n{question}") + self.bridge

    def answer(self, turn: Turn) -> tuple[list[int], list[int]]:
        """Token ids and class indices of the answer, its end token included."""
        by_character: list[int] = []
        for text, name in turn.pieces:
            by_character += [CLASSES.index(name)] * len(text)
        coded = self.core.encode(turn.answer)
        classes = [by_character[end - 1] for _, end in coded.offsets]
        return [*coded.ids, self.special[END]], [*classes, 0]

    def picture(self, world: World, frames: int, first: int) -> tuple[list[int], list[int]]:
        """Placeholder ids and feature indices; frame `k` of the batch owns 36 patches and 9 pooled cells."""
        if isinstance(world, Video):
            cells = range(first * POOLED, (first + frames) * POOLED)
            # Cells live behind the patches of all frames; the collator shifts them when it knows how many.
            visual = [-(index + 3) for index in cells] + [NEWLINE]
            return [self.special[VIDEO]] * len(visual), visual
        patches = list(range(first * PATCHES, (first + 1) * PATCHES))
        visual = list(patches)
        for row in range(GRID):
            visual += [*patches[row * GRID : (row + 1) * GRID], NEWLINE]
        return [self.special[IMAGE]] * len(visual), visual


def turn_weights(classes: list[int]) -> Tensor:
    """Facts count more than wording, and those of a short answer more than one of many in a long answer."""
    fact = torch.tensor(classes) == CLASSES.index("fact")
    return torch.where(fact, FACT_WEIGHT / fact.sum().clamp(min=1).sqrt(), WORDING_WEIGHT)


def collate(packs: list[tuple[World, list[Turn]]], encoder: Encoder, length: int) -> Batch:
    """Pack each world's turns into `length` positions; turns that do not fit are left out."""
    pad = encoder.special[PAD]
    pictures: list[Pixels] = []
    labels: list[Dense] = []
    shape = (len(packs), length)
    ids, visual = torch.full(shape, pad), torch.full(shape, TEXT)
    segments, positions = torch.full(shape, -1), torch.zeros(shape, dtype=torch.long)
    classes, weights = torch.full(shape, -1), torch.zeros(shape)
    for row, (world, turns) in enumerate(packs):
        frames = draw(world)
        places, features = encoder.picture(world, len(frames), len(pictures))
        pictures += frames
        labels += dense_labels(world)
        line = [*encoder.opening, *places]
        start = at = len(line)
        ids[row, :at] = torch.tensor(line)
        visual[row, len(encoder.opening) : at] = torch.tensor(features)
        segments[row, :at] = 0
        positions[row, :at] = torch.arange(at)
        for number, turn in enumerate(turns, start=1):
            prompt = encoder.prompt(turn.question)
            answer, kinds = encoder.answer(turn)
            end = at + len(prompt) + len(answer)
            if end > length:
                continue
            ids[row, at:end] = torch.tensor(prompt + answer)
            classes[row, end - len(answer) : end] = torch.tensor(kinds)
            weights[row, end - len(answer) : end] = turn_weights(kinds)
            segments[row, at:end] = number
            positions[row, at:end] = torch.arange(start, start + end - at)
            at = end
    cells = visual <= -3
    visual[cells] = len(pictures) * PATCHES - visual[cells] - 3
    visual[visual == NEWLINE] = len(pictures) * (PATCHES + POOLED)
    # Padding attends to itself, so that no row of the mask is empty.
    segments[segments < 0] = len(packs) + 1000
    return Batch(pictures, labels, ids, visual, segments, positions, classes, weights)


def training_batch(seed: str, rows: int, length: int, encoder: Encoder, shorts: int = 10, longs: bool = True) -> Batch:
    """A seeded batch of packs, with or without long answers."""
    rng = Random(seed)
    return collate([make_pack(rng, shorts, longs) for _ in range(rows)], encoder, length)


def patch_features(model: LlavaOnevisionForConditionalGeneration, pictures: list[Pixels]) -> Tensor:
    """Tower features `[picture, 36, width]`; the tower is frozen."""
    weight = model.model.vision_tower.embeddings.patch_embedding.weight
    with torch.no_grad():
        return tower_features(model.model.vision_tower, normalise(pictures).to(weight.device))


def embed(model: LlavaOnevisionForConditionalGeneration, batch: Batch, features: Tensor) -> Tensor:
    """Input embeddings: words, and projected patches (pictures) or pooled cells (videos)."""
    projected = model.model.multi_modal_projector(features)
    grid = projected.transpose(1, 2).unflatten(2, (GRID, GRID))
    # On an even grid the model's bilinear halving is the mean of 2 x 2 patches.
    cells = nn.functional.avg_pool2d(grid, 2).flatten(2).transpose(1, 2)
    newline = model.model.image_newline[None].to(projected.dtype)
    table = torch.cat([projected.flatten(0, 1), cells.flatten(0, 1), newline])
    words = model.get_input_embeddings()(batch.ids)
    seen = table[batch.visual.clamp(min=0)].to(words.dtype)
    return torch.where((batch.visual >= 0)[..., None], seen, words)


def answer_logits(
    model: LlavaOnevisionForConditionalGeneration, batch: Batch, features: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits in front of every answer token of the batch, the true tokens, their classes and weights."""
    hidden = model.model.language_model(
        inputs_embeds=embed(model, batch, features),
        attention_mask=batch.mask,
        position_ids=batch.positions,
        use_cache=False,
    ).last_hidden_state
    wanted = batch.classes[:, 1:] >= 0
    logits = model.lm_head(hidden[:, :-1][wanted]).float()
    tokens, classes, weights = (part[:, 1:][wanted] for part in (batch.ids, batch.classes, batch.weights))
    return logits, tokens, classes, weights
