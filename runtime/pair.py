"""The pair: target and draft on one backend, one tokenizer, one processor, loaded the same way at any size."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.draft_kinds import EARLY_EXIT, LOOKUP, LOOKUP_VERSION
from profiles.errors import BadInput, HardwareMissing
from profiles.families import FAMILIES
from profiles.policy_profile import ModelRecord, PairRecord
from profiles.provenance import digest, file_digest
from profiles.registry import ModelSource, PairSpec
from runtime.backends import load_model
from runtime.backends.base import Model, ModelFiles
from runtime.draft_prompts import OwnPromptModel
from runtime.model_facts import generation_settings, needed_gib, placeholder_ids, read_config, require_made
from runtime.processors import repetition_penalty
from runtime.prompts import PromptEncoder, chat_template

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
    """Memory of the device, or of all devices that `device_map` may use; None when it is not known."""
    device_map: str | None = None
    """How transformers spreads the target over devices. The draft stays whole on `device`."""

    def files(self, source: ModelSource, graph_folder: Path | None) -> ModelFiles:
        """How one of the two models is loaded; an early exit from the target's files."""
        return ModelFiles(
            source=self.spec.resolve(source),
            revision=self.spec.files_of(source).revision,
            dtype=self.dtype,
            device=self.device,
            threads=self.threads,
            graph_folder=graph_folder,
            device_map=self.device_map if source is self.spec.target else None,
        )

    def check_memory(self) -> float:
        """Memory that the weights need, in GiB. Raises HardwareMissing, naming it and what was found, before
        anything large is loaded."""
        needed, found = needed_gib(self.spec, self.dtype, self.backend), self.memory_bytes
        if found is not None and needed > found / (1 << 30):
            where = self.device if self.device_map is None else f"device map '{self.device_map}'"
            alone = self.device != "cpu" and self.device_map is None
            raise HardwareMissing(
                f"'{self.spec.name}' needs {needed:.3g} GiB for its weights alone ({self.dtype}), {where} has "
                f"{found / (1 << 30):.3g} GiB of memory"
                + ("; --device-map auto spreads the target over every device" if alone else "")
            )
        return needed


def load_pair(plan: PairPlan, graph_folders: tuple[Path, Path | None] | None = None) -> Pair:
    """Load both models. `graph_folders` are the exported step graphs of target and draft, for the ONNX backend; a
    prompt lookup has none.

    Raises BadInput when tokenizers differ (naming the first difference), a folder is incomplete, a family is not
    known, a generation setting of the target cannot be applied, or an early exit's target would be spread over devices;
    HardwareMissing when the weights do not fit.
    """
    plan.check_memory()
    spec = plan.spec
    if plan.device_map is not None and spec.draft.early_exit_layers is not None:
        raise BadInput(f"an early exit needs its target on one device, got device_map={plan.device_map!r}")
    files = read_files(spec, spec.target)
    config, tokenizer, processor = files
    # a draft that is no model of its own reads what the target reads
    _, draft_tokenizer, draft_processor = read_files(spec, spec.draft) if spec.draft.is_model else files
    if spec.family is not None and spec.family != config.model_type:
        raise BadInput(f"'{spec.name}' is said to be of family '{spec.family}', its target is '{config.model_type}'")
    check_same_tokens(tokenizer.get_vocab(), draft_tokenizer.get_vocab())
    if processor is not None and draft_processor is None:
        raise BadInput(f"the target of '{spec.name}' reads pictures, its draft reads text only")
    draft_processor = _own_processor(processor, draft_processor)
    settings = generation_settings(spec.resolve(spec.target), spec.target.revision)
    penalty = repetition_penalty(settings, spec.without, spec.name)
    graphs = graph_folders or (None, None)
    if spec.draft.is_model:
        # the draft first: it takes its place on one device before a device map fills the rest with the target
        draft = load_model(plan.backend, plan.files(spec.draft, graphs[1]))
        target = load_model(plan.backend, plan.files(spec.target, graphs[0]))
    else:
        target = load_model(plan.backend, plan.files(spec.target, graphs[0]))
        draft = _derived(plan, target, graphs[1])
    for role, model in (("target", target), ("draft", draft)):
        if max(tokenizer.get_vocab().values()) >= model.vocab_size:
            raise BadInput(
                f"every token id must have a row in the head; the tokenizer goes up to "
                f"{max(tokenizer.get_vocab().values())}, the {role} has {model.vocab_size} rows"
            )
    reads = ("text",) if processor is None else FAMILIES[config.model_type].reads
    # ids beyond the shorter head are padding: the other model could not even embed them
    draft.token_limit = min(target.vocab_size, draft.vocab_size)
    return Pair(
        spec=spec,
        target=target,
        draft=draft if processor is None else OwnPromptModel(draft),  # text is neither re-read nor pruned
        encoder=PromptEncoder(tokenizer, processor, draft_processor, reads, placeholder_ids(config).values()),
        eos_ids=eos_ids_of(settings, tokenizer, spec.resolve(spec.target)),
        record=_record(spec, tokenizer, processor, draft_processor),
        threads=plan.threads,
        device=plan.device,
        repetition_penalty=penalty,
    )


def _derived(plan: PairPlan, target: Model, graph_folder: Path | None) -> Model:
    """A draft that is no model of its own, from the loaded target."""
    source = plan.spec.draft
    if source.prompt_lookup is not None:
        from runtime.prompt_lookup import LookupModel

        return LookupModel(source.prompt_lookup, target.vocab_size, target.max_positions, target.dtype)
    from runtime.early_exit import open_early_exit

    return open_early_exit(target, plan.files(source, graph_folder), int(source.early_exit_layers or 0))


def pair_record(spec: PairSpec) -> PairRecord:
    """Names and digests of a pair, without loading a weight: those of `load_pair`. Raises what `read_files` raises."""
    files = read_files(spec, spec.target)
    _, tokenizer, processor = files
    _, _, draft_processor = read_files(spec, spec.draft) if spec.draft.is_model else files
    return _record(spec, tokenizer, processor, _own_processor(processor, draft_processor))


def _own_processor(processor: Any | None, draft_processor: Any | None) -> Any | None:
    """The draft's processor where it reads pictures by rules of its own; None where one serves both."""
    from runtime.vision import reading_rules

    if processor is None or draft_processor is None or reading_rules(processor) == reading_rules(draft_processor):
        return None
    return draft_processor


def read_files(spec: PairSpec, source: ModelSource) -> tuple[Any, Any, Any | None]:
    """Configuration, tokenizer and processor of one model, without its weights; no processor for a text-only one.
    Those of the target for a draft that is no model of its own.

    Raises BadInput when a file is missing or the family is not known.
    """
    from transformers import AutoTokenizer

    from runtime.vision import load_processor

    source = spec.files_of(source)
    require_made(spec)
    config = read_config(spec, source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(spec.resolve(source), revision=source.revision)
        processor = load_processor(spec.resolve(source), source.revision, config.model_type, tokenizer)
    except (OSError, ValueError) as error:
        # the library's own text runs over several lines; its first one says which file or host
        raise BadInput(f"'{spec.name}' cannot be loaded: {str(error).strip().splitlines()[0]}") from error
    return config, tokenizer, processor


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


def eos_ids_of(settings: dict[str, Any], tokenizer: Any, source: str) -> frozenset[int]:
    """Ids that end an output: of the generation settings, else of the tokenizer. Raises BadInput without any."""
    eos = settings.get("eos_token_id")
    if eos is None:
        eos = tokenizer.eos_token_id
    if eos is None:
        raise BadInput(f"{source} names no end-of-sequence token")
    return frozenset(eos if isinstance(eos, list) else [eos])


def _record(spec: PairSpec, tokenizer: Any, processor: Any | None, draft_processor: Any | None) -> PairRecord:
    settings: Any = {} if processor is None else processor.image_processor.to_dict()
    if draft_processor is not None:
        settings = [settings, draft_processor.image_processor.to_dict()]
    return PairRecord(
        name=spec.name,
        target=model_record(spec, spec.target),
        draft=model_record(spec, spec.draft),
        tokenizer_digest=digest([tokenizer.get_vocab(), chat_template(tokenizer, processor)]),
        processor_digest=digest(json.loads(json.dumps(settings, default=str))),
    )


def model_record(spec: PairSpec, source: ModelSource) -> ModelRecord:
    """What a model was. A lookup is its settings and its formula, an early exit the target's files and its layers.

    Raises BadInput for a folder without weights.
    """
    if source.prompt_lookup is not None:
        settings = digest([LOOKUP, LOOKUP_VERSION, source.prompt_lookup.model_dump(mode="json")])
        return ModelRecord(source=source.label(), revision=None, config_digest=settings, weights_digest="none")
    if source.early_exit_layers is not None:
        target = model_record(spec, spec.target)
        return ModelRecord(
            source=source.label(),
            revision=None,
            config_digest=digest([EARLY_EXIT, target.config_digest, source.early_exit_layers]),
            weights_digest=target.weights_digest,
        )
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
