"""Any transformers causal or vision-language model as a backend: tree masks, explicit positions, DynamicCache.

Facts this file stands on (checked with transformers 5.24): an additive float mask [1, 1, n, past + n] with the
dtype's minimum passes through sdpa and eager attention alike, a bool mask is silently wrong under eager;
positions must always be explicit; pictures and `mm_token_type_ids` go into the prefill only; the M-RoPE offset is
state of the model: it is cleared before a prefill, or a prompt without pictures would find that of the request
before, and copied per session.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import Any, final

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, DynamicCache

from profiles.errors import BadInput, HardwareMissing, ModelOutputError
from profiles.families import text_side
from profiles.sampling import SamplingRegime
from runtime.backends import torch_filters
from runtime.backends.base import Model, ModelFiles, NumpyRows, Rows, Session, causal
from runtime.backends.torch_prefill import decoder_rows, watched_attention
from runtime.policy.tree import BoolArray, FloatArray, IntArray
from runtime.prompts import Prompt

MAX_QUERIES = 64
"""Text rows after the last picture whose attention guides pruning: eager weights take rows x rows of memory."""


@final
class TorchRows(Rows):
    """Logits on an accelerator: argmax and top-k are taken there, only their results travel."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def argmax(self) -> IntArray:
        best = self._logits.max(dim=-1)
        self._check(best.values)
        return best.indices.cpu().numpy()

    def top(self, k: int) -> tuple[IntArray, FloatArray]:
        best = torch.log_softmax(self._logits.float(), dim=-1).topk(k, dim=-1)
        self._check(best.values[:, :1])
        return best.indices.cpu().numpy(), best.values.cpu().numpy()

    def row(self, i: int) -> Rows:
        return TorchRows(self._logits[i : i + 1])

    def penalised(self, rows: IntArray, tokens: IntArray, penalty: float) -> Rows:
        return TorchRows(torch_filters.penalised(self._logits, rows, tokens, penalty))

    def perturbed(self, regime: SamplingRegime, noise: FloatArray) -> Rows:
        self._check(self._logits.max(dim=-1).values)
        return TorchRows(torch_filters.perturbed(self._logits, regime, noise))

    def logits(self) -> FloatArray:
        return self._logits.float().cpu().numpy()

    @staticmethod
    def _check(best: torch.Tensor) -> None:
        # max and topk propagate NaN, so the best value of a row tells whether it has one
        if not bool(torch.isfinite(best).all()):
            raise ModelOutputError("the model produced logits that are not finite; the pass cannot be trusted")


@final
class TorchSession(Session):
    def __init__(self, owner: TorchModel, cache: DynamicCache, length: int, capacity: int, rope_delta: int) -> None:
        self.length, self.capacity = length, capacity
        self._owner, self._cache, self._rope_delta = owner, cache, rope_delta

    def _run(self, tokens: IntArray, positions: IntArray, visible: BoolArray) -> Rows:
        return self._owner.rows(self._forward(self._cache, tokens, positions, visible))

    def _forward(self, cache: DynamicCache, tokens: IntArray, positions: IntArray, visible: BoolArray) -> torch.Tensor:
        """[n, vocab] logits of n tokens over a cache, which grows by them."""
        owner = self._owner
        hidden = torch.finfo(owner.torch_dtype).min
        mask = torch.zeros(visible.shape, dtype=owner.torch_dtype)
        mask.masked_fill_(torch.from_numpy(~visible), hidden)
        with torch.inference_mode():
            out = owner.model(
                input_ids=torch.from_numpy(tokens)[None].to(owner.device),
                position_ids=(torch.from_numpy(positions) + self._rope_delta)[None].to(owner.device),
                attention_mask=mask[None, None].to(owner.device),
                use_cache=True,
                **{owner.cache_argument: cache},
            )
        logits: torch.Tensor = out.logits[0]
        return logits

    def prompt_attention(self, prompt: Prompt) -> FloatArray:
        """The text rows run once more over the rows before them, on a cache of their own: the session is untouched."""
        length = len(prompt)
        first = min(max(int(prompt.visual[-1]) + 1, length - MAX_QUERIES), length - 1)
        before = DynamicCache(config=self._owner.model.config.get_text_config())
        for i, layer in enumerate(self._cache.layers):
            before.update(layer.keys[:, :, :first], layer.values[:, :, :first], i)
        queries = np.arange(first, length)
        with watched_attention(text_side(self._owner.model)) as layers:
            self._forward(before, prompt.input_ids[first:], queries, causal(len(queries), first))
        return torch.stack([weights.cpu() for weights in layers]).mean(dim=0).numpy()

    def _compact(self, base: int, rows: list[int]) -> None:
        # consecutive rows right after the base need no gather, only a crop
        consecutive = rows == list(range(len(rows)))
        index = torch.tensor(rows, dtype=torch.long, device=self._owner.device) + base
        for layer in self._cache.layers:
            for name in ("keys", "values"):
                cached = getattr(layer, name)
                kept = cached[:, :, : base + len(rows)]
                if not consecutive:
                    index = index.to(cached.device)  # layers may be spread over devices
                    kept = torch.cat([cached[:, :, :base], cached.index_select(2, index)], dim=2)
                setattr(layer, name, kept)


@final
class TorchModel(Model):
    """A Hugging Face model, on one device or spread over several by transformers' own device map."""

    backend = "torch"
    gives_attention = True

    def __init__(self, files: ModelFiles, loaded: Any = None) -> None:
        """`loaded` is a transformers model that already is in memory; without it the files are read."""
        if files.device != "cpu" and not torch.cuda.is_available():
            raise HardwareMissing(f"device '{files.device}' was asked for, but torch sees no CUDA device")
        self.backend_version = torch.__version__
        self.dtype = files.dtype
        self.torch_dtype: torch.dtype = getattr(torch, files.dtype)
        if files.device == "cpu":
            torch.set_num_threads(files.threads)
        self.model = load_transformers(files) if loaded is None else loaded
        if files.device_map is None:
            self.model = self.model.to(files.device)
        else:
            self.device_map = files.device_map
            self.devices = spread(self.model, files)
        self.device = self.model.get_input_embeddings().weight.device
        text = self.model.config.get_text_config()
        require_full_attention(text, files.source)
        self.vocab_size = self.token_limit = int(text.vocab_size)
        self.max_positions = int(text.max_position_embeddings)
        self.cache_argument = cache_argument(self.model)
        # the inner model of an M-RoPE family remembers the offset of the last prefill
        inner = getattr(self.model, "model", None)
        self._rope = inner if hasattr(inner, "rope_deltas") else None

    def rows(self, logits: torch.Tensor) -> Rows:
        logits = logits[:, : self.token_limit]
        if logits.device.type == "cpu":
            return NumpyRows(logits.float().numpy())
        torch.cuda.synchronize(logits.device)
        return TorchRows(logits)

    def open(self, prompt: Prompt, capacity: int, positions: int | None = None) -> tuple[Session, Rows]:
        self.check_capacity(prompt.rows, capacity, positions)
        cache = DynamicCache(config=self.model.config.get_text_config())
        vision = {
            # pixels take the model's precision; other numbers (grids, seconds per frame) keep their own
            name: value.to(self.device, self.torch_dtype if name.startswith("pixel_values") else None)
            for name, value in prompt.vision.items()
        }
        if self._rope is not None:
            self._rope.rope_deltas = None
        with torch.inference_mode(), decoder_rows(text_side(self.model), prompt.kept):
            out = self.model(
                input_ids=torch.from_numpy(prompt.input_ids)[None].to(self.device),
                use_cache=True,
                logits_to_keep=1,
                **{self.cache_argument: cache},
                **vision,
            )
        deltas = None if self._rope is None else self._rope.rope_deltas
        rope_delta = 0 if deltas is None else int(deltas.flatten()[0])
        return TorchSession(self, cache, prompt.rows, capacity, rope_delta), self.rows(out.logits[0])


def load_transformers(files: ModelFiles) -> Any:
    """The transformers model of a folder or hub id, in evaluation mode, sdpa attention, no remote code.

    Raises BadInput when weights are missing, or a device map is asked for without the package that it needs.
    """
    config = AutoConfig.from_pretrained(files.source, revision=files.revision)
    kind = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    placement = {}
    if files.device_map is not None:
        if find_spec("accelerate") is None:
            raise BadInput("a device map needs a package that is not installed: pip install 'sage_tune[multi-gpu]'")
        placement["device_map"] = files.device_map
    try:
        model = kind.from_pretrained(
            files.source,
            revision=files.revision,
            dtype=getattr(torch, files.dtype),
            attn_implementation="sdpa",
            **placement,
        )
    except OSError as error:
        raise BadInput(f"{files.source} cannot be loaded: {str(error).strip().splitlines()[0]}") from error
    return model.eval()


def spread(model: Any, files: ModelFiles) -> int:
    """How many devices a device map put layers on. Raises HardwareMissing when some were left to host memory or
    disk: every pass would wait for them, and no measured time would mean anything."""
    # transformers keeps the map on the model only when it names more than one device
    placed = getattr(model, "hf_device_map", None) or {"the whole model": model.get_input_embeddings().weight.device}
    offloaded = sorted(name for name, device in placed.items() if str(device) in ("cpu", "disk"))
    if files.device != "cpu" and offloaded:
        raise HardwareMissing(
            f"device map '{files.device_map}' left {len(offloaded)} parts of {files.source} in host memory or on disk "
            f"({offloaded[0]}, ...); the devices are too small for it"
        )
    return len({str(device) for device in placed.values()})


def require_full_attention(text: Any, source: str) -> None:
    """Raises BadInput for layers that a tree mask does not reach: sliding windows, recurrences, chunks."""
    kinds = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
    if not kinds and getattr(text, "layer_types", None) is None and getattr(text, "sliding_window", None):
        kinds = {"sliding_attention"}
    if kinds:
        raise BadInput(f"{source} has {', '.join(sorted(kinds))} layers, whose tree masks are not supported")


def cache_argument(model: Any) -> str:
    """`cache` from transformers 5.24 on, `past_key_values` before."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
