"""The filters of `runtime.filters` on tensors, so that logits stay on their device."""

from __future__ import annotations

import torch

from profiles.sampling import SamplingRegime
from runtime.policy.tree import FloatArray, IntArray


def penalised(logits: torch.Tensor, rows: IntArray, tokens: IntArray, penalty: float) -> torch.Tensor:
    """`runtime.filters.penalised`; float32."""
    changed = logits.float().clone()
    at = torch.from_numpy(rows).to(logits.device), torch.from_numpy(tokens).to(logits.device)
    values = changed[at]
    changed[at] = torch.where(values < 0, values * penalty, values / penalty)
    return changed


def filtered(logits: torch.Tensor, regime: SamplingRegime) -> torch.Tensor:
    """`runtime.filters.filtered`; float32."""
    scaled = logits.float() / regime.temperature
    if 0 < regime.top_k < scaled.shape[-1]:
        scaled = scaled.masked_fill(scaled < scaled.topk(regime.top_k, dim=-1).values[:, -1:], -torch.inf)
    if regime.top_p < 1:
        values, order = scaled.sort(dim=-1, descending=True, stable=True)
        mass = values.softmax(dim=-1, dtype=torch.float64)
        dropped = mass.cumsum(dim=-1) - mass >= regime.top_p
        scaled = scaled.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)
    return scaled


def perturbed(logits: torch.Tensor, regime: SamplingRegime, noise: FloatArray) -> torch.Tensor:
    """`runtime.filters.perturbed`; float32."""
    scores = filtered(logits, regime) + torch.from_numpy(noise).to(logits.device)
    return scores / regime.draft_lambda if regime.draft_lambda != 1 else scores
