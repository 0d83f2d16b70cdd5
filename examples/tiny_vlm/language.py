"""Stages two and three: align the projector with words, train the target, distil the draft from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlavaOnevisionForConditionalGeneration, PreTrainedTokenizerFast

from examples.tiny_vlm.batches import Batch, Encoder, answer_logits, patch_features, training_batch
from examples.tiny_vlm.labels import IGNORE, LABELS, NAMES, NONE
from examples.tiny_vlm.loop import Metrics, Plan, run
from examples.tiny_vlm.texts import fact_words

ROWS, LENGTH = 16, 384
Model = LlavaOnevisionForConditionalGeneration


def init_words(model: Model, tokenizer: PreTrainedTokenizerFast) -> None:
    """Unit-length embeddings; `red` and ` red` start out alike, since one fact is written both ways."""
    with torch.no_grad():
        table = model.lm_head.weight
        table.normal_(std=table.shape[1] ** -0.5)
        for word in fact_words():
            bare, spaced = tokenizer.encode(word), tokenizer.encode(f" {word}")
            if len(bare) == len(spaced) == 1:
                table[bare[0]] = 0.6 * table[bare[0]] + 0.8 * table[spaced[0]]


def symbols(model: Model, tokenizer: PreTrainedTokenizerFast) -> list[Tensor]:
    """One vector per label value: its word's embedding, rotated when the label is not the patch's own."""
    table = model.lm_head.weight.detach().float().cpu()
    width = table.shape[1]
    noise = torch.Generator().manual_seed(7)
    vectors = []
    for label in LABELS:
        rotation = torch.linalg.qr(torch.randn(width, width, generator=noise))[0]
        rows = []
        for value in label.values:
            tokens = tokenizer.encode(f" {value}")
            word = table[tokens[-1]] if value.isdigit() or len(tokens) == 1 else None
            if value == NONE:
                word = torch.zeros(width)
            elif word is None:
                word = torch.randn(width, generator=noise) * width**-0.5
            rows.append(word if label.own else rotation @ word)
        vectors.append(torch.stack(rows))
    return vectors


def _patches(model: Model, encoder: Encoder, vectors: list[Tensor], batches: int) -> list[Tensor]:
    """Tower features of many patches, the symbol sums they should become, and a weight for each."""
    parts = []
    for number in range(batches):
        batch = training_batch(f"train/align/{number}", 40, 128, encoder, shorts=0)
        truth = torch.from_numpy(np.stack(batch.labels)).flatten(2).to(vectors[0].device)
        wanted = torch.zeros(*truth.shape[::2], vectors[0].shape[1], device=vectors[0].device)
        for index, vector in enumerate(vectors):
            known = truth[:, index] != IGNORE
            wanted[known] += vector[truth[:, index][known]]
        # Patches that show something are few and carry the facts.
        weight = torch.where(truth[:, NAMES.index("color")] > 0, 4.0, 1.0)
        with torch.autocast(vectors[0].device.type, torch.bfloat16):
            features = patch_features(model, batch.pictures)
        parts.append((features.float().flatten(0, 1), wanted.flatten(0, 1), weight.flatten()))
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def align_projector(
    model: Model, tokenizer: PreTrainedTokenizerFast, encoder: Encoder, steps: int, device: torch.device
) -> float:
    """Fit the projector so that an image token is the sum of its symbols; returns the last relative error.

    The tower keeps colour and shape in directions of little variance, which gradient descent would find last:
    the first layer therefore starts by whitening the features and the second with the least-squares solution.
    """
    vectors = [vector.to(device) for vector in symbols(model, tokenizer)]
    features, wanted, weight = _patches(model, encoder, vectors, batches=60)
    projector = model.model.multi_modal_projector
    with torch.no_grad():
        mean = features.mean(0)
        values, axes = torch.linalg.eigh(torch.cov((features - mean).T))
        whiten = axes / (values + 1e-5 * values.max()).sqrt()
        mixing = nn.init.orthogonal_(torch.empty(wanted.shape[1], features.shape[1], device=device))
        first = mixing @ whiten.T
        projector.linear_1.weight.copy_(first)
        projector.linear_1.bias.copy_(-first @ mean)
        inner = projector.act(projector.linear_1(features))
        inner = torch.cat([inner, torch.ones_like(inner[:, :1])], dim=1) * weight.sqrt()[:, None]
        ridge = 1e-3 * len(inner) * torch.eye(inner.shape[1], device=device)
        second = torch.linalg.solve(inner.T @ inner + ridge, inner.T @ (wanted * weight.sqrt()[:, None]))
        projector.linear_2.weight.copy_(second[:-1].T)
        projector.linear_2.bias.copy_(second[-1])
    optimizer = torch.optim.AdamW(projector.parameters(), lr=2e-3, weight_decay=0.0)
    total, error = wanted.square().sum(-1).mean(), 1.0
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * (1 - step / steps)
        rows = torch.randint(len(features), (4096,), device=device)
        distance = (projector(features[rows]) - wanted[rows]).square().sum(-1)
        (distance * weight[rows]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        error = float(distance.detach().mean() / total)
        if step == 0 or (step + 1) % 100 == 0:
            print(f"[align] {step + 1}/{steps} relative error {error:.3f}", flush=True)
    return error


def compile_layers(model: Model) -> None:
    """Compile the decoder layer by layer: one graph, compiled once, serves them all."""
    for layer in model.model.language_model.layers:
        layer.compile(dynamic=False)


def _accuracies(logits: Tensor, tokens: Tensor, classes: Tensor) -> Metrics:
    right = (logits.argmax(-1) == tokens).float()
    return {name: float(right[classes == index].mean()) for index, name in enumerate(("fixed", "choice", "fact"))}


def train_language(
    name: str,
    model: Model,
    encoder: Encoder,
    plan: Plan,
    checkpoint: Path,
    device: torch.device,
    teacher: Model | None = None,
    mix: float = 0.0,
    focus: range = range(0),
) -> None:
    """Train everything but the tower; with a teacher, its distribution counts `mix`, the text the rest.

    Steps in `focus` see short questions only, hard ones first, in shorter packs.
    """
    model.model.vision_tower.requires_grad_(False)

    def loss_at(step: int) -> tuple[Tensor, Metrics]:
        short = step in focus
        length, shorts = (LENGTH // 2, 16) if short else (LENGTH, 10)
        batch = training_batch(f"train/{name}/{step}", ROWS, length, encoder, shorts, not short).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            logits, tokens, classes, weight = answer_logits(model, batch, patch_features(model, batch.pictures))
        each = nn.functional.cross_entropy(logits, tokens, reduction="none")
        metrics = _accuracies(logits.detach(), tokens, classes)
        if teacher is not None:
            wanted = _teacher_logits(teacher, batch, device)
            soft = -(wanted.softmax(-1) * logits.log_softmax(-1)).sum(-1)
            each = mix * soft + (1 - mix) * each
            metrics["agree"] = float((logits.argmax(-1) == wanted.argmax(-1)).float().mean())
        return (each * weight).sum() / weight.sum(), metrics

    run(name, model, plan, loss_at, checkpoint)


def _teacher_logits(teacher: Model, batch: Batch, device: torch.device) -> Tensor:
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        return answer_logits(teacher, batch, patch_features(teacher, batch.pictures))[0]
