"""The base of everything that is written down."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Immutable, closed against unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
