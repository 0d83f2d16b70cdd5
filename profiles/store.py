"""Reading and writing what is written down: atomic writes, closed schemas, errors with the nearest name."""

from __future__ import annotations

import difflib
import fcntl
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from profiles.errors import BadInput, ProfileError
from profiles.locations import redacted
from profiles.migration import migrated, saved_digests
from profiles.policy_profile import SCHEMA_VERSION, PolicyProfile

Model = TypeVar("Model", bound=BaseModel)
PROFILE_SUFFIX = ".sage.json"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary neighbour of `path` to write to; it takes the name of `path` only when the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def cache_root() -> Path:
    """Where things are kept that can be made again: under `$SAGE_TUNE_CACHE`, else in the user's cache folder."""
    root = os.environ.get("SAGE_TUNE_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "sage_tune"


def write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Pretty JSON with sorted keys; the same value gives the same bytes."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """What `write_json` writes."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


@contextmanager
def kernel_lock(path: Path) -> Iterator[None]:
    """Hold a file's lock; others wait. The kernel gives it free when its holder ends, however it ends."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_json(path: Path, kind: type[Model]) -> Model:
    """Parse one of our JSON files. Raises ProfileError when missing, malformed or not of this schema."""
    return parse(kind, _load_json(path), str(path))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is not valid TOML: {error}") from error


def parse(kind: type[Model], value: Any, where: str) -> Model:
    """Validate `value`; every problem is one line with the key, the rule, the value and the nearest name."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise BadInput(f"{where}: " + "; ".join(_explain(kind, line) for line in error.errors())) from None


def save_profile(profile: PolicyProfile, path: Path) -> PolicyProfile:
    """Seal and write a profile atomically; returns the sealed profile."""
    sealed = profile.sealed()
    write_profile(sealed, path)
    return sealed


def write_profile(sealed: PolicyProfile, path: Path) -> None:
    """Write a sealed profile as it is. The same profile gives the same bytes."""
    if not path.name.endswith(PROFILE_SUFFIX):
        raise BadInput(f"a profile is named *{PROFILE_SUFFIX}, got {path.name}")
    write_json(path, sealed)


def load_profile(path: Path) -> PolicyProfile:
    """Read a profile and prove that nothing in it changed since it was frozen.

    An older schema is migrated and sealed anew, so its digest is that of the same decisions as written today.
    """
    raw = _load_json(path)
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise ProfileError(
            f"{path} has schema version {version}, newer than the {SCHEMA_VERSION} this release reads; update sage_tune"
        )
    profile = parse(PolicyProfile, migrated(raw) if isinstance(raw, dict) else raw, str(path))
    for name, found in saved_digests(raw).items():
        saved = str(raw.get(name, ""))
        if saved != found:
            raise ProfileError(
                f"{path} was changed after it was frozen: {name} is {saved[:12] or 'missing'}, "
                f"its content gives {found[:12]}"
            )
    return profile if version == SCHEMA_VERSION else profile.sealed()


def _load_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_object)
    except FileNotFoundError:
        raise ProfileError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise ProfileError(f"{path} is a folder, a file was expected") from None
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    except RecursionError:
        raise ProfileError(f"{path} is not valid JSON for us: it is nested too deeply") from None
    except ValueError as error:  # malformed, not UTF-8, or a number of thousands of digits
        raise ProfileError(f"{path} is not valid JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Readers differ on which of two equal keys counts, so a document with both means two things."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it names the key '{twice}' twice")
    return found


def _explain(kind: type[BaseModel], line: Any) -> str:
    key = ".".join(str(part) for part in line["loc"]) or "document"
    if line["type"] == "extra_forbidden":
        known = _known_names(kind, line["loc"])
        near = difflib.get_close_matches(str(line["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f", did you mean '{near[0]}'?" if near else f"; known: {', '.join(sorted(known))}"
        return f"unknown key '{key}'{hint}"
    shown = redacted(repr(line.get("input")))
    return f"{key}: {line['msg']} (got {shown if len(shown) < 120 else shown[:117] + '...'})"


def _known_names(kind: type[BaseModel], loc: tuple[Any, ...]) -> list[str]:
    """Field names of the model that holds the last key of `loc`."""
    current: Any = kind
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        field = current.model_fields.get(part)
        if field is None:
            return []
        current = _model_in(field.annotation)
        if current is None:
            return []
    return list(current.model_fields)


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg)) is not None), None)
