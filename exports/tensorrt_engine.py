"""TensorRT engines from step graphs, with optimisation profiles for the passes that a policy makes.

Built by `tensorrt` on the GPU that will run the engine, or by `tensorrt_rtx`, which also builds ahead of time for
architectures that are not here. Networks are strongly typed: precision is the graph's, and TF32 is off.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from profiles.engine_contract import (
    CONTEXT_STEP,
    ENGINE_FILE,
    PLAN_FILE,
    Builder,
    EngineRecord,
    HardwareCompatibility,
    PassShape,
)
from profiles.errors import BadInput, HardwareMissing
from profiles.frozen import Frozen
from profiles.graph_contract import EMBEDDINGS_FILE, GRAPH_FILE, StepGraph, read_graph
from profiles.policy import CompiledPolicy
from profiles.provenance import digest, file_digest
from profiles.store import atomic_path, write_json
from profiles.tensorrt_module import error_log, load_tensorrt

PROMPT_PIECE = 512
"""Rows of a prompt that run in one pass: scores take heads x piece x context of memory."""


class EngineOptions(Frozen):
    """How engines are built."""

    builder: Builder = "tensorrt_rtx"
    compute_capabilities: tuple[Annotated[str, Field(pattern=r"^sm_\d{2,3}$")], ...] = Field(
        default=(), description="architectures to build for (tensorrt_rtx alone); none takes that of this machine's GPU"
    )
    hardware_compatibility: HardwareCompatibility = "none"
    context: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="most cached rows; none takes the policy's tuned context and its largest tree"
    )
    prompt_piece: Annotated[int, Field(ge=2)] = PROMPT_PIECE
    timing_cache: Path | None = Field(
        default=None, description="file of measured kernels (tensorrt alone), read when there and written back"
    )


def target_sizes(policy: CompiledPolicy) -> tuple[int, ...]:
    """Rows of the target's passes: the sizes that trees are padded to."""
    return policy.verify_sizes


def draft_sizes(policy: CompiledPolicy) -> tuple[int, ...]:
    """Rows of the draft's passes: frontiers of every width, and catching up with 1 to depth + 1 committed tokens."""
    widths = {tier.width for tier in policy.tiers if tier.depth > 1}
    return tuple(sorted({1, 2, *widths, policy.max_depth + 1})) if policy.drafts() else (1,)


def pass_shapes(
    graph: StepGraph, policy: CompiledPolicy, sizes: tuple[int, ...], options: EngineOptions
) -> tuple[PassShape, ...]:
    """Optimisation profiles: one per step size, whose context is tuned at its middle, and one for prompts."""
    rows = options.context or min(policy.context_max + policy.verify_sizes[-1], graph.max_positions)
    past = _past_range(rows)
    piece = max(options.prompt_piece, sizes[-1] + 1)
    steps = [PassShape(n=(n, n, n), logit_rows=(n, n, n), past=past) for n in sizes]
    return (*steps, PassShape(n=(1, piece // 2, piece), logit_rows=(1, 1, 1), past=past))


def _past_range(rows: int) -> tuple[int, int, int]:
    steps = -(-rows // CONTEXT_STEP)
    return (CONTEXT_STEP, (steps + 1) // 2 * CONTEXT_STEP, steps * CONTEXT_STEP)


def build_engine(
    graph_folder: Path,
    folder: Path,
    policy: CompiledPolicy,
    sizes: tuple[int, ...],
    options: EngineOptions,
) -> EngineRecord:
    """Build the plan of a step graph into `folder`; the side file comes last.

    Raises HardwareMissing when the library or the GPU that it needs is not here, BadInput for options that the
    library does not have, ProfileError for an incomplete graph, and BadInput with the library's own reason when
    the graph cannot be parsed or built.
    """
    graph = read_graph(graph_folder)
    trt = load_tensorrt(options.builder)
    targets = _targets(trt, options)
    log = error_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(graph_folder / GRAPH_FILE)):
        raise BadInput(f"{options.builder} cannot parse {graph_folder / GRAPH_FILE}: {parser.get_error(0).desc()}")

    shapes = pass_shapes(graph, policy, sizes, options)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    config.hardware_compatibility_level = getattr(
        trt.HardwareCompatibilityLevel, options.hardware_compatibility.upper()
    )
    if options.builder == "tensorrt_rtx":
        config.num_compute_capabilities = len(targets)
        for i, name in enumerate(targets):
            config.set_compute_capability(getattr(trt.ComputeCapability, name.replace("_", "").upper()), i)
    for shape in shapes:
        config.add_optimization_profile(_profile(builder, graph, shape))
    if options.timing_cache is not None:
        saved = options.timing_cache.read_bytes() if options.timing_cache.exists() else b""
        config.set_timing_cache(config.create_timing_cache(saved), ignore_mismatch=False)

    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BadInput(f"{options.builder} {trt.__version__} cannot build {graph_folder / GRAPH_FILE}: {log.last()}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ENGINE_FILE).unlink(missing_ok=True)
    with atomic_path(folder / PLAN_FILE) as path:
        path.write_bytes(plan)
    shutil.copyfile(graph_folder / EMBEDDINGS_FILE, folder / EMBEDDINGS_FILE)
    if options.timing_cache is not None:
        with atomic_path(options.timing_cache) as path:
            path.write_bytes(config.get_timing_cache().serialize())
    record = EngineRecord(
        graph=graph,
        graph_digest=graph.digest,
        policy_digest=digest(policy.model_dump(mode="json")),
        builder=options.builder,
        builder_version=trt.__version__,
        compute_capabilities=targets,
        hardware_compatibility=options.hardware_compatibility,
        shapes=shapes,
        files={name: file_digest(folder / name) for name in (PLAN_FILE, EMBEDDINGS_FILE)},
    )
    write_json(folder / ENGINE_FILE, record)
    return record


def _profile(builder: Any, graph: StepGraph, shape: PassShape) -> Any:
    profile = builder.create_optimization_profile()
    for name in graph.inputs:
        profile.set_shape(name, *shape.tensor_shapes(graph, name))
    return profile


def _targets(trt: Any, options: EngineOptions) -> tuple[str, ...]:
    """Architectures to build for. Raises BadInput for one that the library does not build for."""
    here = None
    if torch.cuda.is_available():
        here = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if options.builder == "tensorrt":
        if here is None:
            raise HardwareMissing("tensorrt builds on the GPU that runs the engine, torch sees no CUDA device here")
        if options.compute_capabilities not in ((), (here,)):
            raise BadInput(
                f"tensorrt builds for this machine's GPU ({here}) alone, got "
                f"{', '.join(options.compute_capabilities)}; tensorrt_rtx builds for others"
            )
        return (here,)
    if options.timing_cache is not None:
        raise BadInput("timing_cache belongs to tensorrt; tensorrt_rtx measures no kernels while it builds")
    known = [name.lower().replace("sm", "sm_") for name in trt.ComputeCapability.__members__ if name.startswith("SM")]
    wanted = options.compute_capabilities or ((here,) if here else ())
    if not wanted:
        raise BadInput(
            f"there is no GPU here to build for: name an architecture (--arch), known are {', '.join(known)}"
        )
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise BadInput(
            f"tensorrt_rtx {trt.__version__} builds for {', '.join(known)}, got {', '.join(unknown)}; tensorrt builds "
            "on other GPUs"
        )
    return wanted
