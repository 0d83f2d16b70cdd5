"""A folder of whole files, on this machine or behind any URL that fsspec knows (`s3://`, `gs://`, `memory://`, ...).

A file is there entirely or not at all, also when its writer is killed or several write the same one.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiles.errors import BadInput, HardwareMissing, ProfileError
from profiles.locations import redacted
from profiles.store import atomic_path

WHOLE_OBJECTS = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"}
"""Stores where an object appears at once when its upload ends. Elsewhere a file is written aside, then moved."""


class Files(ABC):
    """Names are relative, with `/` between folders. Raises ProfileError when the store does not answer."""

    location: str

    @abstractmethod
    def exists(self, name: str) -> bool: ...

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Names inside a folder, sorted; none when the folder is missing."""

    @abstractmethod
    def read(self, names: list[str]) -> dict[str, bytes]:
        """Contents by name. Raises ProfileError for a missing one."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write or replace a whole file."""


def open_files(location: str | Path) -> Files:
    """The store of a path or URL. Raises BadInput for a URL that nothing can open, HardwareMissing for one whose
    driver is not installed."""
    text = str(location)
    if text.startswith("file://"):
        return LocalFiles(Path(text.removeprefix("file://")))
    return RemoteFiles(text) if "://" in text else LocalFiles(Path(location))


class LocalFiles(Files):
    """A folder of this machine's file system."""

    def __init__(self, root: Path) -> None:
        self.location, self._root = str(root), root

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def names(self, folder: str) -> list[str]:
        path = self._root / folder
        return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []

    def read(self, names: list[str]) -> dict[str, bytes]:
        try:
            return {name: (self._root / name).read_bytes() for name in names}
        except OSError as error:
            raise ProfileError(f"{error.filename} cannot be read: {error.strerror}") from error

    def write(self, name: str, content: bytes) -> None:
        with atomic_path(self._root / name) as temporary:
            temporary.write_bytes(content)


class RemoteFiles(Files):
    """A folder behind a URL. Keys and endpoints come from fsspec's own configuration."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.location = redacted(url)
        try:
            self._fs, self._root = fsspec.core.url_to_fs(url)
        except ImportError as error:
            raise HardwareMissing(f"{self.location}: {error}") from error
        except ValueError as error:
            raise BadInput(f"{self.location}: {error}") from error
        protocols = {self._fs.protocol} if isinstance(self._fs.protocol, str) else set(self._fs.protocol)
        self._whole = bool(protocols & WHOLE_OBJECTS)

    def exists(self, name: str) -> bool:
        with self._answering():
            self._fs.invalidate_cache()
            return bool(self._fs.exists(self._path(name)))

    def names(self, folder: str) -> list[str]:
        with self._answering():
            self._fs.invalidate_cache()  # others write here too
            try:
                found = self._fs.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in found)

    def read(self, names: list[str]) -> dict[str, bytes]:
        paths = {self._path(name): name for name in names}
        with self._answering():
            # a list is fetched at once where the driver can
            found: dict[str, bytes] = self._fs.cat(list(paths)) if paths else {}
        return {paths[path]: content for path, content in found.items()}

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)
        folder, _, last = path.rpartition("/")
        with self._answering():
            if self._whole:
                self._fs.pipe_file(path, content)
                return
            self._fs.makedirs(folder, exist_ok=True)
            aside = f"{folder}/.{last}.{uuid.uuid4().hex}.tmp"
            try:
                self._fs.pipe_file(aside, content)
                self._fs.mv(aside, path)
            except BaseException:
                if self._fs.exists(aside):
                    self._fs.rm_file(aside)
                raise

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Every driver raises exceptions of its own; all of them mean that the store did not do what was asked."""
        try:
            yield
        except Exception as error:
            raise ProfileError(f"{self.location}: {type(error).__name__}: {redacted(str(error))}") from error
