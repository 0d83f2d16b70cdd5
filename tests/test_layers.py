"""Imports point one way, and the lower layers stay light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "profiles": set(),
    "runtime.policy": {"profiles"},
    "runtime": {"runtime.policy", "profiles"},
    "exports": {"runtime.policy", "profiles"},
    "tuner": {"runtime", "runtime.policy", "profiles"},
    "commands": {"tuner", "exports", "runtime", "runtime.policy", "profiles"},
    "sage_tune": {"commands", "tuner", "exports", "runtime", "runtime.policy", "profiles"},
}
MAX_LINES = 350


def _layer(module: str) -> str | None:
    if module == "runtime.policy" or module.startswith("runtime.policy."):
        return "runtime.policy"
    top = module.split(".")[0]
    return top if top in MAY_IMPORT else None


def _sources() -> list[tuple[str, Path]]:
    found = []
    for path in [
        ROOT / "sage_tune.py",
        *(p for top in ("profiles", "runtime", "exports", "tuner", "commands") for p in (ROOT / top).rglob("*.py")),
    ]:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found.append((module, path))
    return found


def _imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_imports_point_one_way() -> None:
    wrong = []
    for module, path in _sources():
        own = _layer(module)
        assert own is not None
        for name in _imports(path):
            other = _layer(name)
            if other not in (None, own, *MAY_IMPORT[own]):
                wrong.append(f"{module} imports {name}")
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("layer", "allowed"),
    [("profiles", {"pydantic"}), ("runtime.policy", {"numpy"})],
)
def test_lower_layers_are_light(layer: str, allowed: set[str]) -> None:
    for module, path in _sources():
        if _layer(module) != layer:
            continue
        for name in _imports(path):
            top = name.split(".")[0]
            ours = _layer(name) is not None
            assert ours or top in allowed or top in sys.stdlib_module_names, f"{module} imports {name}"


def test_files_stay_readable() -> None:
    long = {m: n for m, path in _sources() if (n := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES}
    assert not long, f"files over {MAX_LINES} lines hold more than one noun: {long}"


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, sage_tune; print([m for m in ('torch', 'transformers', 'optuna', 'polars') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
