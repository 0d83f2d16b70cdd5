"""Calibration samples: JSONL in, requests out, and the split by prompt that keeps choices apart from claims.

One line per sample: `{"id", "images": [...] | "video": [...], "messages": [...] | "prompt": "...",
"max_new_tokens", "kind"}`; paths are relative to the file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from profiles.config import DataConfig
from profiles.errors import BadInput
from profiles.families import Modality
from profiles.provenance import digest, file_digest
from runtime.prompts import Request, ask, load_image, load_video

Split = Literal["tune", "select", "report"]
SPLITS: tuple[Split, ...] = ("tune", "select", "report")
KNOWN_KEYS = {"id", "images", "video", "messages", "prompt", "max_new_tokens", "kind", "reference", "facts"}


@dataclass(frozen=True)
class Sample:
    """One calibration prompt. Pictures are read when the request is built, not before."""

    id: str
    kind: str
    modality: Modality
    split: Split
    max_new_tokens: int
    line: dict[str, Any]
    folder: Path

    def paths(self) -> list[Path]:
        return [self.folder / name for name in [*self.line.get("images", []), *self.line.get("video", [])]]

    def request(self) -> Request:
        """Raises BadInput naming sample and file when a picture cannot be read."""
        images = [self.folder / name for name in self.line.get("images", [])]
        video = [self.folder / name for name in self.line.get("video", [])]
        try:
            if "prompt" in self.line:
                return ask(self.line["prompt"], images, video)
            return Request(
                messages=self.line["messages"],
                images=[load_image(path) for path in images],
                videos=[load_video(video)] if video else [],
            )
        except BadInput as error:
            raise BadInput(f"sample '{self.id}': {error}") from error


def load_samples(path: Path, config: DataConfig) -> list[Sample]:
    """Samples of a JSONL file, at most `config.prompts`, evenly over kinds; order and split depend on ids only.

    Raises BadInput with the line number for a malformed line, a duplicate id, or too few samples for a split.
    """
    if not path.exists():
        raise BadInput(f"no such calibration file: {path}")
    samples: dict[str, Sample] = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not text.strip():
            continue
        sample = _parse(text, f"{path}:{number}", path.parent, config)
        if sample.id in samples:
            raise BadInput(f"{path}:{number}: id '{sample.id}' was used before; ids must be unique")
        samples[sample.id] = sample
    chosen = _spread(list(samples.values()), config.prompts)
    counts = {split: sum(s.split == split for s in chosen) for split in SPLITS}
    if min(counts.values()) < 3:
        raise BadInput(f"every split needs at least 3 prompts, {path} gives {counts}")
    return chosen


def data_digest(samples: list[Sample]) -> str:
    """Digest of the prompts: their lines and the pictures they name."""
    return digest([[s.line, [file_digest(p) if p.is_file() else str(p.name) for p in s.paths()]] for s in samples])


def split_of(sample_id: str, config: DataConfig) -> Split:
    """Fixed by a hash of the id, so that adding prompts never moves one from a choice to a claim."""
    share = _hash_share(sample_id)
    if share < config.tune_share:
        return "tune"
    return "select" if share < config.tune_share + config.select_share else "report"


def _hash_share(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _parse(text: str, where: str, folder: Path, config: DataConfig) -> Sample:
    try:
        line = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}: not valid JSON: {error}") from error
    if not isinstance(line, dict) or "id" not in line or ("prompt" in line) == ("messages" in line):
        raise BadInput(f"{where}: a sample needs 'id' and exactly one of 'prompt' and 'messages'")
    unknown = sorted(set(line) - KNOWN_KEYS)
    if unknown:
        raise BadInput(f"{where}: unknown keys {unknown}; known: {sorted(KNOWN_KEYS)}")
    if line.get("images") and line.get("video"):
        raise BadInput(f"{where}: a sample has images or a video, not both")
    limit = line.get("max_new_tokens", config.max_new_tokens)
    if not isinstance(limit, int) or limit < 2:
        raise BadInput(f"{where}: max_new_tokens >= 2 must hold, got {limit!r}")
    modality: Modality = "video" if line.get("video") else "image" if line.get("images") else "text"
    return Sample(
        id=str(line["id"]),
        kind=str(line.get("kind", modality)),
        modality=modality,
        split=split_of(str(line["id"]), config),
        max_new_tokens=min(limit, config.max_new_tokens),
        line=line,
        folder=folder,
    )


def _spread(samples: list[Sample], limit: int) -> list[Sample]:
    """The first `limit` samples in hash order, taken from kinds and splits in proportion."""
    ordered = sorted(samples, key=lambda s: _hash_share(f"order:{s.id}"))
    if len(ordered) <= limit:
        return ordered
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in ordered:
        groups.setdefault((sample.split, sample.kind), []).append(sample)
    # the i-th of a group of n stands at (i + .5) / n: taking the lowest keeps all groups in proportion
    places = [((i + 0.5) / len(group), key, sample) for key, group in groups.items() for i, sample in enumerate(group)]
    return [sample for _, _, sample in sorted(places, key=lambda place: place[:2])[:limit]]
