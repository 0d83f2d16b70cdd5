"""Older profiles, read as today's. A migration changes how decisions are written, never what they are.

Integrity is proven on the document as it was saved, before it is touched: `saved_digests` needs no schema.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from profiles.policy_profile import DECISION_KEYS, SCHEMA_VERSION, SEAL_KEYS
from profiles.provenance import digest
from profiles.sampling import AS_MADE

Document = dict[str, Any]


def saved_digests(raw: Document) -> dict[str, str]:
    """The digests that the content of a profile of any version gives, under the names it stores them by."""
    decisions = {key: value for key, value in raw.items() if key in DECISION_KEYS}
    rest = {key: value for key, value in raw.items() if key not in (*DECISION_KEYS, *SEAL_KEYS)}
    return {"digest": digest(decisions), "evidence_digest": digest(rest)}


def migrated(raw: Document) -> Document:
    """The document in today's schema. A version without a migration is returned as it is, for the parser to refuse."""
    version = raw.get("schema_version")
    while isinstance(version, int) and version < SCHEMA_VERSION and version in _STEPS:
        raw = {**_STEPS[version](raw), "schema_version": version + 1}
        version += 1
    return raw


def _shipped_row_by_name(raw: Document) -> Document:
    """1 to 2: the shipped row is named. Smoothed signals, gates by level, drafting rules and growth trees came as
    well; that they were absent is what their defaults say."""
    evidence = raw.get("evidence")
    if not isinstance(evidence, dict) or not isinstance(evidence.get("results"), list):
        return raw
    wanted = (raw.get("shipped"), evidence.get("speedup_replayed"))
    rows = [row for row in evidence["results"] if isinstance(row, dict)]
    names = [row.get("name") for row in rows if (row.get("verdict"), row.get("speedup_replayed")) == wanted]
    return {**raw, "evidence": {**evidence, "shipped_name": names[0] if names else ""}}


def _sampling_regime(raw: Document) -> Document:
    """2 to 3: the regime holds the parameters of sampling. Until then there was greedy decoding alone, of the logits as
    the model made them."""
    regime = raw.get("regime")
    if not isinstance(regime, dict):
        return raw
    kept = {key: value for key, value in regime.items() if key != "temperature_class"}
    return {**raw, "regime": {**kept, "sampling": AS_MADE.regime().model_dump(mode="json")}}


def _defaults_only(raw: Document) -> Document:
    """3 to 4: draft-side pruning came. That it was absent is what its default says."""
    return raw


_STEPS: dict[int, Callable[[Document], Document]] = {1: _shipped_row_by_name, 2: _sampling_regime, 3: _defaults_only}
