"""The text side of a pair as OpenVINO models with a cache inside, as OpenVINO GenAI wants them.

What optimum-intel does for published models, for the embedded pair: a step with the cache as inputs and outputs is
traced, then the cache becomes state that is picked by beam.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache, DynamicLayer


class TextStep(torch.nn.Module):
    """`(input_ids, attention_mask, position_ids, *past) -> (logits, *present)` of a LLaVA-OneVision model's text side;
    past and present are keys and values by layer, [batch, heads, length, size]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.text, self.head = model.model.language_model, model.lm_head
        self.layers = len(self.text.layers)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor, *past: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        cache = DynamicCache()
        for keys, values in zip(past[::2], past[1::2], strict=True):
            layer = DynamicLayer()
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = keys, values
            cache.layers.append(layer)
        out = self.text(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, cache=cache, use_cache=True
        )
        present = [tensor for layer in out.cache.layers for tensor in (layer.keys, layer.values)]
        return (self.head(out.last_hidden_state), *present)


def convert_text_side(source: str, folder: Path) -> None:
    """Write `openvino_model.xml` in float32, without a tokenizer."""
    import openvino as ov
    from openvino import opset13 as op
    from openvino._offline_transformations import apply_make_stateful_transformation

    model = AutoModelForImageTextToText.from_pretrained(source, dtype=torch.float32, attn_implementation="sdpa").eval()
    step, text = TextStep(model), model.config.text_config
    heads, size = text.num_key_value_heads, text.hidden_size // text.num_attention_heads
    past = [torch.zeros(1, heads, 3, size) for _ in range(2 * step.layers)]
    example = (torch.ones(1, 2, dtype=torch.long), torch.ones(1, 5, dtype=torch.long), torch.tensor([[3, 4]]), *past)
    with torch.no_grad():
        converted = ov.convert_model(step, example_input=example)
    caches = [f"past.{i // 2}.{'value' if i % 2 else 'key'}" for i in range(2 * step.layers)]
    for port, name in zip(converted.inputs, ["input_ids", "attention_mask", "position_ids", *caches], strict=True):
        port.get_tensor().set_names({name})
        shape = [-1, heads, -1, size] if name in caches else [-1, -1]
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    presents = [name.replace("past", "present") for name in caches]
    for port, name in zip(converted.outputs, ["logits", *presents], strict=True):
        port.get_tensor().set_names({name})
    converted.validate_nodes_and_infer_types()
    beam = op.parameter([-1], dtype=np.int32, name="beam_idx")
    beam.output(0).get_tensor().set_names({"beam_idx"})
    converted.add_parameters([beam])
    for port in converted.inputs:
        if port.get_any_name() in caches:
            users = list(port.get_target_inputs())
            picked = op.gather(port, beam, op.constant(0, dtype=np.int64))
            for user in users:
                user.replace_source_output(picked.output(0))
    converted.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(converted, dict(zip(caches, presents, strict=True)))
    # the pass that turns attention into paged attention knows only states with an initial value
    ids_shape = op.shape_of(converted.input("input_ids"), output_type="i64")
    batch = op.gather(ids_shape, op.constant(np.array([0])), op.constant(0))
    for node in converted.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = op.concat([batch, op.constant(np.array([heads, 0, size], dtype=np.int64))], axis=0)
            node.set_arguments([op.broadcast(op.constant(np.float32(0)), shape)])
    converted.validate_nodes_and_infer_types()
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(converted, folder / "openvino_model.xml", compress_to_fp16=False)


def convert_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Write the tokenizer beside a model."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer

    there, back = convert_tokenizer(tokenizer, with_detokenizer=True)
    ov.save_model(there, folder / "openvino_tokenizer.xml")
    ov.save_model(back, folder / "openvino_detokenizer.xml")
