"""TensorRT-LLM: a `--config` YAML for `trtllm-serve` and `trtllm-bench`.

Fields and rules were read in the documents of 1.3.0rc27 and 1.4.0rc4. The block is checked by a closed schema of
those fields before it is written, since TensorRT-LLM refuses unknown keys. A separate draft model drafts chains
(`DraftTarget`); only EAGLE-3 heads draft trees. `max_total_draft_tokens` does not count the root.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from exports.request import ExportRequest, Method, fenced, shell_script
from profiles.frozen import Frozen
from profiles.lowering import Abilities

VERSIONS: Final = ("1.3.0rc27", "1.4.0rc4")
METHODS: Final = {
    "draft_target": Method(Abilities(room="chain", batches="schedule")),
    "eagle3": Method(Abilities(room="rows", batches="same"), head=True),
    "eagle3-chain": Method(Abilities(room="chain", batches="schedule"), head=True),
}
SCHEDULED: Final = ("1.4.0rc4",)
"""Releases whose `draft_len_schedule` was read to have upper bounds as keys; it had lower ones before."""
CONFIG = "trtllm.yaml"


class SpeculativeConfig(Frozen):
    """The fields of `speculative_config` that this exporter writes, with TensorRT-LLM's own rules."""

    decoding_type: Literal["DraftTarget", "Eagle3"]
    speculative_model: str
    max_draft_len: Annotated[int, Field(ge=1)]
    max_total_draft_tokens: Annotated[int, Field(ge=1)] | None = None
    use_dynamic_tree: bool = False
    dynamic_tree_max_topK: Annotated[int, Field(ge=1)] | None = None
    max_concurrency: Annotated[int, Field(ge=1)] | None = None
    draft_len_schedule: dict[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def _rules(self) -> Self:
        tree = self.use_dynamic_tree
        if tree and (self.decoding_type != "Eagle3" or not self.dynamic_tree_max_topK):
            raise ValueError("a dynamic tree needs Eagle3 and dynamic_tree_max_topK > 0")
        if not tree and self.dynamic_tree_max_topK is not None:
            raise ValueError("dynamic_tree_max_topK without use_dynamic_tree turns nothing")
        widest = (self.dynamic_tree_max_topK or 1) * self.max_draft_len
        total = self.max_total_draft_tokens
        if total is not None and not self.max_draft_len <= total <= widest:
            raise ValueError(f"max_draft_len <= max_total_draft_tokens <= {widest} must hold, got {total}")
        schedule = self.draft_len_schedule
        if schedule is not None:
            if tree or self.max_concurrency is not None:
                raise ValueError("draft_len_schedule is for linear drafts, and exclusive with max_concurrency")
            if schedule[min(schedule)] != self.max_draft_len or max(schedule.values()) > self.max_draft_len:
                raise ValueError(f"the schedule starts with max_draft_len and never exceeds it, got {schedule}")
        return self


def block(request: ExportRequest) -> SpeculativeConfig:
    """The speculative block of a request that drafts."""
    tier = request.lowered.tier
    tree = tier.width > 1
    scheduled: dict[str, Any] = {}
    if not tree:
        if request.version in SCHEDULED:
            scheduled = {"draft_len_schedule": schedule(request)}
        elif request.tail == 0:
            scheduled = {"max_concurrency": request.profile.regime.batch}
    return SpeculativeConfig(
        decoding_type="DraftTarget" if request.method == "draft_target" else "Eagle3",
        speculative_model=request.draft,
        max_draft_len=tier.depth,
        max_total_draft_tokens=tier.nodes if tree else None,
        use_dynamic_tree=tree,
        dynamic_tree_max_topK=tier.width if tree else None,
        **scheduled,
    )


def schedule(request: ExportRequest) -> dict[int, int]:
    """Draft length by the largest batch it is for. Above the last key TensorRT-LLM does not speculate."""
    batch = request.profile.regime.batch
    return {batch: request.length} | ({1024: request.tail} if request.tail else {})


def files(request: ExportRequest) -> dict[str, str]:
    lines = [f"# {request.stamp()}"]
    if request.drafts:
        lines.append("speculative_config:")
        for key, value in block(request).model_dump(exclude_defaults=True).items():
            if isinstance(value, dict):
                lines += [f"  {key}:", *(f"    {upper}: {length}" for upper, length in value.items())]
            else:
                lines.append(f"  {key}: {json.dumps(value)}")
    else:
        lines.append("# no speculation: nothing that this engine can run is faster than plain decoding")
        lines.append("speculative_config: null")
    command = ["trtllm-serve", request.target, "--config", CONFIG]
    return {CONFIG: "\n".join(lines) + "\n", "launch.sh": shell_script(request.stamp(), command)}


def start(request: ExportRequest) -> str:
    return (
        "In this folder:\n\n"
        + fenced("sh launch.sh --port 8000")
        + "\nThe same file serves `trtllm-bench throughput --config trtllm.yaml ...`. Read the counters back with\n\n"
        + fenced("curl -s localhost:8000/prometheus/metrics > metrics.txt")
    )


def notes(request: ExportRequest) -> tuple[str, ...]:
    found = ["never run: the fields were read in TensorRT-LLM's documents, no machine here can load it"]
    if request.method == "draft_target":
        found.append(
            "the documents spell the type DraftTarget, the code Draft_Target; if one is refused, write the other"
        )
        if request.sees:
            found.append("it was not seen to hand pictures to a separate draft model, which then reads text alone")
    if request.lowered.tier.width > 1:
        found.append(
            "dynamic trees are not for sliding-window or MLA models, and one release candidate switched them off on "
            "Blackwell; acceptance_length near 1 says that they are off"
        )
    elif request.drafts and request.tail == 0:
        found.append(
            "above batch 1 the draft length is 0; a report on this engine says that a request which met 0 once accepts "
            "less for the rest of its life"
        )
    if request.version not in SCHEDULED and request.drafts and request.tail:
        found.append("draft_len_schedule is left out: the meaning of its keys changed between releases near this one")
    if request.sees:
        found.append("LLaVA-OneVision is not served by its PyTorch backend; speculation with pictures is undocumented")
    return tuple(found)
