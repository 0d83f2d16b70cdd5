"""Stage one: the vision tower learns dense per-patch labels; it stays frozen afterwards."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor, nn
from transformers import SiglipVisionModel

from examples.tiny_vlm.data import make_world
from examples.tiny_vlm.labels import IGNORE, LABELS, Dense, dense_labels
from examples.tiny_vlm.loop import Metrics, Plan, run
from examples.tiny_vlm.world import Pixels, draw

BATCH = 64
SPANS = [len(label.values) for label in LABELS]


def normalise(pictures: list[Pixels]) -> Tensor:
    """What the processor does to 84-pixel pictures: scale to [-1, 1], channels first."""
    stack = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    return (stack.float() / 255 - 0.5) / 0.5


def tower_features(tower: SiglipVisionModel, pixels: Tensor) -> Tensor:
    """The features the model reads: the last layer's output, before the tower's final norm."""
    hidden: Tensor = tower(pixels, output_hidden_states=True).hidden_states[-1]
    return hidden


class LabelledTower(nn.Module):
    """The tower with one linear read-out per label."""

    def __init__(self, tower: SiglipVisionModel) -> None:
        super().__init__()
        self.tower = tower
        self.readout = nn.Linear(tower.config.hidden_size, sum(SPANS))

    def forward(self, pixels: Tensor) -> list[Tensor]:
        return list(self.readout(tower_features(self.tower, pixels)).split(SPANS, dim=-1))


def picture_batch(rng: Random, count: int) -> tuple[list[Pixels], list[Dense]]:
    """Pictures with labels; two random frames stand for a video."""
    pictures: list[Pixels] = []
    labels: list[Dense] = []
    while len(pictures) < count:
        world = make_world(rng)
        frames = list(zip(draw(world), dense_labels(world), strict=True))
        for pixels, dense in rng.sample(frames, min(2, len(frames))):
            pictures.append(pixels)
            labels.append(dense)
    return pictures[:count], labels[:count]


def _losses(outputs: list[Tensor], labels: list[Dense]) -> tuple[Tensor, Metrics]:
    truth = torch.from_numpy(np.stack(labels)).flatten(2).to(outputs[0].device)
    losses, metrics = [], {}
    for index, (label, logits) in enumerate(zip(LABELS, outputs, strict=True)):
        wanted = truth[:, index]
        known = wanted != IGNORE
        if known.any():
            # Most patches are background: without balance the rare classes would be learned last.
            weight = torch.where(wanted[known] > 0, 1.0, 0.25 if label.values[0] == "none" else 1.0)
            each = nn.functional.cross_entropy(logits[known].float(), wanted[known], reduction="none")
            losses.append((each * weight).sum() / weight.sum())
            metrics[label.name] = float((logits[known].argmax(-1) == wanted[known]).float().mean())
    return torch.stack(losses).sum(), metrics


def train_tower(tower: SiglipVisionModel, steps: int, checkpoint: Path, device: torch.device) -> LabelledTower:
    """Train the tower in place and return it with its read-outs."""
    module = LabelledTower(tower).to(device)

    def loss_at(step: int) -> tuple[Tensor, Metrics]:
        pictures, labels = picture_batch(Random(f"train/tower/{step}"), BATCH)
        pixels = normalise(pictures)
        noise = torch.Generator().manual_seed(step)
        gain = 1 + 0.03 * torch.randn(len(pictures), 3, 1, 1, generator=noise)
        pixels = pixels * gain + 0.03 * torch.randn(pixels.shape, generator=noise)
        with torch.autocast(device.type, torch.bfloat16):
            outputs = module(pixels.to(device))
        return _losses(outputs, labels)

    run(
        f"tower-{tower.config.hidden_size}",
        module,
        Plan(steps, muon_rate=0.02, adam_rate=2e-3),
        loss_at,
        checkpoint,
    )
    return module
