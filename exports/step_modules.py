"""What is traced into a step graph: one pass of a text side, its attention, its experts.

Two parts of transformers are replaced while a graph is traced, through the library's own registries:

- attention of every layer becomes `two_part_attention`, which scores cached and new rows apart and joins the
  scores, not the keys: the graph never concatenates (copies) the cache;
- expert layers become `dense_experts`: the library's loops and grouped products depend on the routing, which no
  graph with static operators can follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.moe import ExpertsInterface

from profiles.errors import BadInput

ATTENTION, EXPERTS = "sage_two_part", "sage_dense"


def two_part_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float,
    past_keys: list[torch.Tensor],
    past_values: list[torch.Tensor],
    **_unused: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of n new tokens over `past` cached and n new rows, without joining the two.

    Shapes: query [1, q_heads, n, d], key/value [1, kv_heads, n, d], past [past, kv_heads, d],
    mask [1, 1, n, past + n] float32. Returns [1, n, q_heads, d]. Grouped query heads share their key head. The
    softmax is float32 whatever the weights are, as in transformers.
    """
    past_key, past_value = past_keys[module.layer_idx], past_values[module.layer_idx]
    _, q_heads, n, dim = query.shape
    kv_heads, past = key.shape[1], past_key.shape[0]
    grouped = query.reshape(kv_heads, q_heads // kv_heads * n, dim) * scaling
    scores = torch.cat(
        [grouped @ past_key.permute(1, 2, 0), grouped @ key[0].transpose(1, 2)],
        dim=-1,
    )
    scores = scores.reshape(q_heads, n, -1).float() + attention_mask[0]
    weights = torch.softmax(scores, dim=-1).to(query.dtype).reshape(kv_heads, q_heads // kv_heads * n, -1)
    out = weights[..., :past] @ past_value.permute(1, 0, 2) + weights[..., past:] @ value[0]
    return out.reshape(1, q_heads, n, dim).transpose(1, 2), None


def dense_experts(module: Any, hidden: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Every expert on every token, weighed by the routing: zero for experts that were not chosen.

    Shapes: hidden [n, hidden], chosen [n, k] expert numbers, weights [n, k]; returns [n, hidden]. The value is the
    library's up to the order of the sum. A wide tree reads nearly every expert's weights anyway; what is added is
    arithmetic, not memory traffic. Raises BadInput for an expert layout that is not gated, dense and without bias.
    """
    if not module.has_gate or module.has_bias or module.is_transposed or module.has_post_expert_norm:
        raise BadInput(f"{type(module).__name__}: only gated experts without bias and extra norm can be exported")
    routing = hidden.new_zeros(hidden.shape[0], module.num_experts).scatter(1, chosen, weights.to(hidden.dtype))
    up = hidden[None] @ module.gate_up_proj.transpose(1, 2)  # [experts, n, 2 * inner]
    out: torch.Tensor = module._apply_gate(up) @ module.down_proj.transpose(1, 2)
    return (out * routing.T[:, :, None]).sum(dim=0)


class NewRows:
    """Stands where a cache is expected and keeps only what the pass adds: [n, kv_heads, d] per layer."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_unused: Any, **_ignored: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.append(key[0].transpose(0, 1))
        self.values.append(value[0].transpose(0, 1))
        return key, value


class Step(torch.nn.Module):
    """One pass of the text side, in the contract's order of inputs and outputs."""

    def __init__(self, text: Any, head: Any, cache_argument: str, position_axes: int) -> None:
        super().__init__()
        self.text, self.head = text, head
        self._cache_argument, self._axes = cache_argument, position_axes

    def forward(
        self,
        inputs_embeds: torch.Tensor,
        position_ids: torch.Tensor,
        mask: torch.Tensor,
        logit_rows: torch.Tensor,
        deepstack: torch.Tensor | None,
        past_keys: list[torch.Tensor],
        past_values: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        rows, dtype = NewRows(), self.head.weight.dtype
        # DeepStack's argument is a list with an entry per layer; `traced_as` makes adding it a plain sum
        extra = {} if deepstack is None else {"deepstack_visual_embeds": list(deepstack.to(dtype)[:, None])}
        out = self.text(
            inputs_embeds=inputs_embeds.to(dtype),
            position_ids=position_ids if self._axes == 1 else position_ids[:, None],
            attention_mask=mask,
            use_cache=True,
            past_keys=past_keys,
            past_values=past_values,
            **extra,
            **{self._cache_argument: rows},
        )
        hidden = out.last_hidden_state[0].index_select(0, logit_rows)
        return self.head(hidden).float(), rows.keys, rows.values


@contextmanager
def traced_as(text: Any, deepstack: bool) -> Iterator[None]:
    """Within the block, a text side runs the exportable attention, experts and DeepStack sum of this file."""
    AttentionInterface.register(ATTENTION, two_part_attention)
    ExpertsInterface.register(EXPERTS, dense_experts)
    config = text.config
    attention, experts = config._attn_implementation, config._experts_implementation
    config._attn_implementation, config._experts_implementation = ATTENTION, EXPERTS
    if deepstack:
        # the library picks picture rows by a mask; with zeros in all other rows the plain sum is the same
        text._deepstack_process = lambda hidden, _mask, features: hidden + features
    try:
        yield
    finally:
        config._attn_implementation, config._experts_implementation = attention, experts
        if deepstack:
            del text._deepstack_process
