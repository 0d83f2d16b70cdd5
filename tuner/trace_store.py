"""Where a record lies: the manifest and one Parquet part per sample, written, read back and digested.

A part's metadata holds its `SampleRecord`, so a part stands alone and parts of several recorders make one record.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl

from profiles.errors import ProfileError
from profiles.provenance import files_digest
from profiles.store import atomic_path, parse, read_json
from profiles.trace_schema import SampleRecord, TraceManifest
from tuner.outcomes import Record

METADATA_KEY = "sage_tune.sample"


def part_path(folder: Path, sample_id: str) -> Path:
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in sample_id)
    return folder / "parts" / f"{safe}.parquet"


def write_part(path: Path, record: SampleRecord, columns: dict[str, np.ndarray]) -> None:
    frame = pl.DataFrame(
        {
            name: pl.Series(name, column.reshape(len(column), -1) if column.ndim > 2 else column)
            for name, column in columns.items()
        }
    )
    with atomic_path(path) as temporary:
        frame.write_parquet(temporary, compression="zstd", metadata={METADATA_KEY: record.model_dump_json()})


def read_part(path: Path) -> tuple[SampleRecord, pl.DataFrame]:
    """One sample's record. Raises ProfileError when the part is damaged or is not ours."""
    try:
        metadata = pl.read_parquet_metadata(path)
        frame = pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise ProfileError(f"{path} cannot be read ({error}); delete it and profile again to record it") from error
    if METADATA_KEY not in metadata:
        raise ProfileError(f"{path} is not a trace part: its metadata has no '{METADATA_KEY}'")
    return parse(SampleRecord, json.loads(metadata[METADATA_KEY]), str(path)), frame


def load_record(folder: Path) -> Record:
    """Read a trace folder. Raises ProfileError when it is missing, empty or damaged."""
    manifest = read_json(folder / "manifest.json", TraceManifest)
    paths = sorted((folder / "parts").glob("*.parquet"))
    if not paths:
        raise ProfileError(f"{folder} holds no recorded sample")
    samples, frames = [], []
    for path in paths:
        sample, frame = read_part(path)
        samples.append(sample)
        if len(frame):
            frames.append(frame)
    if not frames:
        raise ProfileError(f"no sample of {folder} has a single round (all outputs are one token long)")
    return Record(manifest, samples, pl.concat(frames))


def trace_digest(folder: Path) -> str:
    """Digest of a record: its manifest and every part."""
    return files_digest([folder / "manifest.json", *sorted((folder / "parts").glob("*.parquet"))], folder)
