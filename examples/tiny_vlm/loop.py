"""The training loop of all stages: Muon and AdamW, warm-up and decay, checkpoints to resume from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

CHECKPOINT_SECONDS = 150.0
LOG_EVERY = 20

Metrics = dict[str, float]


@dataclass(frozen=True)
class Plan:
    """How long and how fast a stage trains; the rate is flat between warm-up and the last `decay` share."""

    steps: int
    muon_rate: float = 0.02
    adam_rate: float = 2e-3
    warmup: int = 40
    decay: float = 0.4

    def factor(self, step: int) -> float:
        rest = max(self.steps * self.decay, 1.0)
        return max(min((step + 1) / self.warmup, (self.steps - step) / rest, 1.0), 0.0)


def make_optimizers(module: nn.Module, plan: Plan) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside layers, AdamW for embeddings, norms, biases and everything else."""
    matrices, others = [], []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            inner = parameter.ndim == 2 and ".layers." in name
            (matrices if inner else others).append(parameter)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=plan.adam_rate, betas=(0.9, 0.98), weight_decay=0.0)
    ]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=plan.muon_rate, weight_decay=0.01))
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def _save(path: Path, step: int, module: nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    aside = path.with_suffix(".new")
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save({"step": step, "module": module.state_dict(), "optimizers": states}, aside)
    aside.replace(path)


def run(
    name: str,
    module: nn.Module,
    plan: Plan,
    loss_at: Callable[[int], tuple[Tensor, Metrics]],
    checkpoint: Path,
    fresh: bool = False,
) -> None:
    """Train `module` in place with `loss_at(step)`, resuming from `checkpoint` when it is there."""
    optimizers = make_optimizers(module, plan)
    first = 0
    if checkpoint.exists() and not fresh:
        state = torch.load(checkpoint, map_location="cpu")
        module.load_state_dict(state["module"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first = int(state["step"])
        print(f"[{name}] resumed at step {first}", flush=True)
    recent: deque[Metrics] = deque(maxlen=LOG_EVERY)
    started = saved_at = time.monotonic()
    for step in range(first, plan.steps):
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * plan.factor(step)
        loss, metrics = loss_at(step)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        recent.append({"loss": float(loss.detach()), **metrics})
        now = time.monotonic()
        if (step + 1) % LOG_EVERY == 0:
            names = sorted({key for metrics in recent for key in metrics})
            means = {key: [m[key] for m in recent if key in m] for key in names}
            text = " ".join(f"{key} {sum(values) / len(values):.3f}" for key, values in means.items())
            pace = (now - started) / (step + 1 - first)
            print(f"[{name}] {step + 1}/{plan.steps} {pace:.2f} s/step {text}", flush=True)
        if now - saved_at > CHECKPOINT_SECONDS:
            _save(checkpoint, step + 1, module, optimizers)
            saved_at = now
    if plan.steps > first:
        _save(checkpoint, plan.steps, module, optimizers)
