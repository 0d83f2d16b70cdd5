"""Whatever kills a command, no file is half-written: writes go through an atomic path, which may die at any step."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WRITES = {
    "write_text",
    "write_bytes",
    "write_parquet",
    "write_json",
    "write_csv",
    "save",
    "save_pretrained",
    "dump",
    "savez",
    "tofile",
    "touch",
}
"""Methods and functions that write files."""
ALLOWED = {
    ("profiles.store", "write_text"): "writes to the atomic path that it opened",
    ("tuner.trace_store", "write_parquet"): "into memory; the bytes are then written whole",
    ("exports.onnx_graph", "save"): "a graph inside an atomic path that its caller opened",
    ("tuner.study_storage", "open"): "the journal: records are appended under a lock, a torn last one is dropped",
    ("profiles.store", "open"): "an empty lock file",
    ("runtime.counters", "open"): "a log: one line is appended in one write, a torn last one is a line of its own",
    ("exports.onnx_parity", "save"): "a copy for one comparison, in a temporary folder",
}


def modules() -> list[tuple[str, Path]]:
    found = [ROOT / "sage_tune.py"]
    for layer in ("profiles", "runtime", "exports", "tuner", "commands"):
        found += sorted((ROOT / layer).rglob("*.py"))
    return [(".".join(path.relative_to(ROOT).with_suffix("").parts), path) for path in found]


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def writes(node: ast.Call) -> bool:
    name = called(node)
    if name == "open":
        modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        return any(set(mode) & set("wax+") for mode in modes if len(mode) <= 3)
    return name in WRITES


def unsafe_writes(tree: ast.AST) -> list[str]:
    """Names of writing calls outside a `with atomic_path(...)` block, functions of the store excepted."""
    found: list[str] = []

    def visit(node: ast.AST, safe: bool) -> None:
        if isinstance(node, ast.With):
            safe = safe or any(
                isinstance(call, ast.Call) and called(call) == "atomic_path"
                for item in node.items
                for call in ast.walk(item.context_expr)
            )
        if isinstance(node, ast.Call) and writes(node) and not safe:
            found.append(called(node))
        for child in ast.iter_child_nodes(node):
            visit(child, safe)

    visit(tree, False)
    return found


def test_every_write_is_atomic() -> None:
    store = {"write_text", "write_json"}
    unknown = []
    for module, path in modules():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module == "profiles.store"
            for alias in node.names
        }
        safe = (store & imported) | (store if module == "profiles.store" else set())
        unknown += [
            f"{module}: {name}"
            for name in unsafe_writes(tree)
            if name not in safe and (module, name) not in ALLOWED and not (module == "profiles.store" and name in store)
        ]
    assert not unknown, f"these writes can be torn: {unknown}"


def test_a_torn_write_would_be_found() -> None:
    """Planted: the plain ways to write a file."""
    for line in ('path.write_text("x")', 'open(p, "w")', 'path.open("ab")', "frame.write_parquet(p)", "np.save(p, a)"):
        assert unsafe_writes(ast.parse(line)), line
    assert not unsafe_writes(ast.parse('with atomic_path(p) as t:\n    t.write_text("x")'))
    assert not unsafe_writes(ast.parse('path.open("rb").read()'))


def killed_writer(scenario: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.killed_writer", scenario, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)


def test_a_write_in_place_is_found(tmp_path: Path) -> None:
    """Negative control."""
    done = killed_writer("in place", tmp_path)
    assert done.returncode and "is written in place" in done.stderr


@pytest.mark.parametrize(
    "scenario", ["profile", "sign", "junit", "configuration", "run folder", "costs", "confirmation", "trace"]
)
def test_killed_at_every_step_of_a_write(tmp_path: Path, scenario: str) -> None:
    """A process writes over what is there and is killed at its first, second, ... step on the file system. What it
    leaves is the old content or the new one, whole, and nothing else under a name that anybody reads."""
    done = killed_writer(scenario, tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"\n{scenario}: {found}")
    assert found["steps"] >= 4
    assert found["torn"] == [] and found["old"] >= 1
