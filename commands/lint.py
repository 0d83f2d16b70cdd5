"""`sage_tune lint`: name the bad samples of a calibration set before a profile is made with it."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.options import Config, Json, Model, Set, Strict, configured, err, out, print_json
from profiles.errors import BadInput
from profiles.registry import load_pair_spec

Given = Annotated[
    str | None,
    typer.Argument(metavar="DATA", help="JSONL, folder of pictures or hf:NAME[:SPLIT]; the pair's own set without it"),
]


def lint(
    data: Given = None,
    config_path: Config = None,
    model: Model = None,
    strict: Strict = False,
    as_json: Json = False,
    sets: Set = None,
) -> None:
    """Check a calibration set: rows, pictures, placeholders, duplicates, modality, language, lengths."""
    from commands.findings_table import findings_table
    from runtime.model_side import read_side
    from tuner.lint import lint_data

    config = configured(config_path, model, None, data, None, None, sets)
    spec = load_pair_spec(config.model)
    given = config.data.path or spec.calibration_path()
    if given is None:
        raise BadInput(f"'{spec.name}' ships no calibration set; name one: sage_tune lint DATA")
    with err.status(f"reading {given}"):
        report = lint_data(given, config, spec, read_side(spec, "target"), read_side(spec, "draft"))
    out.print(findings_table(report, f"{report.subject} for {spec.name}"))
    if as_json:
        print_json(report.document())
    raise typer.Exit(report.exit_code(strict))
