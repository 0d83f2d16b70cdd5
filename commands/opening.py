"""Opening a pair: the one place where exporters and backends meet, since they may not import each other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commands.options import err
from profiles.config import TuneConfig, load_config
from profiles.policy_profile import PolicyProfile
from profiles.registry import ModelSource, named_pair

if TYPE_CHECKING:
    from runtime.pair import Pair, PairPlan
    from tuner.machine import Device

BARS_FROM_GIB = 2.0
"""Weights from here on take long enough for the loaders' own progress bars, downloads included."""


def open_pair(plan: PairPlan) -> Pair:
    """Load a pair, exporting step graphs on first use when its backend runs graphs."""
    from transformers.utils import logging as transformers_logging

    from runtime.pair import load_pair

    transformers_logging.set_verbosity_error()
    size_gib = plan.check_memory()
    if size_gib < BARS_FROM_GIB:
        transformers_logging.disable_progress_bar()
    if plan.backend != "onnx":
        with err.status(f"loading {plan.spec.name}, {size_gib:.3g} GiB"):
            return load_pair(plan)
    graphs = step_graphs(plan)
    with err.status(f"loading {plan.spec.name}"):
        return load_pair(plan, (graphs["target"], graphs.get("draft")))


def step_graphs(plan: PairPlan, opset: int | None = None) -> dict[str, Path]:
    """Folders of a pair's step graphs by role, exported on first use and cached by the digests of weights and
    configuration. A draft that is no model has none. `opset` is the exporter's own without it."""
    from exports.onnx_graph import OPSET, cached_step_graph, graph_key
    from runtime.backends.torch_backend import cache_argument, load_transformers
    from runtime.early_exit import first_layers
    from runtime.model_facts import read_config
    from runtime.pair import model_record

    roles = {"target": plan.spec.target}
    if plan.spec.draft.prompt_lookup is None:
        roles["draft"] = plan.spec.draft
    for source in roles.values():
        read_config(plan.spec, source)  # a missing model or an unknown family is said before anything is exported
    folders = {}
    for role, source in roles.items():

        def load(source: ModelSource = source, role: str = role) -> tuple[Any, str]:
            err.print(f"exporting the {role}'s step graph, once per set of weights ...")
            model = load_transformers(plan.files(source, None))
            if source.early_exit_layers is not None:
                model = first_layers(model, source.early_exit_layers)
            return model, cache_argument(model)

        record = model_record(plan.spec, source)
        key = graph_key(record.weights_digest, record.config_digest, plan.dtype, opset or OPSET)
        folders[role] = cached_step_graph(f"{plan.spec.name}-{role}", key, load, opset or OPSET)
    return folders


def open_configured(config: TuneConfig, keep_to_cores: bool = True) -> tuple[Pair, TuneConfig, Device]:
    """The pair of a configuration on its device, `auto` resolved. The process keeps to the first of its cores, as
    many as are planned, unless somebody else places it."""
    from tuner.plan import plan_pair

    plan, resolved, device = plan_pair(config)
    if keep_to_cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.threads])
    return open_pair(plan), resolved, device


def open_profile(frozen: PolicyProfile, model: str | None = None) -> tuple[Pair, TuneConfig, Device]:
    """The pair that a profile was tuned for, on the backend, dtype and threads that it was tuned with. `model` names
    it where the profile's own name does not. Whether profile and machine fit is `profiles.admission`'s to say."""
    saved = frozen.fingerprint
    config = load_config(
        None,
        {
            **named_pair(frozen.pair, model),
            "gpu": "cpu" if saved.device == "cpu" else "auto",
            "backend": "onnx" if saved.backend == "onnx" else "torch",
            "dtype": saved.dtype,
            "device_map": saved.device_map,
            "threads": min(saved.threads, len(os.sched_getaffinity(0))),
        },
    )
    return open_configured(config)
