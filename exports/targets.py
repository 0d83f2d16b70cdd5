"""Engines that a policy is exported to as configuration: versions, ways of drafting, and who writes the files.

`TARGETS` is the table. A version is named when its fields were read in its own release, its documents or its help
text; any other is refused, because field names and rules move between releases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from exports import llamacpp_config, openvino_config, sglang_config, transformers_config, trtllm_config, vllm_config
from exports.lowering import lost
from exports.request import ExportRequest, Method
from profiles.errors import BadInput
from profiles.lowering import FromProfile, Lowered, LoweringNumbers, LoweringReport
from profiles.policy_profile import PolicyProfile
from profiles.provenance import text_digest

COST_NOTE = (
    "speedups are replayed with this profile's cost table, measured in sage_tune's own runtime; passes of this engine "
    "cost something else, so the best shape there may differ: measure it there before it is trusted"
)
HEAD_NOTE = (
    "the record is of the pair's own draft model; what a head proposes is not on it, so the shape is a first guess and "
    "the numbers do not carry over"
)


@dataclass(frozen=True)
class Target:
    """One engine."""

    name: str
    title: str
    versions: tuple[str, ...]
    """Oldest first; the last one is taken when none is asked for."""
    methods: Mapping[str, Method]
    """Ways of drafting by name; the first one runs the pair's own draft and is taken when none is asked for."""
    files: Callable[[ExportRequest], dict[str, str]]
    """Text of every artefact by name."""
    start: Callable[[ExportRequest], str]
    """How to start the engine with them, as Markdown."""
    notes: Callable[[ExportRequest], tuple[str, ...]]
    """What to know about this engine, this version and this pair."""
    counts: bool
    """Whether it publishes counters of what it drafted and accepted."""

    def version(self, asked: str | None) -> str:
        """Raises BadInput for a version that was never read, naming those that were."""
        if asked is None:
            return self.versions[-1]
        if asked not in self.versions:
            raise BadInput(
                f"{self.title} '{asked}' is not known: its fields were read in {', '.join(self.versions)} only, and "
                "they move between releases"
            )
        return asked

    def method(self, asked: str | None) -> str:
        """Raises BadInput for a way of drafting that the engine does not have."""
        if asked is None:
            return next(iter(self.methods))
        if asked not in self.methods:
            raise BadInput(f"{self.title} drafts by {', '.join(self.methods)}, asked for '{asked}'")
        return asked

    def request(
        self,
        profile: PolicyProfile,
        lowered: Lowered,
        version: str,
        method: str,
        models: tuple[str, str],
        draft: str | None,
    ) -> ExportRequest:
        """`models` are target and draft of the pair as the engine finds them, `draft` what drafts in place of the
        latter.

        Raises BadInput for a head that nobody said the place of, or a shape that the engine cannot run.
        """
        way = self.methods[method]
        if way.head and draft is None:
            raise BadInput(f"'{method}' of {self.title} drafts with a head on the target; say where with --draft")
        if not way.abilities.holds(lowered.tier):
            raise BadInput(f"{self.title} ({method}) cannot run {lowered.label()} in every round")
        return ExportRequest(profile, lowered, version, method, models[0], draft or models[1])

    def all_notes(self, request: ExportRequest) -> tuple[str, ...]:
        """Those of the engine, and those of every export."""
        head = self.methods[request.method].head
        return (*self.notes(request), *([HEAD_NOTE] if head else []), COST_NOTE)


def report(
    target: Target,
    request: ExportRequest,
    numbers: LoweringNumbers | None,
    from_profile: FromProfile | None,
    files: Mapping[str, str],
    remarks: Sequence[str] = (),
) -> LoweringReport:
    """What `lowering.json` says of an export; `remarks` are about the numbers."""
    profile, lowered = request.profile, request.lowered
    return LoweringReport(
        engine=target.name,
        engine_version=request.version,
        method=request.method,
        profile=profile.name,
        profile_digest=profile.digest,
        lowered=lowered,
        lowered_digest=lowered.digest(),
        lost=lost(profile, target.methods[request.method].abilities),
        numbers=numbers,
        from_profile=from_profile,
        notes=(*target.all_notes(request), *remarks),
        files={name: text_digest(text) for name, text in sorted(files.items())},
    )


def _target(name: str, title: str, module: Any, counts: bool = False) -> Target:
    return Target(name, title, module.VERSIONS, module.METHODS, module.files, module.start, module.notes, counts)


TARGETS: Final[Mapping[str, Target]] = {
    target.name: target
    for target in (
        _target("trtllm", "TensorRT-LLM", trtllm_config, counts=True),
        _target("sglang", "SGLang", sglang_config, counts=True),
        _target("vllm", "vLLM", vllm_config, counts=True),
        _target("transformers", "transformers", transformers_config),
        _target("openvino", "OpenVINO GenAI", openvino_config),
        _target("llamacpp", "llama.cpp", llamacpp_config),
    )
}
