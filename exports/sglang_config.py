"""SGLang: launch flags of a fixed tree, and the adaptive JSON for chains by batch size. Read in the wheel of 0.5.23.

`--speculative-num-draft-tokens` counts the root. With topk 1 SGLang sets it to steps + 1 by itself. There is no
plugin that switches tiers by step: the public registry takes a worker class, but a worker with a tree per step needs
one captured runtime state per tier, which SGLang has for chains of EAGLE heads only (its adaptive mode), and its
workers are no public interface.
"""

from __future__ import annotations

from typing import Any, Final

from exports.request import ExportRequest, Method, fenced, pretty, shell_script
from profiles.lowering import Abilities

VERSIONS: Final = ("0.5.23",)
METHODS: Final = {
    "standalone": Method(Abilities(room="pool")),
    "eagle3": Method(Abilities(room="pool"), head=True),
    "eagle3-chain": Method(Abilities(room="chain", batches="schedule"), head=True),
}
ADAPTIVE = "adaptive.json"


def flags(request: ExportRequest) -> list[str]:
    """Everything about speculation; nothing without it."""
    if not request.drafts:
        return []
    tier = request.lowered.tier
    algorithm = "STANDALONE" if request.method == "standalone" else "EAGLE3"
    found = ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", request.draft]
    found += ["--speculative-num-steps", str(tier.depth), "--speculative-eagle-topk", str(tier.width)]
    found += ["--speculative-num-draft-tokens", str(tier.nodes + 1)]
    found += ["--speculative-accept-threshold-single", "1.0", "--speculative-accept-threshold-acc", "1.0"]
    if request.method == "eagle3-chain":
        found += ["--speculative-adaptive", "--speculative-adaptive-config", ADAPTIVE]
    return found


def adaptive(request: ExportRequest) -> dict[str, Any]:
    """Steps by batch size. One candidate each: nothing is left to the moving average, so replay says what it does."""
    batch = request.profile.regime.batch
    return {
        str(batch): {"candidate_steps": [request.length]},
        str(batch + 1): {"candidate_steps": [request.tail]},
    }


def files(request: ExportRequest) -> dict[str, str]:
    command = ["python", "-m", "sglang.launch_server", "--model-path", request.target, *flags(request)]
    found = {"launch.sh": shell_script(request.stamp(), command)}
    if request.method == "eagle3-chain" and request.drafts:
        found[ADAPTIVE] = pretty(adaptive(request))
    return found


def start(request: ExportRequest) -> str:
    return (
        "In this folder:\n\n"
        + fenced("sh launch.sh --port 30000 --enable-metrics")
        + "\nRead the gauges back with\n\n"
        + fenced("curl -s localhost:30000/metrics > metrics.txt")
    )


def notes(request: ExportRequest) -> tuple[str, ...]:
    found = ["never run: the flags were read in the wheel, no machine here can load it"]
    found.append("--max-running-requests becomes 48 under speculation where it is not set")
    if request.lowered.tier.width > 1:
        found.append("topk > 1 with a page size > 1 needs the flashinfer, fa3 or triton attention backend")
    if request.method == "standalone":
        found.append("STANDALONE does not work with data-parallel attention")
        if request.sees:
            found.append("its draft worker was not seen to handle pictures: unverified for requests with one")
    elif request.sees:
        found.append("LLaVA models have no hook for EAGLE-3 heads")
    if request.method == "eagle3-chain":
        found.append("the adaptive mode is off under data-parallel attention and two-batch overlap")
    return tuple(found)
