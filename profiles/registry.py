"""Known pairs and devices: one TOML file each under `profiles/models` and `profiles/gpus`.

A user's own file works the same: `--model path/to/pair.toml`.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiles.draft_kinds import EARLY_EXIT, LookupSettings, parse_early_exit, parse_lookup
from profiles.errors import BadInput
from profiles.families import FAMILIES, Modality
from profiles.frozen import Frozen
from profiles.model_shape import ModelShape
from profiles.policy_profile import ModelRecord, PairRecord
from profiles.store import cache_root, parse, read_toml

HERE = Path(__file__).resolve().parent
Dtype = Literal["float32", "bfloat16", "float16"]
DTYPE_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
IN_CACHE = "cache:"
"""Begins the path of a folder that a command makes in the user's cache (`profiles.store.cache_root`)."""


class ModelSource(Frozen):
    """One model: a folder or a hub id with its revision. A draft may also be no model of its own: a prompt lookup, or
    the first layers of the target. Exactly one of the four."""

    path: str | None = None
    """Relative to the file that names it, or `cache:NAME`."""
    hub: str | None = None
    prompt_lookup: LookupSettings | None = None
    early_exit_layers: Annotated[int | None, Field(ge=1)] = None
    """Layers of the target that run before its final norm and head."""
    revision: str | None = None
    """Branch, tag or commit on the hub. A branch such as `main` moves; what is recorded is the commit it stood for."""
    made_by: str | None = None
    """Command that makes the folder, named where it is missing."""
    weights_gib: Annotated[float | None, Field(gt=0)] = None
    """Memory that its weights take in the pair's `dtype`; measured from its files where it is not stated."""
    shape: ModelShape | None = None
    """Sizes of its text side, for estimates on a device that is not here; read from its config where absent."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        ways = ("path", "hub", "prompt_lookup", "early_exit_layers")
        given = {name: value for name in ways if (value := getattr(self, name)) is not None}
        if len(given) != 1:
            raise ValueError(f"exactly one of {', '.join(ways)} must be given, got {given or 'none'}")
        if self.hub is None and self.revision is not None:
            raise ValueError(f"a revision belongs to a hub id, got {given}, revision={self.revision!r}")
        if self.path is None and self.made_by is not None:
            raise ValueError(f"made_by belongs to a path, got {given}, made_by={self.made_by!r}")
        stated = [name for name in ("weights_gib", "shape") if getattr(self, name) is not None]
        if stated and not self.is_model:
            raise ValueError(f"{stated[0]} belongs to a model of its own, got {given}")
        return self

    @property
    def is_model(self) -> bool:
        """True for weights of its own, False for a draft that is read off the prompt or the target."""
        return self.path is not None or self.hub is not None

    def label(self) -> str:
        """How it is called: a hub id, a folder, or what `--draft` takes for a draft that is no model of its own."""
        if self.prompt_lookup is not None:
            return self.prompt_lookup.label()
        if self.early_exit_layers is not None:
            return f"{EARLY_EXIT}:{self.early_exit_layers}"
        path = str(self.path)
        return self.hub or (path if path.startswith(IN_CACHE) else f"embedded {path}")


def derived_draft(text: str) -> ModelSource | None:
    """The draft that a label such as `prompt-lookup` or `early-exit:8` stands for, None for a model. Raises
    BadInput."""
    lookup, layers = parse_lookup(text), parse_early_exit(text)
    if lookup is None and layers is None:
        return None
    return ModelSource(prompt_lookup=lookup, early_exit_layers=layers)


class PairSpec(Frozen):
    """A pair: target and draft of one family, sharing one tokenizer, or a target and a way to draft for it."""

    name: str
    target: ModelSource
    draft: ModelSource
    family: str | None = None
    """`model_type` of a vision-language target, when it is known before its config is read."""
    dtype: Dtype = "float32"
    backend: Literal["onnx", "torch"] = "torch"
    modalities: tuple[Modality, ...] = ("image",)
    calibration: str | None = None
    """JSONL of calibration samples, relative to the file that names it."""
    weights_gib: Annotated[float | None, Field(gt=0)] = None
    """Memory that the weights of both models take in `dtype`, when the models do not state it one by one."""
    without: tuple[str, ...] = ()
    """Generation settings of the target, by name, that are knowingly not applied (`runtime.processors`)."""
    note: str = ""
    folder: Path = Path()
    """Where relative paths start: the folder of the file that was read."""

    @model_validator(mode="after")
    def _known_family(self) -> Self:
        if self.family is not None and self.family not in FAMILIES:
            raise ValueError(f"family must be one of {', '.join(sorted(FAMILIES))}, got {self.family!r}")
        return self

    @model_validator(mode="after")
    def _target_is_a_model(self) -> Self:
        if not self.target.is_model:
            raise ValueError(f"the target must be a path or a hub id, got '{self.target.label()}'")
        return self

    def files_of(self, source: ModelSource) -> ModelSource:
        """The model whose files describe `source`: the target for a draft that is no model of its own."""
        return source if source.is_model else self.target

    def resolve(self, source: ModelSource) -> str:
        """Absolute folder, or the hub id, of the files that describe a model."""
        files = self.files_of(source)
        if files.hub is not None:
            return files.hub
        path = str(files.path)
        if path.startswith(IN_CACHE):
            return str(cache_root().absolute() / path.removeprefix(IN_CACHE))
        return str((self.folder / path).resolve())

    def calibration_path(self) -> Path | None:
        return None if self.calibration is None else (self.folder / self.calibration).resolve()

    def stated_gib(self, dtype: str) -> float | None:
        """Memory of both models' weights in a dtype by what the file states, None when it does not say. A draft that
        is no model of its own adds none: it has no weights, or shares the target's."""
        scale = DTYPE_BYTES[dtype] / DTYPE_BYTES[self.dtype]
        if self.weights_gib is not None:
            return self.weights_gib * scale
        draft_gib = self.draft.weights_gib if self.draft.is_model else 0.0
        if self.target.weights_gib is None or draft_gib is None:
            return None
        return (self.target.weights_gib + draft_gib) * scale


class GpuSpec(Frozen):
    """A device: how to recognise it, and its published figures with their source."""

    name: str
    product: str
    aliases: tuple[str, ...] = ()
    """Short names that mean this device where one must be chosen: `h100` for an estimate."""
    matches: tuple[str, ...]
    """Product names that the driver reports for it, whole: a slice or a sibling of it has other figures."""
    kind: Literal["cpu", "cuda"]
    memory_gib: Annotated[float | None, Field(gt=0)] = None
    bandwidth_gb_per_s: Annotated[float | None, Field(gt=0)] = None
    dense_bf16_tflops: Annotated[float | None, Field(gt=0)] = None
    """Dense tensor rate with float32 accumulation: half of the figure that vendors print for sparse matrices."""
    source: str = ""

    def matches_product(self, product: str) -> bool:
        return product.casefold() in {name.casefold() for name in self.matches}


def model_names() -> list[str]:
    return sorted(path.stem for path in (HERE / "models").glob("*.toml"))


def gpu_names() -> list[str]:
    return sorted(path.stem for path in (HERE / "gpus").glob("*.toml"))


def load_pair_spec(name_or_path: str) -> PairSpec:
    """A pair by its registered name or by the path of a TOML file. Raises BadInput with the nearest name."""
    if name_or_path.endswith(".toml"):
        path = Path(name_or_path)
        raw = read_toml(path)
        folder = path.resolve().parent
    else:
        path = HERE / "models" / f"{name_or_path}.toml"
        if name_or_path not in model_names():
            raise BadInput(_unknown("model", name_or_path, model_names()))
        raw = read_toml(path)
        folder = HERE
    return parse(PairSpec, {**raw, "folder": folder}, str(path))


def named_pair(record: PairRecord, model: str | None) -> dict[str, str]:
    """Configuration fields that name a recorded pair again: `model` where it is given, else its registered name,
    else the hub ids or absolute folders of a pair that was given as target and draft."""
    target, draft = _given_name(record.target), _given_name(record.draft)
    if model is not None or record.name in model_names() or target is None or draft is None:
        return {"model": model or record.name}
    return {"target": target, "draft": draft}


def _given_name(record: ModelRecord) -> str | None:
    """What a recorded model is called on a command line; None for a folder that only its pair's file can place."""
    if record.revision:
        return f"{record.source}@{record.revision}"
    named = Path(record.source).is_absolute() or derived_draft(record.source) is not None
    return record.source if named else None


def load_gpu_spec(name: str) -> GpuSpec:
    """A device by the name of its file. Raises BadInput with the nearest name."""
    if name not in gpu_names():
        raise BadInput(_unknown("gpu", name, gpu_names()))
    path = HERE / "gpus" / f"{name}.toml"
    return parse(GpuSpec, read_toml(path), str(path))


def gpu_specs(name: str) -> list[GpuSpec]:
    """Every device that a name may mean, the one it stands for first: `h100` is any H100. Raises BadInput."""
    known = [load_gpu_spec(stem) for stem in gpu_names()]
    found = [spec for spec in known if name in (spec.name, *spec.aliases)]
    found += [spec for spec in known if spec.name.startswith(f"{name}-") and spec not in found]
    return found or [load_gpu_spec(name)]


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"unknown {what} '{name}'{hint} Known: {', '.join(known)}"
