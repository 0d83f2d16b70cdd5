"""Where a study lives, and what several workers on it need: one lock, and a way to know who is still alive.

A journal file serves the processes of one machine, or of several that share a file system with locks. PostgreSQL
serves any number of machines. Every lock belongs to a living process or connection: a worker that is killed
leaves none behind, and its half-written record is cut off.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

from profiles.errors import BadInput, HardwareMissing
from profiles.locations import redacted, study_location
from profiles.store import kernel_lock

TAIL_BYTES = 1 << 16
CONNECT_TIMEOUT_S = 15


class StudyStorage(ABC):
    """An Optuna storage shared by workers. `worker` names this one; it counts as alive until it ends or dies."""

    storage: BaseStorage
    worker: str
    location: str
    """For people: without a password."""

    @abstractmethod
    def exclusive(self, scope: str) -> AbstractContextManager[None]:
        """Only one process at a time is inside, per scope."""

    @abstractmethod
    def alive(self, worker: str) -> bool:
        """Whether another worker's process still runs. Ask inside `exclusive`."""

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turns what a storage raises when it is out of reach into one line."""
        try:
            yield
        except StorageInternalError as error:
            raise BadInput(f"{self.location}: {_reason(error.__cause__ or error)}") from None
        except OSError as error:
            raise BadInput(f"{self.location}: {error}") from error


def open_study_storage(place: str | Path) -> StudyStorage:
    """Open what `profiles.locations.study_location` knows. A journal and its folder are made when they are missing.

    Raises BadInput when it cannot be reached, HardwareMissing when its driver is not installed.
    """
    try:
        kind, rest = study_location(str(place))
    except ValueError as error:
        raise BadInput(str(error)) from None
    return PostgresStudy(rest) if kind == "postgresql" else JournalStudy(Path(rest))


def finished_trials(place: str | Path, study: str) -> int:
    """How many trials of a study have ended, none when it is not there."""
    opened = open_study_storage(place)
    with opened.explained():
        try:
            study_id = opened.storage.get_study_id_from_name(study)
        except KeyError:
            return 0
        return sum(trial.state.is_finished() for trial in opened.storage.get_all_trials(study_id, deepcopy=False))


class Journal(BaseJournalBackend):
    """Optuna's journal format under a kernel lock.

    Optuna's own lock is a file that a killed process leaves behind, which stops all others for half a minute.
    """

    def __init__(self, path: Path, lock: Path) -> None:
        self._path, self._lock = path, lock
        self._file = JournalFileBackend(str(path))

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        return self._file.read_logs(log_number_from)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs)
        with kernel_lock(self._lock), self._path.open("r+b") as file:
            _cut_torn_record(file)
            file.write(text.encode("utf-8"))
            file.flush()
            if any("state" in log or "trial_id" not in log for log in logs):
                # what a running trial notes down is safe once its state changes: the file is one sequence
                os.fsync(file.fileno())


def _cut_torn_record(file: IO[bytes]) -> None:
    """Leave the file at its end, behind the last whole line. A line without its end was never acknowledged."""
    size = end = file.seek(0, os.SEEK_END)
    while end:
        start = max(end - TAIL_BYTES, 0)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        file.truncate(end)
    file.seek(end)


class JournalStudy(StudyStorage):
    """One file, its locks beside it in `FILE.locks`. A worker holds the lock of the file that bears its name."""

    def __init__(self, path: Path) -> None:
        self.location, self.worker = str(path), uuid.uuid4().hex
        self._locks = path.with_name(f"{path.name}.locks")
        with self.explained():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._locks.mkdir(exist_ok=True)
            mine = (self._locks / self.worker).open("ab")
            fcntl.flock(mine, fcntl.LOCK_EX)
            self.storage = JournalStorage(Journal(path, self._locks / "append"))
        weakref.finalize(self, _give_up, mine)

    @contextmanager
    def exclusive(self, scope: str) -> Iterator[None]:
        with kernel_lock(self._locks / scope):
            yield

    def alive(self, worker: str) -> bool:
        try:
            file = (self._locks / worker).open("r+b")
        except FileNotFoundError:
            return False
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            Path(file.name).unlink(missing_ok=True)
        return False


def _give_up(file: IO[bytes]) -> None:
    with suppress(OSError):
        Path(str(file.name)).unlink(missing_ok=True)
    file.close()


class PostgresStudy(StudyStorage):
    """A PostgreSQL database. Locks are advisory locks of one connection, which end with it.

    A connection pooler must not come between: it would hand the locks' connection to others.
    """

    def __init__(self, url: str) -> None:
        if importlib.util.find_spec("psycopg") is None:
            raise HardwareMissing("a study in PostgreSQL needs the extra 'postgres': pip install 'sage_tune[postgres]'")
        from sqlalchemy import create_engine
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
        from sqlalchemy.pool import NullPool

        self.location, self.worker = redacted(url), uuid.uuid4().hex
        try:
            parsed = make_url(url).set(drivername="postgresql+psycopg")
        except (ArgumentError, ValueError):
            raise BadInput(f"'{self.location}' is no database URL; postgresql://USER@HOST/DATABASE is one") from None
        if "connect_timeout" not in parsed.query:
            parsed = parsed.update_query_dict({"connect_timeout": str(CONNECT_TIMEOUT_S)})
        with self.explained(), _database_errors():
            engine = create_engine(parsed, poolclass=NullPool, isolation_level="AUTOCOMMIT")
            self._session = engine.connect()
            self._ask("pg_advisory_lock", self.worker)
            # every worker makes the tables that are missing, which PostgreSQL does not bear at the same time
            with self.exclusive("tables"):
                full = parsed.render_as_string(hide_password=False)
                self.storage = RDBStorage(full, engine_kwargs={"pool_size": 1})
        weakref.finalize(self, _hang_up, self._session, self.storage.engine)

    @contextmanager
    def exclusive(self, scope: str) -> Iterator[None]:
        self._ask("pg_advisory_lock", scope)
        try:
            yield
        finally:
            self._ask("pg_advisory_unlock", scope)

    def alive(self, worker: str) -> bool:
        if not self._ask("pg_try_advisory_lock", worker):
            return True
        self._ask("pg_advisory_unlock", worker)
        return False

    def _ask(self, function: str, name: str) -> Any:
        """Call an advisory-lock function on the lock of this name."""
        from sqlalchemy import text

        key = int.from_bytes(hashlib.sha256(f"sage_tune/{name}".encode()).digest()[:8], "big", signed=True)
        with _database_errors():
            return self._session.execute(text(f"SELECT {function}(:key)"), {"key": key}).scalar()


@contextmanager
def _database_errors() -> Iterator[None]:
    """What the driver raises, as Optuna raises it."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        raise StorageInternalError(str(error)) from error


def _hang_up(session: Any, engine: Any) -> None:
    session.close()
    engine.dispose()


def _reason(error: BaseException) -> str:
    """The driver's own first line; SQLAlchemy adds statements and links to it."""
    original = getattr(error, "orig", None) or error
    lines = str(original).strip().splitlines()
    text = redacted(lines[0]) if lines else type(original).__name__
    if "no password supplied" in text:
        text += "; a run folder keeps no password: give --storage with it again, or use PGPASSWORD or ~/.pgpass"
    return text
