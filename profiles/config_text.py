"""A configuration as commented TOML: what `sage_tune init` writes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from profiles.config import TuneConfig


def to_toml(config: TuneConfig) -> str:
    """The document as commented TOML; reading it back gives the same configuration."""
    lines = ["# sage_tune configuration. Flags on the command line override single fields."]
    _write_fields(config, "", lines)
    return "\n".join(lines) + "\n"


def _write_fields(model: BaseModel, table: str, lines: list[str]) -> None:
    nested: list[tuple[str, BaseModel]] = []
    written = model.model_dump()
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            nested.append((f"{table}.{name}" if table else name, value))
            continue
        value = written[name]
        lines.append(f"# {field.description}")
        lines.append(f"# {name} =" if value is None else f"{name} = {_toml_value(value)}")
    for name, child in nested:
        lines += ["", f"# {(type(child).__doc__ or '').splitlines()[0]}", f"[{name}]"]
        _write_fields(child, name, lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return repr(value)
