"""One side of a pair as its small files describe it: configuration, tokenizer, processor. No weight is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from profiles.errors import BadInput
from profiles.families import FAMILIES
from profiles.registry import ModelSource, PairSpec
from runtime.model_facts import generation_settings, placeholder_ids
from runtime.pair import eos_ids_of, read_files
from runtime.prompts import PromptEncoder, Request, chat_template

TOWER_FIELDS = ("image_size", "patch_size", "spatial_merge_size", "temporal_patch_size")
MERGE_FIELDS = ("image_grid_pinpoints", "vision_aspect_ratio", "vision_feature_select_strategy", "scale_factor")


@dataclass(frozen=True)
class ModelSide:
    """Target or draft before loading."""

    role: str
    source: str
    config: Any
    tokenizer: Any
    processor: Any | None
    eos_ids: frozenset[int]
    """Empty when the model names none."""
    derived: str = ""
    """What a draft is called that is no model of its own; it then is described by the target's files."""

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Token by id."""
        return {i: token for token, i in self.tokenizer.get_vocab().items()}

    @property
    def head_rows(self) -> int:
        """Rows of the output head: the vocabulary with its padding."""
        return int(self.config.get_text_config().vocab_size)

    @property
    def max_positions(self) -> int:
        return int(self.config.get_text_config().max_position_embeddings)

    @property
    def layer_types(self) -> frozenset[str]:
        text = self.config.get_text_config()
        return frozenset(getattr(text, "layer_types", None) or ["full_attention"])

    def named(self, ids: frozenset[int]) -> str:
        """`2 '<|im_end|>', 5 'x'`."""
        return ", ".join(f"{i} {self.tokens.get(i)!r}" for i in sorted(ids)) or "none"

    def placeholders(self) -> dict[str, int]:
        """Ids that the model replaces by picture or video features, by what they stand for."""
        return placeholder_ids(self.config)

    def reserved_ids(self) -> frozenset[int]:
        """Ids that are no text: special and added tokens, placeholders."""
        added = [int(i) for i in getattr(self.tokenizer, "added_tokens_decoder", {})]
        return frozenset([*self.tokenizer.all_special_ids, *added, *self.placeholders().values(), *self.eos_ids])

    def special_tokens(self) -> dict[str, int | None]:
        """Id of every named special token but the end (`eos_ids`) and padding, which is never fed."""
        named = self.tokenizer.special_tokens_map
        return {
            name: self.tokenizer.convert_tokens_to_ids(token)
            for name, token in named.items()
            if isinstance(token, str) and name not in ("eos_token", "pad_token")
        }

    def rope(self) -> dict[str, Any]:
        """Type and parameters of the rotary embedding, nested ones by dotted name."""
        text = self.config.get_text_config()
        return dict(_flat("", getattr(text, "rope_parameters", None) or {}))

    def encoder(self) -> PromptEncoder:
        reads = ("text",) if self.processor is None else FAMILIES[self.config.model_type].reads
        return PromptEncoder(self.tokenizer, self.processor, reads=reads, placeholders=self.placeholders().values())

    def render(self, messages: list[dict[str, Any]]) -> str | None:
        """A conversation through this side's own chat template, as a prompt of it is made; None when it has none. The
        template's own errors (jinja2) pass through."""
        template = chat_template(self.tokenizer, self.processor)
        if template is None:
            return None
        if self.processor is None:
            messages = Request(messages).plain_messages()
        return str(
            self.tokenizer.apply_chat_template(
                messages, chat_template=template, add_generation_prompt=True, tokenize=False
            )
        )

    def reading_rules(self) -> dict[str, Any]:
        """Everything that decides which pixels and how many placeholders a picture becomes; empty for text only."""
        if self.processor is None:
            return {}
        from runtime.vision import reading_rules

        rules = reading_rules(self.processor)
        # the lists of a file come back as tuples in some fields
        images = {k: _as_list(v) for k, v in rules.pop("images").items()}
        vision = getattr(self.config, "vision_config", None)
        tower = {f"tower {name}": getattr(vision, name) for name in TOWER_FIELDS if hasattr(vision, name)}
        merge = {f"model {name}": _as_list(getattr(self.config, name, None)) for name in MERGE_FIELDS}
        return {**images, **rules, **tower, **merge}


def read_side(spec: PairSpec, role: str) -> ModelSide:
    """`role` is target or draft. Raises BadInput when a file is missing or a family's processor cannot be made."""
    given: ModelSource = getattr(spec, role)
    files, source = spec.files_of(given), spec.resolve(given)
    config, tokenizer, processor = read_files(spec, given)
    try:
        eos_ids = eos_ids_of(generation_settings(source, files.revision), tokenizer, source)
    except BadInput:
        eos_ids = frozenset()
    return ModelSide(role, source, config, tokenizer, processor, eos_ids, "" if given.is_model else given.label())


def _flat(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", _as_list(value)


def _as_list(value: Any) -> Any:
    return [_as_list(item) for item in value] if isinstance(value, list | tuple) else value
