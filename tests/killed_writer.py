"""Kills itself in the middle of writing: `python -m tests.killed_writer SCENARIO FOLDER`.

A scenario writes files twice, an old and a new content. Every open for writing, rename, chmod and removal below the
folder is a step, told by Python's audit events. The new content is written again and again by a child that is killed
(SIGKILL, as the kernel kills) right before its first, second, ... step, when half of its temporary files is on the
disk. Only children write: a library whose threads have begun would not survive a fork. The last stdout line says what
was found afterwards.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from profiles.store import load_profile, save_profile, write_text
from tests.samples import MACHINE, pair_record, sample_profile

STEPS = {"open", "os.rename", "os.remove", "os.chmod", "shutil.move"}
Write = Callable[[Path, int], None]
"""Writes a scenario's files, content 0 or 1."""


def profile(folder: Path, content: int) -> None:
    save_profile(sample_profile().model_copy(update={"name": f"name {content}"}), folder / "a.sage.json")


def sign(folder: Path, content: int) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from tuner.signing import sign_file

    path = folder / "a.sage.json"
    if not path.exists():
        save_profile(sample_profile(), path)
    sign_file(path, Ed25519PrivateKey.from_private_bytes(bytes([content]) * 32))
    load_profile(path)


def junit(folder: Path, content: int) -> None:
    from tuner.check import Checked
    from tuner.junit import junit_text

    write_text(folder / "report.xml", junit_text(Checked(sample_profile(), [], reason=f"reason {content}")))


def configuration(folder: Path, content: int) -> None:
    from profiles.config import load_config
    from profiles.config_text import to_toml

    write_text(folder / "sage.toml", to_toml(load_config(None, {"search.seed": content})))


def run_folder(folder: Path, content: int) -> None:
    from profiles.config import TuneConfig
    from tuner.run_folder import RunFolder

    RunFolder(folder).begin(TuneConfig.model_validate({"search": {"seed": content}}), pair_record(), MACHINE)


def costs(folder: Path, content: int) -> None:
    from tuner.run_folder import RunFolder

    table = sample_profile().evidence.cost_table
    host = table.host.model_copy(update={"rounds": 100 + content})
    RunFolder(folder).save_costs(table.model_copy(update={"host": host}), {("plain", 1): [(10, 1000 + content)]})


def confirmation(folder: Path, content: int) -> None:
    from tuner.run_folder import RunFolder

    RunFolder(folder).save_confirmation({"report": content}, [("report", "p", "plain", content, 1, [1, 2, 3])])


def trace(folder: Path, content: int) -> None:
    import numpy as np

    from profiles.trace_schema import SampleRecord
    from tuner.trace_store import TraceStore

    record = SampleRecord.model_validate(
        {
            "id": "a",
            "kind": "text",
            "modality": "text",
            "split": "tune",
            "prompt_tokens": 3,
            "output": [content] * 9,
            "finished": "eos",
        }
    )
    TraceStore(folder).write(record, {"position": np.arange(8)})


def in_place(folder: Path, content: int) -> None:
    """Planted: what no command may do."""
    (folder / "a.json").write_text(str(content))


SCENARIOS: dict[str, Write] = {
    "profile": profile,
    "sign": sign,
    "junit": junit,
    "configuration": configuration,
    "run folder": run_folder,
    "costs": costs,
    "confirmation": confirmation,
    "trace": trace,
    "in place": in_place,
}


IMPORTS = {
    "sign": "tuner.signing",
    "junit": "tuner.junit",
    "configuration": "profiles.config_text",
    "run folder": "tuner.run_folder",
    "costs": "tuner.run_folder",
    "confirmation": "tuner.run_folder",
    "trace": "tuner.trace_store",
}
"""What a scenario needs, imported once before anything forks."""


def contents(folder: Path) -> dict[str, bytes]:
    """Everything under a name that is read by anybody: temporary neighbours are hidden."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def written(write: Write, folder: Path, content: int, step: int | None = None) -> bool:
    """Write in a child; it is killed at `step`. False when it was."""
    child = os.fork()
    if child == 0:
        seen = 0

        def hook(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            if event not in STEPS or str(folder) not in str(arguments[0]):
                return
            if event == "open":
                if not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
                    return
                if not Path(str(arguments[0])).name.startswith("."):
                    raise RuntimeError(f"{arguments[0]} is written in place: it would be torn by a kill")
            if seen == step:
                _tear(folder)
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1

        try:
            sys.addaudithook(hook)
            write(folder, content)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.WEXITSTATUS(status):
        raise SystemExit("the writer failed")
    return True


def _tear(folder: Path) -> None:
    """What was not yet forced to the disk may be lost: half of every temporary file."""
    for path in folder.rglob(".*.tmp"):
        os.truncate(path, path.stat().st_size // 2)


def main(name: str, root: Path) -> None:
    write, template, after = SCENARIOS[name], root / "template", root / "after"
    if name in IMPORTS:
        importlib.import_module(IMPORTS[name])
    template.mkdir()
    written(write, template, 0)
    old = contents(template)
    shutil.copytree(template, after)
    written(write, after, 1)
    new = contents(after)
    torn: list[str] = []
    kills, whole = 0, {"old": 0, "new": 0}
    while True:
        folder = root / f"killed-{kills}"
        shutil.copytree(template, folder)
        if written(write, folder, 1, step=kills):
            break
        left = contents(folder)
        for file, content in left.items():
            if content == old.get(file):
                whole["old"] += 1
            elif content == new.get(file):
                whole["new"] += 1
            else:
                torn.append(f"{file} at step {kills}")
        torn += [f"{file} is gone at step {kills}" for file in old.keys() - left.keys()]
        written(write, folder, 1)  # the same command again completes it
        torn += [f"{file} after step {kills}" for file, content in contents(folder).items() if content != new[file]]
        kills += 1
    print(json.dumps({"steps": kills, "torn": torn, **whole}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
