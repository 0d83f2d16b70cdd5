"""OpenVINO GenAI: a generation configuration for pipelines with a draft model. Read and run with 2026.4.1.0.

`num_assistant_tokens` and `assistant_confidence_threshold` exclude each other: a draft has a length, or it ends after
the first token whose own probability is below the threshold. Only the continuous-batching backend takes both as they
are, and it is chosen by passing a scheduler configuration; the other one moves the length by itself. Its tree search
is for EAGLE-3 heads.
"""

from __future__ import annotations

from typing import Any, Final

from exports.request import ExportRequest, Method, fenced, pretty
from profiles.lowering import Abilities

VERSIONS: Final = ("2026.4.1.0",)
METHODS: Final = {"draft_model": Method(Abilities(room="chain", confidence="uncapped"))}
CONFIG = "generation_config.json"


def document(request: ExportRequest) -> dict[str, Any]:
    """What `openvino_genai.GenerationConfig` reads; without speculation nothing is set."""
    if not request.drafts:
        return {}
    if not request.lowered.capped:
        # greedy decoding computes no probability unless one is asked for, and 0 ends every draft after one token
        return {"assistant_confidence_threshold": request.lowered.confidence, "logprobs": 1}
    return {"num_assistant_tokens": request.length}


def files(request: ExportRequest) -> dict[str, str]:
    return {CONFIG: pretty(document(request))}


def start(request: ExportRequest) -> str:
    draft = 'draft = genai.draft_model("draft", "CPU", scheduler_config=scheduler)\n' if request.drafts else ""
    given = ", draft_model=draft" if request.drafts else ""
    code = f"""import openvino_genai as genai

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 2  # GiB
{draft}pipe = genai.LLMPipeline("target", "CPU", scheduler_config=scheduler{given})
config = genai.GenerationConfig("{CONFIG}")
config.max_new_tokens = 256
result = pipe.generate(["your prompt"], config)
print(result.texts[0], result.extended_perf_metrics.get_num_accepted_tokens())"""
    return (
        "`target` and `draft` are folders of OpenVINO models with their tokenizers, as `optimum-cli export openvino` "
        "writes them.\n\n"
        + fenced(code, "python")
        + "\nThe CPU keeps its cache in 8 bits by default; outputs of a pass then depend on its size. Give "
        "`KV_CACHE_PRECISION='f32'` and `INFERENCE_PRECISION_HINT='f32'` to compare tokens with plain decoding.\n"
    )


def notes(request: ExportRequest) -> tuple[str, ...]:
    found = ["run by the tests of sage_tune with the text side of the embedded pair; with pictures never"]
    if request.sees:
        found.append("pictures together with a separate draft model were not established for this release")
    return tuple(found)
