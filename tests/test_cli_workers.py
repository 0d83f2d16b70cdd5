"""Several processes on one record and one study, as a user starts them: shards, workers, a Ray cluster."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from commands.cluster import record_on_cluster
from commands.options import command_line, require_together
from profiles.config import TuneConfig
from profiles.errors import BadInput, HardwareMissing
from profiles.store import load_profile
from tests.postgres import PASSWORD, postgres_server, server_programs
from tests.test_cli import ROOT, SMALL, TUNE, sage
from tests.test_tuner_shards import DEVICE, PAIR, configuration, quiet
from tuner.profiling import profile
from tuner.run_folder import RunFolder
from tuner.timing import Budget
from tuner.trace_store import trace_digest

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install 'sage_tune[ray]'")
needs_postgres = pytest.mark.skipif(server_programs() is None, reason="no PostgreSQL server is installed")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A profiled run of a pair that no registry knows: who opens a model fails."""
    folder = tmp_path_factory.mktemp("runs")
    config = configuration(folder, **{"model": "no-such-pair", "search.max_bins": 2})
    profile(PAIR, config, DEVICE, RunFolder(folder / "run"), Budget(None), quiet())
    return RunFolder(folder / "run")


def last_json(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(text.splitlines()[-1])
    return found


def test_search_only_workers_share_a_study_and_need_no_model(run: RunFolder, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "sage_tune.py"), "tune", str(run.path), "--search-only", "--json"]
    command += ["--storage", f"journal:{tmp_path}/shared.journal", "--trials", "40"]
    before = (run.path / "config.json").read_bytes()
    team = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    done = []
    for process in team:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        done.append(last_json(stdout))
    assert [part["trials"] for part in done] == [40, 40] and done[0]["study"] == done[1]["study"]
    assert sum(int(str(part["ran"])) for part in done) == 40
    assert (run.path / "config.json").read_bytes() == before, "a worker is a guest"
    again = sage(*command[2:])
    assert again.returncode == 0 and last_json(again.stdout)["ran"] == 0


def test_the_plan_of_a_search_names_place_and_cost(run: RunFolder) -> None:
    files = sorted(run.path.rglob("*"))
    done = sage("tune", str(run.path), "--dry-run", "--storage", f"postgresql://me:{PASSWORD}@nowhere/db")
    assert done.returncode == 0, done.stderr
    assert "study of 400 trials (tpe) in postgresql://me:***@nowhere/db" in done.stdout
    assert "estimated:" in done.stdout and PASSWORD not in done.stdout
    assert sorted(run.path.rglob("*")) == files, "a dry run leaves nothing behind"


@needs_postgres
def test_a_password_is_in_no_file_and_no_line(run: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(Path(shutil.copytree(run.path, tmp_path / "run")))
    arguments = ["tune", str(run.path), "--search-only", "--trials", "6"]
    with postgres_server() as url:
        done = sage(*arguments, "--storage", f"{url}postgres", cwd=tmp_path)
        wrong = sage(*arguments, "--storage", f"{url}absent")
    assert done.returncode == 0, done.stderr
    assert "6 of 6 trials" in done.stdout
    assert wrong.returncode == 2 and "tuner:***@127.0.0.1" in wrong.stderr
    for text in (done.stdout, done.stderr, wrong.stdout, wrong.stderr):
        assert PASSWORD not in text
    run.begin(
        TuneConfig.model_validate(
            {**(saved := run.config().model_dump()), "search": {**saved["search"], "storage": url}}
        ),
        run.pair(),
        run.fingerprint(),
    )
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 20 and not [path for path in written if PASSWORD.encode() in path.read_bytes()]
    assert run.config().search.storage == url.replace(f":{PASSWORD}", "")


def test_the_command_line_is_kept_without_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["sage_tune", "tune", "R", f"--storage=postgresql://me:{PASSWORD}@h/d?a=b c"])
    assert command_line() == "sage_tune tune R '--storage=postgresql://me:***@h/d?a=b c'"


@pytest.mark.slow
def test_two_shards_of_two_folders_become_one_run(tmp_path: Path) -> None:
    common = ["profile", "--gpu", "cpu", *SMALL, "--json"]
    first = sage(*common, "--shard", "1/2", "--out", str(tmp_path / "a"))
    assert first.returncode == 0, first.stderr
    document = last_json(first.stdout)
    assert document["shard"] == "1/2" and int(str(document["missing"])) + int(str(document["prompts"])) == 30
    assert "still missing from other shards" in first.stdout and not (tmp_path / "a" / "costs.json").exists()
    second = sage(*common, "--shard", "2/2", "--out", str(tmp_path / "b"), "--merge", str(tmp_path / "a"))
    assert second.returncode == 0, second.stderr
    assert f"took over {document['prompts']} samples" in second.stdout
    assert last_json(second.stdout)["prompts"] == 30 and (tmp_path / "b" / "costs.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["profile", "--shard", "3/2"], 2, "1 <= I <= N <= 4096"),
        (["profile", "--ray", "local"], 2, "--ray needs --shards"),
        (["profile", "--ray", "local", "--shards", "2", "--shard", "1/2"], 2, "give one of them"),
        (["profile", "--trace-url", "warp://x", "--gpu", "cpu"], 2, "Protocol not known: warp"),
        (["tune", "RUN", "--workers", "2"], 2, "--workers needs --ray"),
        (["tune", "RUN", "--search-only", "--storage", f"redis://me:{PASSWORD}@h"], 2, "postgresql://USER@HOST"),
        pytest.param(["tune", "RUN", "--ray", "127.0.0.1:1", "--workers", "2"], 3, "no cluster", marks=needs_ray),
    ],
)
def test_mistakes_have_their_exit_code(
    arguments: list[str], code: int, message: str, run: RunFolder, tmp_path: Path
) -> None:
    done = sage(*[str(run.path) if a == "RUN" else a for a in arguments], cwd=tmp_path)
    assert done.returncode == code and message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and PASSWORD not in done.stderr


def test_a_missing_ray_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(HardwareMissing, match=r"pip install 'sage_tune\[ray\]'"):
        record_on_cluster(TuneConfig(), tmp_path, "local", 2, Budget(None), quiet())
    with pytest.raises(BadInput, match="--shards needs --ray"):
        require_together(ray=None, shards=2)


@needs_ray
def test_two_search_workers_on_a_local_ray_cluster(run: RunFolder) -> None:
    done = sage("tune", str(run.path), "--ray", "local", "--workers", "2", "--trials", "50", "--search-only", "--json")
    assert done.returncode == 0, done.stderr
    document = last_json(done.stdout)
    assert document["trials"] == 50 and document["ran"] == 0, "the cluster ran them all"
    assert "Traceback" not in done.stderr and "Warning" not in done.stderr


@needs_ray
@needs_postgres
@pytest.mark.slow
def test_a_ray_cluster_profiles_and_tunes_through_a_database(tmp_path: Path) -> None:
    """The whole way: two recorder tasks, then two search workers on PostgreSQL, then a frozen profile."""
    folder = tmp_path / "run"
    common = ["profile", "--gpu", "cpu", *SMALL, "--set=threads=1"]
    done = sage(*common, "--out", str(folder), "--ray", "local", "--shards", "2")
    assert done.returncode == 0, done.stderr
    alone = sage(*common, "--out", str(tmp_path / "alone"))
    assert alone.returncode == 0, alone.stderr
    assert trace_digest(folder / "trace") == trace_digest(tmp_path / "alone" / "trace")
    other = sage(*common, "--set=grid.depth=3", "--out", str(folder), "--ray", "local", "--shards", "2")
    assert other.returncode == 2 and "on the cluster:" in other.stderr and "depth saved 4, asked 3" in other.stderr
    with postgres_server() as url:
        place = f"{url}postgres"
        done = sage("tune", str(folder), "--ray", "local", "--workers", "2", "--storage", place, "--json", *TUNE)
    assert done.returncode == 0, done.stderr
    document = last_json(done.stdout)
    assert document["trials"] == 25
    frozen = load_profile(Path(str(document["profile"])))
    assert "tuner:***@" in frozen.provenance.command_line
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if PASSWORD.encode() in path.read_bytes()]
