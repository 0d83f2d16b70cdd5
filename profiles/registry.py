"""Known pairs and devices: one TOML file each under `profiles/models` and `profiles/gpus`.

A user's own file works the same: `--model path/to/pair.toml`.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiles.errors import BadInput
from profiles.frozen import Frozen
from profiles.store import parse, read_toml

HERE = Path(__file__).resolve().parent


class ModelSource(Frozen):
    """A model folder (relative to the file that names it) or a hub id with its revision."""

    path: str | None = None
    hub: str | None = None
    revision: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError(f"exactly one of path and hub must be given, got {self!r}")
        return self


class PairSpec(Frozen):
    """A pair: target and draft of one family, sharing tokenizer and processor."""

    name: str
    target: ModelSource
    draft: ModelSource
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    backend: Literal["onnx", "torch"] = "torch"
    modalities: tuple[Literal["text", "image", "video"], ...] = ("image",)
    calibration: str | None = None
    """JSONL of calibration samples, relative to the file that names it."""
    weights_gib: Annotated[float, Field(gt=0)]
    """Memory that the weights of both models take in `dtype`."""
    without: tuple[str, ...] = ()
    """Generation settings of the target, by name, that are knowingly not applied (`runtime.processors`)."""
    note: str = ""
    folder: Path = Path()
    """Where relative paths start: the folder of the file that was read."""

    def resolve(self, source: ModelSource) -> str:
        """Absolute folder, or the hub id."""
        return source.hub if source.hub is not None else str((self.folder / str(source.path)).resolve())

    def calibration_path(self) -> Path | None:
        return None if self.calibration is None else (self.folder / self.calibration).resolve()


class GpuSpec(Frozen):
    """A device: how to recognise it, and its published figures with their source."""

    name: str
    product: str
    matches: tuple[str, ...]
    """A device is this one when its reported product name contains one of these, compared case-folded."""
    kind: Literal["cpu", "cuda"]
    memory_gib: float | None = None
    bandwidth_gb_per_s: float | None = None
    dense_bf16_tflops: float | None = None
    source: str = ""


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


def load_gpu_spec(name: str) -> GpuSpec:
    if name not in gpu_names():
        raise BadInput(_unknown("gpu", name, gpu_names()))
    path = HERE / "gpus" / f"{name}.toml"
    return parse(GpuSpec, read_toml(path), str(path))


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"unknown {what} '{name}'{hint} Known: {', '.join(known)}"
