"""What can be known of a model before its weights are read: its memory, its shape, its family.

Local folders tell it in the headers of their safetensors files, hub ids through the hub's metadata.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from profiles.errors import BadInput
from profiles.families import vision_family
from profiles.model_shape import ModelShape
from profiles.registry import DTYPE_BYTES, ModelSource, PairSpec, derived_draft

HUB_TIMEOUT_S = 10.0


def needed_gib(spec: PairSpec, dtype: str, backend: str = "torch") -> float:
    """Memory that the weights of both models take in a dtype. What the pair's file states is not measured again.

    An early exit shares the target's weights under torch; as a step graph it holds its layers, embedding and head
    once more.
    """
    gib = spec.stated_gib(dtype)
    if gib is None:
        models = [source for source in (spec.target, spec.draft) if source.is_model]
        gib = _gib(sum(parameter_count(spec, source) for source in models), dtype)
    if backend == "onnx" and spec.draft.early_exit_layers is not None:
        shape = model_shape(spec, spec.draft)
        gib += _gib(shape.dense_parameters() + shape.vocab * shape.hidden, dtype)
    return gib


def _gib(parameters: int, dtype: str) -> float:
    return parameters * DTYPE_BYTES[dtype] / (1 << 30)


def parameter_count(spec: PairSpec, source: ModelSource) -> int:
    """Parameters of a model of its own by its safetensors headers. Raises BadInput when they cannot be read."""
    if source.weights_gib is not None:
        return round(source.weights_gib * (1 << 30) / DTYPE_BYTES[spec.dtype])
    folder = Path(spec.resolve(source)) if source.hub is None else _cached(source)
    files = [] if folder is None else _weight_files(folder)
    if files:
        return sum(_parameters_in(path) for path in files)
    if source.hub is None:
        raise BadInput(f"{folder} holds no complete safetensors weights")
    from huggingface_hub import get_safetensors_metadata

    metadata = _ask_hub(source, lambda: get_safetensors_metadata(str(source.hub), revision=source.revision))
    return int(sum(metadata.parameter_count.values()))


def require_made(spec: PairSpec) -> None:
    """Raises BadInput at once for a model folder that is not here, naming the command that makes it if there is one."""
    for source in (spec.target, spec.draft):
        if source.path is None or (Path(spec.resolve(source)) / "config.json").exists():
            continue
        how = "" if source.made_by is None else f"; make it with: {source.made_by}"
        raise BadInput(f"{spec.resolve(source)} holds no model (config.json is missing){how}")


def require_reachable(source: ModelSource) -> None:
    """Raises BadInput at once when a hub id is neither in the local cache nor to be had from the hub; the loaders
    of transformers would ask again for half a minute first."""
    if source.hub is None or _cached(source) is not None:
        return
    from huggingface_hub import HfApi

    _ask_hub(source, lambda: HfApi().model_info(str(source.hub), revision=source.revision, timeout=HUB_TIMEOUT_S))


def _ask_hub(source: ModelSource, question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception as error:  # the client's HTTP library, and with it the errors of a dead line, changes by release
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BadInput(f"'{source.hub}' is not in the local cache and cannot be had from the hub: {reason}") from error


def _cached(source: ModelSource) -> Path | None:
    """The local snapshot of a hub id, None when its configuration was never downloaded."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(str(source.hub), "config.json", revision=source.revision)
    return Path(found).parent if isinstance(found, str) else None


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder; none when its index names one that is not there."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        files = [folder / name for name in sorted(named)]
        return files if all(path.exists() for path in files) else []
    return sorted(folder.glob("*.safetensors"))


def _parameters_in(path: Path) -> int:
    """The format: eight bytes of header length, then JSON of name to dtype, shape and offsets."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def read_config(spec: PairSpec, source: ModelSource) -> Any:
    """The transformers configuration of a model, the target's for a draft that is none of its own. Raises BadInput
    when it is missing or not of a known family."""
    from transformers import AutoConfig

    source = spec.files_of(source)
    require_reachable(source)
    try:
        config = AutoConfig.from_pretrained(spec.resolve(source), revision=source.revision)
    except (OSError, ValueError) as error:
        # the library's own text runs over several lines; its first one says which file or host
        raise BadInput(f"'{spec.resolve(source)}' cannot be read: {str(error).strip().splitlines()[0]}") from error
    vision_family(config.model_type, hasattr(config, "vision_config"))
    return config


def placeholder_ids(config: Any) -> dict[str, int]:
    """Ids that a model replaces by picture or video features, by what they stand for; none for a text-only one."""
    found = {}
    for kind in ("image", "video"):
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            value = getattr(config, name, None)
            if isinstance(value, int):
                found[kind] = value
                break
    return found


def generation_settings(source: str, revision: str | None) -> dict[str, Any]:
    """A model's own generation settings by name; none when it ships none."""
    from transformers import GenerationConfig

    try:
        settings: dict[str, Any] = GenerationConfig.from_pretrained(source, revision=revision).to_dict()
    except OSError:
        return {}
    return settings


def shape_of(config: Any) -> ModelShape:
    """The shape of a transformers configuration's text side."""
    text = config.get_text_config()
    experts = int(getattr(text, "num_experts", None) or 0)
    return ModelShape(
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=text.num_key_value_heads or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        intermediate=text.moe_intermediate_size if experts else text.intermediate_size,
        vocab=text.vocab_size,
        experts=experts,
        experts_per_token=text.num_experts_per_tok if experts else 0,
    )


def model_shape(spec: PairSpec, source: ModelSource) -> ModelShape:
    """The shape of a model by its pair's file, else by its configuration; of an early exit, by the target's.

    Raises BadInput for an early exit that leaves no layer out.
    """
    files = spec.files_of(source)
    shape = files.shape or shape_of(read_config(spec, files))
    if source.early_exit_layers is None:
        return shape
    if source.early_exit_layers >= shape.layers:
        raise BadInput(
            f"early exit layers < layers of the target must hold, got {source.early_exit_layers} of {shape.layers}"
        )
    return shape.model_copy(update={"layers": source.early_exit_layers})


def given_source(text: str) -> ModelSource:
    """What a person calls a model: a folder that is here, else a hub id `owner/name`, with `@revision` if wanted.

    Raises BadInput for a folder that is not here.
    """
    folder = Path(text).expanduser()
    if text and folder.is_dir():
        return ModelSource(path=str(folder.resolve()))
    hub, _, revision = text.partition("@")
    if not re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", hub):
        raise BadInput(f"'{text}' is neither a folder that is here nor a hub id owner/name[@revision]")
    return ModelSource(hub=hub, revision=revision or "main")


def own_pair(base: PairSpec, target: str | None, draft: str | None) -> PairSpec:
    """A pair from what was given on the command line. Both given: a pair of its own, nothing of `base` remains.
    One given: it takes the place of `base`'s. A draft may be `prompt-lookup` or `early-exit:N`. Reads the target's
    configuration, no weights."""
    if target is None and draft is None:
        return base
    names = (base.name if target is None else target, base.draft.label() if draft is None else draft)
    derived = None if draft is None else derived_draft(draft)
    spec = PairSpec(
        # the name becomes that of a run folder
        name="+".join(re.sub(r"[:=,]", "-", Path(name.partition("@")[0]).name) for name in names),
        target=_absolute(base, base.target) if target is None else given_source(target),
        draft=_absolute(base, base.draft) if draft is None else derived or given_source(draft),
        family=base.family if target is None else None,
        dtype=base.dtype,
        # how the target is best run stays true where no model takes the draft's place
        backend=base.backend if target is None and derived is not None else "torch",
        modalities=base.modalities,
        calibration=None if base.calibration_path() is None else str(base.calibration_path()),
        without=base.without if target is None else (),
    )
    if target is None:
        return spec
    config = read_config(spec, spec.target)
    vision = hasattr(config, "vision_config")
    found: dict[str, Any] = {
        "family": config.model_type if vision else None,
        "modalities": ("image",) if vision else ("text",),
    }
    if draft is not None:
        saved = str(config.dtype).removeprefix("torch.")
        found |= {"dtype": saved if saved in DTYPE_BYTES else "float32", "calibration": None}
    return spec.model_copy(update=found)


def _absolute(base: PairSpec, source: ModelSource) -> ModelSource:
    return source if source.path is None else source.model_copy(update={"path": base.resolve(source)})
