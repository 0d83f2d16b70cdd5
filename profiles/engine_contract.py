"""The contract of a built TensorRT engine: its files, the passes that it has profiles for, and what it was built for.

An engine folder stands alone: plan, embedding table and side file. Its graph is a step graph
(`profiles.graph_contract`) of which every pass is padded:

- `n` to the next size that has an optimisation profile of its own, so that its kernels and its CUDA graph are made
  for exactly this size;
- `past` to a multiple of `CONTEXT_STEP` rows, so that one CUDA graph serves many rounds of a growing context.

The mask hides what was added. Prompts run in pieces of at most the last profile's size, for their last logits only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from profiles.errors import HardwareMissing, ProfileError
from profiles.frozen import Frozen
from profiles.graph_contract import StepGraph
from profiles.provenance import file_digest
from profiles.store import read_json

Builder = Literal["tensorrt", "tensorrt_rtx"]
"""The two libraries with one interface; also the name of the Python module."""
EXTRAS: dict[Builder, str] = {"tensorrt": "tensorrt", "tensorrt_rtx": "tensorrt-rtx"}
"""Optional dependency of this project that installs each."""
HardwareCompatibility = Literal["none", "ampere_plus", "same_compute_capability"]
PLAN_FILE, ENGINE_FILE = "step.plan", "engine.json"
CONTEXT_STEP = 256
"""Cached rows of a pass are padded to a multiple of this."""
Range = tuple[int, int, int]
"""Least, best-tuned and largest size of an axis."""


class PassShape(Frozen):
    """One optimisation profile: sizes of a pass. With one size alone for `n` it is a step's, else a prompt's."""

    n: Range
    logit_rows: Range
    past: Range

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name in ("n", "logit_rows", "past"):
            least, best, largest = getattr(self, name)
            if not 1 <= least <= best <= largest:
                raise ValueError(f"1 <= least <= best <= largest must hold for {name}, got {getattr(self, name)}")
        return self

    @property
    def is_step(self) -> bool:
        return self.n[0] == self.n[2]

    def tensor_shapes(self, graph: StepGraph, tensor: str) -> tuple[tuple[int, ...], ...]:
        """Least, best and largest shape of a graph's input or output."""
        return tuple(
            graph.shape(tensor, n, rows, past) for n, rows, past in zip(self.n, self.logit_rows, self.past, strict=True)
        )


class EngineRecord(Frozen):
    """Side file of a plan: what it was built from, for and with."""

    graph: StepGraph
    graph_digest: str
    """`StepGraph.digest` of the bundle that the plan was built from."""
    policy_digest: str
    """Digest of the compiled policy whose sizes the profiles have."""
    builder: Builder
    builder_version: str
    compute_capabilities: Annotated[tuple[str, ...], Field(min_length=1)]
    """Architectures that the plan holds code for, as `sm_89`."""
    hardware_compatibility: HardwareCompatibility = "none"
    shapes: Annotated[tuple[PassShape, ...], Field(min_length=2)]
    """One per optimisation profile: steps in ascending size, then the prompt's."""
    files: dict[str, str]
    """File name to SHA-256: the plan and the embedding table."""

    @property
    def max_past(self) -> int:
        """Rows that a cache can have."""
        return self.shapes[-1].past[2]

    @property
    def step_sizes(self) -> tuple[int, ...]:
        return tuple(shape.n[2] for shape in self.shapes[:-1])

    def check_version(self, found: str) -> None:
        """Raises HardwareMissing unless the library that runs a plan is the one that built it."""
        if found != self.builder_version:
            raise HardwareMissing(
                f"the plan was built by {self.builder} {self.builder_version}, this machine has {found}; a plan runs "
                "on the version that built it: build it again, or install that version"
            )

    def check_architecture(self, found: str) -> None:
        """Raises HardwareMissing when the plan holds no code for an architecture (`sm_90`)."""
        newer = self.hardware_compatibility == "ampere_plus" and int(found.removeprefix("sm_")) >= 80
        if found not in self.compute_capabilities and not newer:
            raise HardwareMissing(
                f"the plan was built for {', '.join(self.compute_capabilities)} (hardware compatibility "
                f"{self.hardware_compatibility}), this device is {found}; build it for {found}"
            )


def read_engine(folder: Path) -> EngineRecord:
    """Side file of an engine folder, with every named file present and unchanged. Raises ProfileError."""
    if not (folder / ENGINE_FILE).exists():
        raise ProfileError(f"{folder} holds no engine: no such file {ENGINE_FILE}; its files belong together")
    record = read_json(folder / ENGINE_FILE, EngineRecord)
    for name, saved in record.files.items():
        if not (folder / name).exists():
            raise ProfileError(f"{folder} is incomplete: {name} is missing; the engine's files belong together")
        if file_digest(folder / name) != saved:
            raise ProfileError(f"{folder / name} was changed since it was built; build it again")
    return record
