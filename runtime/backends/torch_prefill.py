"""What a prefill of a transformers model can be asked besides its logits: to leave rows out, and for attention.

Both work on the decoder inside the model, whatever family wraps it: its inputs are cut where it is entered, and its
attention modules are watched while they run eagerly, which is the only implementation that has weights to show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from runtime.policy.tree import IntArray

DEEPSTACK = "deepstack_visual_embeds"
"""Picture features that Qwen3-VL adds after its first layers: [visual rows, hidden] per layer."""
VISUAL_ROWS = "visual_pos_masks"
"""...and [1, L] where they belong."""


@contextmanager
def decoder_rows(text: Any, kept: IntArray | None) -> Iterator[None]:
    """Within, the decoder `text` reads rows `kept` of what it is given, at their own positions; None reads all."""
    if kept is None:
        yield
        return

    def cut(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        embeds = kwargs["inputs_embeds"]
        rows = torch.from_numpy(kept).to(embeds.device)
        changed = {**kwargs, "inputs_embeds": embeds[:, rows]}
        positions = kwargs.get("position_ids")
        changed["position_ids"] = rows[None] if positions is None else positions[..., rows]
        visual = kwargs.get(VISUAL_ROWS)
        if visual is not None:
            changed[VISUAL_ROWS] = visual[:, rows]
            features = kwargs.get(DEEPSTACK)
            if features is not None:
                stays = torch.isin(torch.nonzero(visual[0])[:, 0], rows)
                changed[DEEPSTACK] = [layer[stays] for layer in features]
        return args, changed

    handle = text.register_forward_pre_hook(cut, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def watched_attention(text: Any) -> Iterator[list[torch.Tensor]]:
    """Within, every layer of the decoder `text` attends eagerly and adds its weights, mean over heads and queries
    ([keys] float32), to the list."""
    modules = [layer.self_attn for layer in text.layers]
    configs = {id(module.config): module.config for module in modules}.values()
    before = [config._attn_implementation for config in configs]
    seen: list[torch.Tensor] = []

    def note(_module: Any, _args: Any, output: Any) -> None:
        seen.append(output[1][0].float().mean(dim=(0, 1)))

    handles = [module.register_forward_hook(note) for module in modules]
    try:
        for config in configs:
            config._attn_implementation = "eager"
        yield seen
    finally:
        for config, kind in zip(configs, before, strict=True):
            config._attn_implementation = kind
        for handle in handles:
            handle.remove()
