"""Calibration samples: rows in, requests out, and the split by prompt that keeps choices apart from claims.

One line per sample: `{"id", "images": [...] | "video": [...], "messages": [...] | "prompt": "...",
"max_new_tokens", "kind"}`; paths are relative to the file. `tuner.inputs` makes the same lines of folders and
data sets.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from profiles.config import DataConfig
from profiles.errors import BadInput
from profiles.families import Modality
from profiles.provenance import digest, file_digest
from runtime.prompts import Request, load_image, load_video, question
from tuner.inputs import Source, hash_share, open_source

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

    def messages(self) -> list[dict[str, Any]]:
        """The conversation in the Hugging Face form; pictures of a `prompt` come before its text."""
        if "messages" in self.line:
            found: list[dict[str, Any]] = self.line["messages"]
            return found
        return question(self.line["prompt"], len(self.line.get("images", [])), bool(self.line.get("video")))

    def text(self) -> str:
        """What is written in all messages, placeholders left out."""
        return "\n".join(part["text"] for part in self._parts() if part.get("type") == "text")

    def empty_problem(self) -> str | None:
        """The rule that an empty prompt breaks, None for one with text."""
        return None if self.text().strip() else "a prompt needs at least one character that is not a space"

    def places_problem(self) -> str | None:
        """What is wrong when places for pictures in the messages and pictures given are not equally many."""
        for kind, given in (("image", len(self.line.get("images", []))), ("video", int(bool(self.line.get("video"))))):
            places = sum(part.get("type") == kind for part in self._parts())
            if places != given:
                return f"every {kind} needs one place in the messages, got {given} for {places} places"
        return None

    def request(self) -> Request:
        """Raises BadInput naming the sample and what is wrong: an unreadable picture, no text, unequal places."""
        problem = self.empty_problem() or self.places_problem()
        if problem:
            raise BadInput(f"sample '{self.id}': {problem}")
        video = [self.folder / name for name in self.line.get("video", [])]
        try:
            return Request(
                messages=self.messages(),
                images=[load_image(self.folder / name) for name in self.line.get("images", [])],
                videos=[load_video(video)] if video else [],
            )
        except BadInput as error:
            raise BadInput(f"sample '{self.id}': {error}") from error

    def _parts(self) -> list[dict[str, Any]]:
        """The parts of all messages; a message may also be one plain string."""
        parts: list[dict[str, Any]] = []
        for message in self.messages():
            content = message["content"]
            parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
        return parts


def load_samples(data: str | Path, config: DataConfig) -> list[Sample]:
    """Samples of a file, folder or data set, at most `config.prompts`, evenly over kinds; order and split depend on
    ids only.

    Raises BadInput naming the row that is malformed or repeats an id, or too few samples for a split.
    """
    source = open_source(str(data), config)
    samples, problems = parse_rows(source, config)
    if problems:
        raise BadInput(problems[0])
    return chosen_samples(source, samples, config)


def parse_rows(source: Source, config: DataConfig) -> tuple[list[Sample], list[str]]:
    """Every well-formed sample, and one sentence for every row that is none."""
    samples: dict[str, Sample] = {}
    problems = []
    for where, row in source.rows:
        try:
            sample = _parse(row, where, source.folder, config)
        except BadInput as error:
            problems.append(str(error))
            continue
        if sample.id in samples:
            problems.append(f"{where}: id '{sample.id}' was used before; ids must be unique")
        samples.setdefault(sample.id, sample)
    return list(samples.values()), problems


def chosen_samples(source: Source, samples: list[Sample], config: DataConfig) -> list[Sample]:
    """The samples that a profile uses, their pictures fetched. Raises BadInput when a split has too few."""
    chosen = _spread(samples, config.prompts)
    counts = {split: sum(s.split == split for s in chosen) for split in SPLITS}
    if min(counts.values()) < 3:
        raise BadInput(f"every split needs at least 3 prompts, {source.name} gives {counts}")
    source.fetch([sample.line for sample in chosen])
    return chosen


def data_digest(samples: list[Sample]) -> str:
    """Digest of the prompts: their lines and the pictures they name."""
    return digest([[s.line, [file_digest(p) if p.is_file() else str(p.name) for p in s.paths()]] for s in samples])


def split_of(sample_id: str, config: DataConfig) -> Split:
    """Fixed by a hash of the id, so that adding prompts never moves one from a choice to a claim."""
    share = hash_share(sample_id)
    if share < config.tune_share:
        return "tune"
    return "select" if share < config.tune_share + config.select_share else "report"


def _parse(row: str | dict[str, Any], where: str, folder: Path, config: DataConfig) -> Sample:
    try:
        line = json.loads(row) if isinstance(row, str) else row
    except json.JSONDecodeError as error:
        raise BadInput(f"{where}: not valid JSON: {error}") from error
    if not isinstance(line, dict) or "id" not in line or ("prompt" in line) == ("messages" in line):
        raise BadInput(f"{where}: a sample needs 'id' and exactly one of 'prompt' and 'messages'")
    unknown = sorted(set(line) - KNOWN_KEYS)
    if unknown:
        raise BadInput(f"{where}: unknown keys {unknown}; known: {sorted(KNOWN_KEYS)}")
    if not _well_formed(line):
        raise BadInput(
            f"{where}: 'prompt' is text; 'messages' is a list of {{'role', 'content'}} whose content is text or a "
            "list of typed parts; 'images' and 'video' are lists of paths"
        )
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


def _well_formed(line: dict[str, Any]) -> bool:
    """True when everything that is read later has its type."""

    def part(value: Any) -> bool:
        return isinstance(value, dict) and (value.get("type") != "text" or isinstance(value.get("text"), str))

    def message(value: Any) -> bool:
        content = value.get("content") if isinstance(value, dict) and "role" in value else None
        return isinstance(content, str) or (isinstance(content, list) and all(part(p) for p in content))

    def paths(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(name, str) for name in value)

    asked = line.get("messages", [])
    return (
        isinstance(line.get("prompt", ""), str)
        and isinstance(asked, list)
        and all(message(m) for m in asked)
        and all(paths(line.get(key, [])) for key in ("images", "video"))
    )


def _spread(samples: list[Sample], limit: int) -> list[Sample]:
    """The first `limit` samples in hash order, taken from kinds and splits in proportion."""
    ordered = sorted(samples, key=lambda s: hash_share(f"order:{s.id}"))
    if len(ordered) <= limit:
        return ordered
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in ordered:
        groups.setdefault((sample.split, sample.kind), []).append(sample)
    # the i-th of a group of n stands at (i + .5) / n: taking the lowest keeps all groups in proportion
    places = [((i + 0.5) / len(group), key, sample) for key, group in groups.items() for i, sample in enumerate(group)]
    return [sample for _, _, sample in sorted(places, key=lambda place: place[:2])[:limit]]
