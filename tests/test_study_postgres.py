"""A study in PostgreSQL, against a real server: many workers, killed workers, and a password that is nowhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from profiles.errors import BadInput, HardwareMissing
from tests.postgres import PASSWORD, postgres_server, server_programs
from tests.study_worker import baselines, processes, run_worker, small_replay, worker
from tests.test_tuner_study import SETTINGS, assert_complete, content, trials_of
from tuner.replay import Replay
from tuner.search import WORKER, Search
from tuner.study_storage import PostgresStudy
from tuner.timing import Budget

if server_programs() is None:
    pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)", allow_module_level=True)
pytest.importorskip("psycopg")
FEW_DRAWN = SETTINGS.model_copy(update={"trials": 44})  # four of them by the estimator
THIRTY = SETTINGS.model_copy(update={"trials": 30})
NAMES = (f"study_{i}" for i in itertools.count())


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture
def database(server: str) -> str:
    """The URL of a new, empty database."""
    import psycopg

    name = next(NAMES)
    with psycopg.connect(f"{server}postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"{server}{name}"


@pytest.fixture(scope="module")
def replay() -> Replay:
    return small_replay()


def finished(search: Search) -> int:
    return sum(t.state.is_finished() for t in trials_of(search))


def test_four_workers_one_of_them_killed_lose_nothing(database: str, replay: Replay) -> None:
    """They begin together on an empty database, so they make its tables together too."""
    team = [processes().Process(target=run_worker, args=(database, THIRTY)) for _ in range(4)]
    for process in team:
        process.start()
    search = worker(database, THIRTY, replay=replay)
    while finished(search) < 12:
        team[0].join(0.1)
    team[0].kill()
    for process in team:
        process.join(300)
    assert [process.exitcode for process in team[1:]] == [0] * 3
    assert_complete(search, 30)
    assert len({t.user_attrs[WORKER] for t in trials_of(search)}) > 1, "one worker did it all"


def test_a_serial_search_is_the_same_in_a_database(database: str, tmp_path: Path, replay: Replay) -> None:
    """Interrupted by a kill, in PostgreSQL, against one that ran through in a file: bit for bit."""
    process = processes().Process(target=run_worker, args=(database, FEW_DRAWN))
    process.start()
    watching = worker(database, FEW_DRAWN, replay=replay)
    while finished(watching) < 20:
        process.join(0.05)
    process.kill()
    process.join()
    resumed = worker(database, FEW_DRAWN, replay=replay)
    assert len([t for t in trials_of(resumed) if t.state == TrialState.RUNNING]) <= 1
    assert resumed.run(baselines(resumed), Budget(None)) == 44
    in_file = worker(tmp_path / "journal", FEW_DRAWN, replay=replay)
    in_file.run(baselines(in_file), Budget(None))
    assert content(resumed) == content(in_file)
    assert resumed.record() == in_file.record()


def test_locks_belong_to_connections(database: str) -> None:
    ours, other = PostgresStudy(database), PostgresStudy(database)
    assert ours.alive(other.worker) and other.alive(ours.worker)
    name = other.worker
    del other
    assert not ours.alive(name)


def test_what_cannot_be_reached_is_named_without_its_password(server: str) -> None:
    for url, message in (
        (f"{server}absent", 'database "absent" does not exist'),
        (server.replace(PASSWORD, f"{PASSWORD}x"), "password authentication failed"),
        (server.replace(f":{PASSWORD}", ""), "a run folder keeps no password: give --storage with it again"),
        (f"postgresql://tuner:{PASSWORD}@127.0.0.1:1/db", "connection"),
        (f"postgresql://tuner:{PASSWORD}@127.0.0.1:port/db", "is no database URL"),
    ):
        with pytest.raises(BadInput, match=message) as caught:
            PostgresStudy(url)
        assert PASSWORD not in str(caught.value)
        assert ("tuner:***@" in str(caught.value)) == (PASSWORD in url)


def test_a_server_that_goes_away_is_one_clear_error(database: str, replay: Replay) -> None:
    import psycopg

    search = worker(database, SETTINGS, replay=replay)
    search.run(baselines(search)[:1], Budget(0.0))
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(BadInput, match="terminat") as caught:
        search.run(baselines(search), Budget(None))
    assert PASSWORD not in str(caught.value)


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(HardwareMissing, match=r"pip install 'sage_tune\[postgres\]'"):
        PostgresStudy("postgresql://tuner@127.0.0.1/db")
