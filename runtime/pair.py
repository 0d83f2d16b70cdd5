"""The pair: target and draft on one backend, one tokenizer, one processor, loaded the same way at any size."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import BadInput, HardwareMissing
from profiles.policy_profile import ModelRecord, PairRecord
from profiles.provenance import digest, file_digest
from profiles.registry import ModelSource, PairSpec
from runtime.backends import load_model
from runtime.backends.base import Model, ModelFiles
from runtime.processors import repetition_penalty
from runtime.prompts import PromptEncoder

HASHED_WHOLE_BYTES = 2 << 30
"""Weight files up to this size are hashed whole; larger ones by name and size, with their index file."""


@dataclass(frozen=True)
class Pair:
    """Two loaded models and what they share."""

    spec: PairSpec
    target: Model
    draft: Model
    encoder: PromptEncoder
    eos_ids: frozenset[int]
    record: PairRecord
    threads: int
    device: str
    repetition_penalty: float = 1.0
    """What the target's own generation settings ask for."""

    @property
    def digest(self) -> str:
        return digest(self.record.model_dump(mode="json"))

    def decode(self, tokens: list[int]) -> str:
        return str(self.encoder.tokenizer.decode(tokens, skip_special_tokens=True))


@dataclass(frozen=True)
class PairPlan:
    """How a pair will be loaded: everything that can be known before any weight is read."""

    spec: PairSpec
    backend: str
    dtype: str
    device: str
    threads: int
    memory_bytes: int | None = None
    """Memory of the device, when it is known."""

    def files(self, source: ModelSource, graph_folder: Path | None) -> ModelFiles:
        return ModelFiles(
            source=self.spec.resolve(source),
            revision=source.revision,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            graph_folder=graph_folder,
        )

    def check_memory(self) -> None:
        """Raises HardwareMissing with needed and found memory before anything large is loaded."""
        found_gib = math.inf if self.memory_bytes is None else self.memory_bytes / (1 << 30)
        if self.spec.weights_gib > found_gib:
            raise HardwareMissing(
                f"'{self.spec.name}' needs {self.spec.weights_gib:g} GiB for its weights alone, {self.device} has "
                f"{found_gib:.0f} GiB of memory"
            )


def load_pair(plan: PairPlan, graph_folders: tuple[Path, Path] | None = None) -> Pair:
    """Load both models. `graph_folders` are the exported step graphs of target and draft, for the ONNX backend.

    Raises BadInput when tokenizers differ (naming the first difference) or a folder is incomplete.
    """
    from transformers import AutoConfig, AutoTokenizer

    from runtime.vision import load_processor

    plan.check_memory()
    spec = plan.spec
    target_source, draft_source = spec.resolve(spec.target), spec.resolve(spec.draft)
    for source in (spec.target, spec.draft):
        if source.path is not None and not (Path(spec.resolve(source)) / "config.json").exists():
            raise BadInput(f"{spec.resolve(source)} holds no model (config.json is missing)")
    try:
        tokenizer = AutoTokenizer.from_pretrained(target_source, revision=spec.target.revision)
        draft_tokenizer = AutoTokenizer.from_pretrained(draft_source, revision=spec.draft.revision)
    except OSError as error:
        # the library's own text runs over several lines; its first one says which file or host
        raise BadInput(f"'{spec.name}' cannot be loaded: {str(error).strip().splitlines()[0]}") from error
    check_same_tokens(tokenizer.get_vocab(), draft_tokenizer.get_vocab())
    config = AutoConfig.from_pretrained(target_source, revision=spec.target.revision)
    processor = load_processor(target_source, spec.target.revision, config.model_type, tokenizer)
    graphs = graph_folders or (None, None)
    target = load_model(plan.backend, plan.files(spec.target, graphs[0]))
    draft = load_model(plan.backend, plan.files(spec.draft, graphs[1]))
    for role, model in (("target", target), ("draft", draft)):
        if max(tokenizer.get_vocab().values()) >= model.vocab_size:
            raise BadInput(
                f"every token id must have a row in the head; the tokenizer goes up to "
                f"{max(tokenizer.get_vocab().values())}, the {role} has {model.vocab_size} rows"
            )
    settings = _generation_settings(target_source, spec.target.revision)
    # ids beyond the shorter head are padding: the other model could not even embed them
    draft.token_limit = min(target.vocab_size, draft.vocab_size)
    return Pair(
        spec=spec,
        target=target,
        draft=draft,
        encoder=PromptEncoder(tokenizer, processor),
        eos_ids=_eos_ids(settings, tokenizer, target_source),
        record=_record(spec, tokenizer, processor),
        threads=plan.threads,
        device=plan.device,
        repetition_penalty=repetition_penalty(settings, spec.without, spec.name),
    )


def check_same_tokens(target: dict[str, int], draft: dict[str, int]) -> None:
    """Drafted ids are verified as they are, so both tokenizers must give every id the same text."""
    if target == draft:
        return
    by_id, other = {i: t for t, i in target.items()}, {i: t for t, i in draft.items()}
    first = min(i for i in by_id.keys() | other.keys() if by_id.get(i) != other.get(i))
    raise BadInput(
        f"target and draft must share one tokenizer; id {first} is {by_id.get(first)!r} in the target and "
        f"{other.get(first)!r} in the draft"
    )


def _generation_settings(source: str, revision: str | None) -> dict[str, Any]:
    """The model's own generation settings by name; none when it ships none."""
    from transformers import GenerationConfig

    try:
        settings: dict[str, Any] = GenerationConfig.from_pretrained(source, revision=revision).to_dict()
    except OSError:
        return {}
    return settings


def _eos_ids(settings: dict[str, Any], tokenizer: Any, source: str) -> frozenset[int]:
    eos = settings.get("eos_token_id")
    if eos is None:
        eos = tokenizer.eos_token_id
    if eos is None:
        raise BadInput(f"{source} names no end-of-sequence token")
    return frozenset(eos if isinstance(eos, list) else [eos])


def _record(spec: PairSpec, tokenizer: Any, processor: Any | None) -> PairRecord:
    settings = {} if processor is None else processor.image_processor.to_dict()
    return PairRecord(
        name=spec.name,
        target=model_record(spec, spec.target),
        draft=model_record(spec, spec.draft),
        tokenizer_digest=digest([tokenizer.get_vocab(), tokenizer.chat_template]),
        processor_digest=digest(json.loads(json.dumps(settings, default=str))),
    )


def model_record(spec: PairSpec, source: ModelSource) -> ModelRecord:
    if source.hub is not None:
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(source.hub, revision=source.revision)
        commit = getattr(config, "_commit_hash", None) or source.revision
        return ModelRecord(
            source=source.hub,
            revision=commit,
            config_digest=digest(json.loads(config.to_json_string(use_diff=False))),
            weights_digest=f"commit:{commit}",
        )
    folder = Path(spec.resolve(source))
    weights = sorted([*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")])
    if not weights:
        raise BadInput(f"{folder} holds no safetensors weights")
    parts = {
        path.name: file_digest(path) if path.stat().st_size <= HASHED_WHOLE_BYTES else str(path.stat().st_size)
        for path in weights
    }
    return ModelRecord(
        source=str(source.path),
        revision=source.revision,
        config_digest=file_digest(folder / "config.json"),
        weights_digest=digest(parts),
    )
