"""Step graphs and TensorRT engines of a profile's pair, as a folder with policy and README."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from commands.opening import step_graphs
from commands.options import err
from profiles.config import load_config
from profiles.errors import ProfileError
from profiles.policy_profile import PolicyProfile
from profiles.registry import named_pair

if TYPE_CHECKING:
    from exports.graph_bundle import BundleReport, Kind
    from exports.tensorrt_engine import EngineOptions


def export_graphs(
    frozen: PolicyProfile,
    target: Kind,
    out: Path,
    *,
    model: str | None = None,
    dtype: str | None = None,
    opset: int | None = None,
    engine: EngineOptions | None = None,
) -> BundleReport:
    """Write the bundle of a profile to `out`. `model` names the pair where the profile's own name does not; without
    `dtype` the graphs have the precision that the profile was tuned with; `engine` says how engines are built.

    Raises ProfileError when the pair is not the one that the profile was tuned for, BadInput for a folder that holds
    something else, and what `export_step_graph` and `build_engine` raise.
    """
    from exports.graph_bundle import prepare_folder, write_bundle
    from exports.tensorrt_engine import EngineOptions, build_engine, draft_sizes, target_sizes
    from runtime.pair import model_record
    from tuner.plan import plan_pair

    config = load_config(
        None,
        {
            **named_pair(frozen.pair, model),
            "gpu": "cpu",
            "backend": "torch",
            "dtype": dtype or frozen.fingerprint.dtype,
            "threads": min(frozen.fingerprint.threads, len(os.sched_getaffinity(0))),
        },
    )
    plan = plan_pair(config)[0]
    for role, source in (("target", plan.spec.target), ("draft", plan.spec.draft)):
        saved, found = getattr(frozen.pair, role), model_record(plan.spec, source)
        for field in ("weights_digest", "config_digest"):
            if getattr(found, field) != getattr(saved, field):
                raise ProfileError(
                    f"profile '{frozen.name}' was tuned for another {role}: {field} saved "
                    f"{getattr(saved, field)[:12]}, found {getattr(found, field)[:12]}"
                )
    plan.check_memory()
    prepare_folder(out)
    graphs, engines = step_graphs(plan, opset), {}
    sizes, options = {"target": target_sizes, "draft": draft_sizes}, engine or EngineOptions()
    for role, folder in graphs.items():
        if target == "onnx":
            shutil.copytree(folder, out / role)
        else:
            with err.status(f"building the {role}'s engine ({options.builder})"):
                engines[role] = build_engine(folder, out / role, frozen.policy, sizes[role](frozen.policy), options)
    return write_bundle(frozen, target, out, graphs, engines or None, _notes(frozen, target, plan.dtype, graphs))


def _notes(frozen: PolicyProfile, target: Kind, dtype: str, graphs: dict[str, Path]) -> tuple[str, ...]:
    notes = []
    if "draft" not in graphs:
        notes.append(f"the draft is {frozen.pair.draft.source}, which is no model: it has no graph")
    if dtype != frozen.fingerprint.dtype:
        notes.append(f"tuned in {frozen.fingerprint.dtype}, exported in {dtype}: acceptance and costs are others")
    if frozen.policy.pruning.kind == "verifier":
        notes.append("step graphs give no attention weights: the policy's verifier-guided pruning cannot run on them")
    if target == "tensorrt":
        notes.append("engines were built, not run; a plan is checked on the device when it is loaded")
    return tuple(notes)
