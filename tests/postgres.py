"""A real PostgreSQL server for the tests that need one: started here, in a folder of its own, and stopped again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PASSWORD = "open-sesame-4711"
USER = "tuner"


def server_programs() -> Path | None:
    """The folder of initdb and postgres of the newest installed server; it is seldom on PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def _as_other_user() -> tuple[list[str], int | None]:
    """PostgreSQL refuses to run as root: a prefix that gives root up, and the user it then is."""
    if os.geteuid() != 0:
        return [], None
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"], user.pw_uid


@contextmanager
def postgres_server() -> Iterator[str]:
    """Yields `postgresql://tuner:PASSWORD@127.0.0.1:PORT/` without a database."""
    programs = server_programs()
    assert programs is not None
    prefix, uid = _as_other_user()
    folder = Path(tempfile.mkdtemp(prefix="sage-postgres-", dir="/tmp"))
    secret = folder / "password"
    secret.write_text(PASSWORD)
    if uid is not None:
        for path in (folder, secret):
            os.chown(path, uid, -1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data, log = folder / "data", folder / "log"
    common = {"cwd": folder, "check": True, "capture_output": True, "timeout": 60}
    try:
        subprocess.run(
            [*prefix, programs / "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", f"--pwfile={secret}", "-N"],
            **common,
        )
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -F"
        control = [*prefix, programs / "pg_ctl", "-D", data, "-w"]
        subprocess.run([*control, "-l", log, "-o", options, "start"], **(common | {"capture_output": False}))
        try:
            yield f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port}/"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], **common)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
