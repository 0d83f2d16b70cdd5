"""Step graphs and TensorRT engines of a profile's pair, as a folder with policy and README."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.options import err
from profiles.config import load_config
from profiles.errors import ProfileError
from profiles.policy_profile import PolicyProfile
from profiles.registry import ModelSource, named_pair

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

    Raises ProfileError when the pair's weights are not those that the profile was tuned for, and what
    `export_step_graph` and `build_engine` raise.
    """
    from exports.graph_bundle import write_bundle
    from exports.onnx_graph import OPSET, cached_step_graph, graph_key
    from exports.tensorrt_engine import EngineOptions, build_engine, draft_sizes, target_sizes
    from runtime.backends.torch_backend import cache_argument, load_transformers
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
    plan.check_memory()
    opset, options = opset or OPSET, engine or EngineOptions()
    graphs, engines = {}, {}
    for role, source, sizes in (
        ("target", plan.spec.target, target_sizes(frozen.policy)),
        ("draft", plan.spec.draft, draft_sizes(frozen.policy)),
    ):
        saved, found = getattr(frozen.pair, role), model_record(plan.spec, source)
        if found.weights_digest != saved.weights_digest:
            raise ProfileError(
                f"profile '{frozen.name}' was tuned for another {role}: weights saved {saved.weights_digest[:12]}, "
                f"found {found.weights_digest[:12]}"
            )

        def load(source: ModelSource = source, role: str = role) -> tuple[Any, str]:
            err.print(f"exporting the {role}'s step graph, once per set of weights ...")
            loaded = load_transformers(plan.files(source, None))
            return loaded, cache_argument(loaded)

        key = graph_key(found.weights_digest, found.config_digest, plan.dtype, opset)
        graphs[role] = cached_step_graph(f"{plan.spec.name}-{role}", key, load, opset)
        if target == "onnx":
            shutil.copytree(graphs[role], out / role, dirs_exist_ok=True)
        else:
            with err.status(f"building the {role}'s engine ({options.builder}) ..."):
                engines[role] = build_engine(graphs[role], out / role, frozen.policy, sizes, options)
    notes = _notes(frozen, target, plan.dtype)
    return write_bundle(frozen, target, out, graphs, engines or None, notes)


def _notes(frozen: PolicyProfile, target: Kind, dtype: str) -> tuple[str, ...]:
    notes = []
    if dtype != frozen.fingerprint.dtype:
        notes.append(f"tuned in {frozen.fingerprint.dtype}, exported in {dtype}: acceptance and costs are others")
    if frozen.policy.pruning.kind == "verifier":
        notes.append("step graphs give no attention weights: the policy's verifier-guided pruning cannot run on them")
    if target == "tensorrt":
        notes.append("engines were built, not run; a plan is checked on the device when it is loaded")
    return tuple(notes)
