"""What every command shares: the two consoles, the options that recur, and how flags become a configuration."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from profiles.config import TuneConfig, load_config, parse_seconds, parse_set
from profiles.errors import BadInput
from profiles.locations import redacted

if TYPE_CHECKING:
    from tuner.progress import Progress
    from tuner.timing import Budget

PIPE_COLUMNS = 120
"""Width of tables where there is no terminal to ask."""
out, err = (
    Console(stderr=to_stderr, width=None if stream.isatty() else PIPE_COLUMNS)
    for to_stderr, stream in ((False, sys.stdout), (True, sys.stderr))
)

Config = Annotated[Path | None, typer.Option("--config", help="TOML configuration; flags override it")]
Model = Annotated[str | None, typer.Option("--model", help="registered pair or a pair TOML")]
Target = Annotated[str | None, typer.Option("--target", help="hub id or folder; with --draft, a pair of its own")]
Draft = Annotated[
    str | None,
    typer.Option("--draft", help="in place of the pair's draft: hub id, folder, prompt-lookup, early-exit:LAYERS"),
]
DeviceMap = Annotated[
    str | None, typer.Option("--device-map", help="spread the target over several devices: auto, balanced, sequential")
]
Estimated = Annotated[
    bool, typer.Option("--estimate", help="costs of a device that is not here, by its data sheet; measures nothing")
]
Gpu = Annotated[str | None, typer.Option("--gpu", help="auto, cpu, h100, ... see `sage_tune gpus`")]
Data = Annotated[str | None, typer.Option("--data", help="calibration JSONL, folder of pictures, hf:NAME[:SPLIT]")]
Backend = Annotated[str | None, typer.Option("--backend", help="onnx or torch")]
Set = Annotated[list[str] | None, typer.Option("--set", help="any field: --set grid.depth=6", metavar="KEY=VALUE")]
BudgetText = Annotated[str | None, typer.Option("--budget", help="stop cleanly after this time: 90s, 10m, 1h")]
Out = Annotated[Path | None, typer.Option("--out", help="run folder")]
Json = Annotated[bool, typer.Option("--json", help="end with one JSON line on stdout")]
Strict = Annotated[bool, typer.Option("--strict", help="a warning is a failure as well")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the plan with estimated time and disk, then stop")]
Ray = Annotated[
    str | None, typer.Option("--ray", help="spread the work over a Ray cluster: its address, auto, or local")
]
ShardText = Annotated[
    str | None, typer.Option("--shard", metavar="I/N", help="record only share I of N; the last one measures costs")
]
Shards = Annotated[int | None, typer.Option("--shards", min=1, help="with --ray: how many recorder tasks")]
Merge = Annotated[
    list[str] | None,
    typer.Option("--merge", metavar="PLACE", help="take over what another run folder, trace or URL holds; repeatable"),
]
TraceUrl = Annotated[
    str | None, typer.Option("--trace-url", help="put the record into this folder or fsspec URL (s3://...)")
]
ProfilePath = Annotated[Path, typer.Argument(help="policy profile (*.sage.json)")]
Trust = Annotated[
    list[Path] | None,
    typer.Option("--trust", metavar="KEYS", help="public keys (PEM file or folder) one of which must have signed it"),
]
SignKey = Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="sign the profile with this ed25519 key")]
Library = Annotated[
    list[Path] | None, typer.Option("--library", help="folder of profiles; repeatable; unset is the shipped library")
]
Accept = Annotated[str, typer.Option("--accept", metavar="tuned|nearest|default", help="the least that is good enough")]
Storage = Annotated[
    str | None,
    typer.Option("--storage", help="study that workers share: PATH, journal:PATH or postgresql://USER@HOST/DB"),
]
SearchOnly = Annotated[
    bool, typer.Option("--search-only", help="add trials to the study until it is complete, then stop; needs no model")
]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="with --ray: how many search workers")]


def require_together(**given: object) -> None:
    """Raises BadInput when only one of two options that need each other was given."""
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 1:
        present = next(name for name in given if name not in missing)
        raise BadInput(f"--{present} needs --{missing[0]} as well")


def configured(
    path: Path | None,
    model: str | None,
    gpu: str | None,
    data: str | None,
    backend: str | None,
    budget: str | None,
    sets: list[str] | None,
    **fields: Any,
) -> TuneConfig:
    """The configuration of a command: its file, overridden by its flags. `fields` are flags by field name."""
    return load_config(
        path,
        {
            "model": model,
            "gpu": gpu,
            "data.path": data,
            "backend": backend,
            "budget_s": seconds(budget),
            **fields,
            **assignments(sets),
        },
    )


def assignments(sets: list[str] | None) -> dict[str, Any]:
    """Every `--set KEY=VALUE` by its dotted path."""
    return dict(parse_set(text) for text in sets or [])


def seconds(text: str | None) -> float | None:
    return None if text is None else parse_seconds(text)


def budget_of(config: TuneConfig) -> Budget:
    from tuner.timing import Budget

    return Budget(config.budget_s)


def progress() -> Progress:
    from tuner.progress import Progress

    return Progress(err)


def command_line() -> str:
    """What was typed, for the provenance of what it makes; passwords are left out."""
    return shlex.join(["sage_tune", *(redacted(argument) for argument in sys.argv[1:])])


def print_json(document: dict[str, Any]) -> None:
    """The last line of a command under `--json`."""
    sys.stdout.flush()
    print(json.dumps(document, allow_nan=False), flush=True)
