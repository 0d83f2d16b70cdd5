"""A GGUF file of the Llama architecture as a transformers model: weights, configuration, tokenizer, chat template.

Two things differ from a plain copy of the tensors. GGUF stores the rows of the query and key projections so that the
two halves of a rotary pair are neighbours, while transformers keeps the halves apart; `unpermuted` undoes that. And a
model with tied embeddings has no output matrix in the file. transformers can read the file as well, but then holds a
quantisation setting that keeps it from being saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from profiles.errors import BadInput

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3
"""Token type of GGUF for tokens that are no text."""


def read_gguf(path: Path) -> Any:
    """The reader of a GGUF file. Raises BadInput without the package that reads them."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise BadInput(
            "reading a GGUF file needs a package that is not installed: pip install 'sage_tune[smollm2]'"
        ) from error
    return GGUFReader(path)


def field(reader: Any, name: str) -> Any:
    """A metadata field. Raises BadInput when the file has none of that name."""
    found = reader.get_field(name)
    if found is None:
        raise BadInput(f"the GGUF file has no field '{name}'")
    return found.contents()


def llama_config(reader: Any) -> LlamaConfig:
    """The configuration that the file's metadata states. Raises BadInput for another architecture."""
    architecture = field(reader, "general.architecture")
    if architecture != "llama":
        raise BadInput(f"the architecture must be 'llama', the GGUF file says {architecture!r}")
    heads = field(reader, "llama.attention.head_count")
    tensors = {tensor.name for tensor in reader.tensors}
    return LlamaConfig(
        vocab_size=len(field(reader, "tokenizer.ggml.tokens")),
        hidden_size=field(reader, "llama.embedding_length"),
        intermediate_size=field(reader, "llama.feed_forward_length"),
        num_hidden_layers=field(reader, "llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=field(reader, "llama.attention.head_count_kv"),
        head_dim=field(reader, "llama.rope.dimension_count"),
        max_position_embeddings=field(reader, "llama.context_length"),
        # a float32 of the file, as the number that was meant
        rms_norm_eps=float(f"{field(reader, 'llama.attention.layer_norm_rms_epsilon'):.6g}"),
        rope_parameters={"rope_type": "default", "rope_theta": float(field(reader, "llama.rope.freq_base"))},
        tie_word_embeddings="output.weight" not in tensors,
        bos_token_id=field(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=field(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=field(reader, "tokenizer.ggml.padding_token_id"),
        dtype="float32",
    )


def unpermuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows [heads * dim, hidden] of a query or key projection, from neighbouring rotary pairs to separate halves."""
    rows, hidden = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, hidden).swapaxes(1, 2).reshape(rows, hidden)


def parameter_name(name: str) -> str:
    """`blk.3.attn_q.weight` as transformers calls it. Raises BadInput for a tensor that no Llama has."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in LAYER_NAMES:
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in TOP_NAMES:
        return f"{TOP_NAMES[parts[0]]}.{parts[1]}"
    raise BadInput(f"no Llama has the tensor '{name}'")


def llama_model(reader: Any) -> LlamaForCausalLM:
    """The model in float32, dequantised. Raises BadInput when tensors are missing or of another shape."""
    from gguf.quants import dequantize

    config = llama_config(reader)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    weights = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = unpermuted(values, heads[kind])
        weights[parameter_name(tensor.name)] = torch.from_numpy(np.array(values, dtype=np.float32))
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model = LlamaForCausalLM(config)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise BadInput(f"the tensors of the GGUF file make no whole model: {error}") from error
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    return model.eval()


def byte_level_tokenizer(reader: Any) -> PreTrainedTokenizerFast:
    """The tokenizer of the metadata: byte-level BPE after GPT-2's pattern, every digit a token (pre-tokenizer
    `smollm`), and the file's chat template. Raises BadInput for another kind."""
    kinds = field(reader, "tokenizer.ggml.model"), field(reader, "tokenizer.ggml.pre")
    if kinds != ("gpt2", "smollm"):
        raise BadInput(f"the tokenizer must be ('gpt2', 'smollm'), the GGUF file says {kinds}")
    tokens = field(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in field(reader, "tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = field(reader, "tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == CONTROL
        ]
    )
    named = {
        f"{role}_token": tokens[field(reader, f"tokenizer.ggml.{name}_token_id")]
        for role, name in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        model_max_length=field(reader, "llama.context_length"),
        **named,
    )
    fast.chat_template = field(reader, "tokenizer.chat_template")
    return fast
