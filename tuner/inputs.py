"""Where calibration samples come from: a JSONL file, a folder of pictures, or a data set of the Hugging Face hub.

    --data set.jsonl         one sample per line (`tuner.calibration`)
    --data pictures/         every picture below the folder is a sample; hidden files are left out
    --data hf:NAME[:SPLIT]   a hub id, or a local folder that `datasets` can load; SPLIT defaults to `train`

A folder may hold one sidecar file. `metadata.jsonl` (the layout of `datasets`' imagefolder) lists the samples:
`{"file_name": "a.png", "prompt": "..."}` plus any key of a JSONL sample; a picture that it does not list is no
sample. `prompts.txt` holds one prompt per line; a hash of the picture's name picks one, so adding pictures never
changes the prompt of another. Without either, and for a line without a prompt, `data.default_prompt` is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.config import DataConfig
from profiles.errors import BadInput
from profiles.store import atomic_path, cache_root

HUB = "hf:"
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")


def _nothing(lines: Sequence[dict[str, Any]]) -> None:
    """The pictures of files and folders already are where their samples say."""


@dataclass(frozen=True)
class Source:
    """Rows of a calibration set, not yet checked."""

    name: str
    folder: Path
    """Where the paths of the rows start."""
    rows: list[tuple[str, str | dict[str, Any]]]
    """Where each row stands, for messages, and its JSON text or its keys."""
    fetch: Callable[[Sequence[dict[str, Any]]], None] = _nothing
    """Puts the pictures of some rows into the folder."""


def open_source(data: str, config: DataConfig) -> Source:
    """Raises BadInput when nothing is there, or it cannot be read."""
    if data.startswith(HUB):
        return _hub(data.removeprefix(HUB), config)
    path = Path(data)
    if path.is_dir():
        return _folder(path, config)
    if not path.exists():
        raise BadInput(f"no such calibration file or folder: {path}")
    return Source(str(path), path.parent, list(_lines(path)))


def hash_share(text: str) -> float:
    """A number in [0, 1) that depends on nothing but the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64


def _lines(path: Path) -> list[tuple[str, str | dict[str, Any]]]:
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not a JSONL file: {error}") from error
    return [(f"{path}:{number}", text) for number, text in enumerate(texts, start=1) if text.strip()]


def _folder(folder: Path, config: DataConfig) -> Source:
    listed, prompts = folder / "metadata.jsonl", folder / "prompts.txt"
    if listed.exists() and prompts.exists():
        raise BadInput(f"{folder} must hold one of metadata.jsonl and prompts.txt, it holds both")
    if listed.exists():
        return Source(str(folder), folder, [(where, _listed(where, text, config)) for where, text in _lines(listed)])
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix.lower() in PICTURES and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    )
    if not names:
        raise BadInput(
            f"{folder} holds no pictures ({', '.join(PICTURES)}); give a folder of pictures or the JSONL file itself"
        )
    asked = [config.default_prompt]
    if prompts.exists():
        asked = [line.strip() for line in prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not asked:
            raise BadInput(f"{prompts} holds no prompt; give one per line, or remove the file")
    rows: list[tuple[str, str | dict[str, Any]]] = [
        (str(folder / name), {"id": name, "images": [name], "prompt": asked[int(hash_share(name) * len(asked))]})
        for name in names
    ]
    return Source(str(folder), folder, rows)


def _listed(where: str, text: str | dict[str, Any], config: DataConfig) -> str | dict[str, Any]:
    """A line of metadata.jsonl as a sample; a malformed one is left for the parser of samples to refuse."""
    try:
        line = json.loads(text) if isinstance(text, str) else text
    except json.JSONDecodeError:
        return text
    if not isinstance(line, dict) or not isinstance(line.get("file_name"), str):
        raise BadInput(f"{where}: a line of metadata.jsonl needs 'file_name', the picture's path within the folder")
    name = line.pop("file_name")
    if "prompt" not in line and "messages" not in line:
        line["prompt"] = config.default_prompt
    return {"id": name, "images": [name], **line}


def _hub(name: str, config: DataConfig) -> Source:
    try:
        import datasets
    except ImportError as error:
        raise BadInput(
            f"'{HUB}{name}' needs the package 'datasets', which is not installed (pip install 'sage_tune[datasets]')"
        ) from error
    data = _load(datasets, name, config)
    columns = [column for column in (config.image_column, config.prompt_column, config.id_column) if column]
    for column in columns:
        if column not in data.column_names:
            raise BadInput(
                f"'{HUB}{name}' has no column '{column}', it has {', '.join(data.column_names)}; name them in "
                "data.image_column ('' for a text-only set), data.prompt_column and data.id_column"
            )
    folder = cache_root() / "datasets" / str(data._fingerprint)
    if config.image_column:
        if not isinstance(data.features[config.image_column], datasets.Image):
            raise BadInput(
                f"data.image_column must hold one picture per row, '{config.image_column}' holds "
                f"{data.features[config.image_column]}"
            )
        # bytes as they were stored: nothing is decoded or encoded again
        data = data.cast_column(config.image_column, datasets.Image(decode=False))
    prompts = data[config.prompt_column][:]
    ids = data[config.id_column][:] if config.id_column else range(len(prompts))
    rows: list[tuple[str, str | dict[str, Any]]] = []
    for i, (row_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
        line: dict[str, Any] = {"id": str(row_id), "prompt": prompt if prompt is not None else ""}
        if config.image_column:
            line["images"] = [f"{i}.picture"]
        rows.append((f"{HUB}{name} row {i}", line))

    def fetch(lines: Sequence[dict[str, Any]]) -> None:
        for file_name in [picture for line in lines for picture in line.get("images", [])]:
            stored = data[int(Path(file_name).stem)][config.image_column]
            # a row without a picture leaves no file: the sample then names it as missing
            if stored is not None and not (folder / file_name).exists():
                content = stored["bytes"] if stored["bytes"] is not None else Path(stored["path"]).read_bytes()
                with atomic_path(folder / file_name) as temporary:
                    temporary.write_bytes(content)

    return Source(f"{HUB}{name}", folder, rows, fetch)


def _load(datasets: Any, name: str, config: DataConfig) -> Any:
    """One split of a data set: saved on disk, in a local folder, or on the hub."""
    from datasets.utils import logging

    logging.disable_progress_bar()
    source, split = name, "train"
    if ":" in name:
        source, _, split = name.rpartition(":")
    try:
        if any((Path(source) / mark).exists() for mark in ("state.json", "dataset_dict.json")):
            data = datasets.load_from_disk(source)
            return data if not hasattr(data, "keys") else data[split]
        return datasets.load_dataset(source, config.subset, split=split)
    except Exception as error:  # every loader script and HTTP client of the library has errors of its own
        reason = str(error).strip().splitlines()
        raise BadInput(f"'{HUB}{name}' cannot be loaded: {reason[0] if reason else type(error).__name__}") from error
