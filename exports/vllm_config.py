"""vLLM: `--speculative-config` JSON. Fields and rules were read in the released wheel of 0.33.0.

vLLM drafts chains only (tree attention was removed). A schedule by batch size is a list of inclusive ranges; what
comes after the last one carries its length on, so the tail is written out.
"""

from __future__ import annotations

import json
from typing import Any, Final

from exports.request import LARGEST_BATCH, ExportRequest, Method, fenced, pretty, shell_script
from profiles.lowering import Abilities

VERSIONS: Final = ("0.33.0",)
CHAIN = Abilities(room="chain", batches="schedule")
METHODS: Final = {"draft_model": Method(CHAIN), "eagle3": Method(CHAIN, head=True)}
CONFIG = "speculative_config.json"


def document(request: ExportRequest) -> dict[str, Any]:
    """The value of `--speculative-config`; empty without speculation."""
    if not request.drafts:
        return {}
    batch = request.profile.regime.batch
    return {
        "method": request.method,
        "model": request.draft,
        "num_speculative_tokens": request.length,
        "num_speculative_tokens_per_batch_size": [[1, batch, request.length], [batch + 1, LARGEST_BATCH, request.tail]],
        "rejection_sample_method": "standard",
    }


def files(request: ExportRequest) -> dict[str, str]:
    config = document(request)
    command = ["vllm", "serve", request.target]
    if config:
        command += ["--speculative-config", json.dumps(config)]
    return {CONFIG: pretty(config), "launch.sh": shell_script(request.stamp(), command)}


def start(request: ExportRequest) -> str:
    return (
        "In this folder:\n\n"
        + fenced("VLLM_USE_V2_MODEL_RUNNER=1 sh launch.sh --port 8000")
        + "\nThe V1 runner takes the schedule by batch size as well, but captures piecewise CUDA graphs then. Under "
        "data parallelism vLLM drops the schedule with a warning. Read the counters back with\n\n"
        + fenced("curl -s localhost:8000/metrics > metrics.txt")
    )


def notes(request: ExportRequest) -> tuple[str, ...]:
    found = ["never run: the fields were read in the wheel, no machine here can load it"]
    if request.method == "draft_model":
        found.append("draft_tensor_parallel_size must equal the target's tensor parallelism")
        if request.sees:
            found.append(
                "a separate draft reads text only there, and one with M-RoPE positions (Qwen-VL) is refused; the "
                "record is of a draft that sees the pictures, so acceptance will be lower"
            )
    elif request.sees:
        found.append("LLaVA-OneVision and LLaVA-NeXT are not among the targets that take EAGLE-3 heads")
    return tuple(found)
