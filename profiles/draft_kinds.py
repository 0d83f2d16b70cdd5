"""Drafts that are no model of their own: how they are set, and what they are called on a command line.

`prompt-lookup` proposes what followed the last few tokens earlier in the prompt and the output; `early-exit:N` is
the first N layers of the target.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from profiles.errors import BadInput
from profiles.frozen import Frozen

LOOKUP = "prompt-lookup"
EARLY_EXIT = "early-exit"
LOOKUP_VERSION = 1
"""Rises whenever `runtime.prompt_lookup` gives another distribution for the same settings: what was recorded with
it no longer holds."""


class LookupSettings(Frozen):
    """How a prompt lookup turns earlier occurrences into a distribution; `runtime.prompt_lookup` has the formula."""

    max_ngram: Annotated[int, Field(ge=1, le=16, description="longest suffix that is looked up")] = 4
    min_ngram: Annotated[int, Field(ge=1, le=16, description="shortest suffix that counts as a match")] = 1
    prior: Annotated[
        float,
        Field(gt=0, le=1, description="occurrences that the next shorter suffix is worth; low trusts single matches"),
    ] = 1.0
    recency: Annotated[
        float, Field(gt=0, le=1, description="weight of an occurrence over that of the next later one; 1 counts alike")
    ] = 0.9

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_ngram > self.max_ngram:
            raise ValueError(f"min_ngram <= max_ngram must hold, got {self.min_ngram} > {self.max_ngram}")
        return self

    def label(self) -> str:
        """`prompt-lookup`, with the settings that are not the defaults: `prompt-lookup:max_ngram=5,prior=0.5`."""
        changed = self.model_dump(exclude_defaults=True)
        return ":".join([LOOKUP, ",".join(f"{name}={value}" for name, value in changed.items())]).removesuffix(":")


def parse_lookup(text: str) -> LookupSettings | None:
    """The settings that a label stands for; None for the name of something else. Raises BadInput."""
    name, colon, settings = text.partition(":")
    if name != LOOKUP:
        return None
    given = dict(part.partition("=")[::2] for part in settings.split(",")) if colon else {}
    try:
        return LookupSettings.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "settings"
        raise BadInput(
            f"'{text}': {where}: {first['msg']}; a lookup is written {LOOKUP} or {LOOKUP}:max_ngram=5,..., known: "
            f"{', '.join(LookupSettings.model_fields)}"
        ) from None


def parse_early_exit(text: str) -> int | None:
    """The layers that `early-exit:N` asks for; None for the name of something else. Raises BadInput."""
    name, _, layers = text.partition(":")
    if name != EARLY_EXIT:
        return None
    if not layers.isdecimal() or int(layers) < 1:
        raise BadInput(f"'{text}': an early exit is written {EARLY_EXIT}:N with N >= 1 layers of the target")
    return int(layers)
