"""Where a record lies: the manifest and one Parquet part per sample, written, read back, merged and digested.

A part's metadata holds its `SampleRecord`, so a part stands alone and parts of several recorders make one record.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from profiles.errors import ProfileError
from profiles.provenance import digest
from profiles.store import json_text, parse
from profiles.trace_schema import SampleRecord, TraceManifest
from tuner.files import open_files
from tuner.outcomes import Record

METADATA_KEY = "sage_tune.sample"
MANIFEST = "manifest.json"
PARTS = "parts"
SUFFIX = ".parquet"
NAME_LENGTH = 100


class TraceStore:
    """A trace folder: a path, or a URL that several machines reach."""

    def __init__(self, location: str | Path) -> None:
        self._files = open_files(location)
        self.location = self._files.location

    def claim(self, manifest: TraceManifest) -> None:
        """Begin a record or go on with one. Raises ProfileError when another one lies here."""
        if not self._files.exists(MANIFEST):
            self._files.write(MANIFEST, json_text(manifest).encode())
        saved = self.manifest()  # another recorder may have begun at the same moment
        if saved != manifest:
            raise ProfileError(f"{self.location} holds another record: {_difference(saved, manifest)}")

    def manifest(self) -> TraceManifest:
        """Raises ProfileError when there is none, or it is damaged."""
        if not self._files.exists(MANIFEST):
            raise ProfileError(f"{self.location} holds no record ({MANIFEST} is missing)")
        try:
            value = json.loads(self._files.read([MANIFEST])[MANIFEST])
        except ValueError as error:
            raise ProfileError(f"{self.location}/{MANIFEST} is not valid JSON: {error}") from error
        return parse(TraceManifest, value, f"{self.location}/{MANIFEST}")

    def parts(self) -> list[str]:
        """Names of the parts on record, sorted."""
        return [f"{PARTS}/{name}" for name in self._files.names(PARTS) if name.endswith(SUFFIX)]

    def missing(self, sample_ids: list[str]) -> list[str]:
        """Those of the samples that are not on record."""
        present = set(self.parts())
        return [sample for sample in sample_ids if part_name(sample) not in present]

    def write(self, record: SampleRecord, columns: dict[str, np.ndarray]) -> None:
        """Store one sample's part."""
        frame = pl.DataFrame(
            {
                name: pl.Series(name, column.reshape(len(column), -1) if column.ndim > 2 else column)
                for name, column in columns.items()
            }
        )
        buffer = io.BytesIO()
        frame.write_parquet(buffer, compression="zstd", metadata={METADATA_KEY: record.model_dump_json()})
        self._files.write(part_name(record.id), buffer.getvalue())

    def read(self) -> list[tuple[SampleRecord, pl.DataFrame]]:
        """Every part in the order of their names. Raises ProfileError when one is damaged or is not ours."""
        parts = self._files.read(self.parts())
        found = [self._parsed(name, parts[name]) for name in sorted(parts)]
        twice = [sample for sample, count in Counter(record.id for record, _ in found).items() if count > 1]
        if twice:
            raise ProfileError(f"{self.location} holds sample '{twice[0]}' in two parts; delete one of them")
        return found

    def merge(self, other: TraceStore) -> int:
        """Take over the parts of a record that was made under the same manifest; returns how many were new.

        Raises ProfileError for another manifest or a damaged part.
        """
        saved, found = self.manifest(), other.manifest()
        if saved != found:
            raise ProfileError(f"{other.location} is another record: {_difference(saved, found)}")
        new = sorted(set(other.parts()) - set(self.parts()))
        for name, content in other._files.read(new).items():
            other._parsed(name, content)
            self._files.write(name, content)
        return len(new)

    def digest(self) -> str:
        """One digest over the manifest and every part: the same bytes give the same, wherever they lie."""
        contents = self._files.read([MANIFEST, *self.parts()])
        return digest({name: hashlib.sha256(content).hexdigest() for name, content in contents.items()})

    def _parsed(self, name: str, content: bytes) -> tuple[SampleRecord, pl.DataFrame]:
        where = f"{self.location}/{name}"
        try:
            metadata = pl.read_parquet_metadata(io.BytesIO(content))
            frame = pl.read_parquet(io.BytesIO(content))
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ProfileError(f"{where} cannot be read ({error}); delete it and profile again to record it") from error
        if METADATA_KEY not in metadata:
            raise ProfileError(f"{where} is not a trace part: its metadata has no '{METADATA_KEY}'")
        return parse(SampleRecord, json.loads(metadata[METADATA_KEY]), where), frame


def part_name(sample_id: str) -> str:
    """A part's file name. An id that is no file name gets a digest, so that two ids never share a part."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in sample_id)[:NAME_LENGTH]
    if safe != sample_id:
        safe += "-" + hashlib.sha256(sample_id.encode()).hexdigest()[:12]
    return f"{PARTS}/{safe}{SUFFIX}"


def load_record(location: str | Path) -> Record:
    """Read a trace folder or URL. Raises ProfileError when it is missing, empty or damaged."""
    store = TraceStore(location)
    manifest, parts = store.manifest(), store.read()
    if not parts:
        raise ProfileError(f"{store.location} holds no recorded sample")
    frames = [frame for _, frame in parts if len(frame)]
    if not frames:
        raise ProfileError(f"no sample of {store.location} has a single round (all outputs are one token long)")
    return Record(manifest, [sample for sample, _ in parts], pl.concat(frames))


def trace_digest(location: str | Path) -> str:
    """Digest of a record: its manifest and every part."""
    return TraceStore(location).digest()


def _difference(saved: TraceManifest, asked: TraceManifest) -> str:
    a, b = saved.model_dump(), asked.model_dump()
    return "; ".join(f"{key} saved {a[key]!r}, asked {b[key]!r}" for key in a if a[key] != b[key])
