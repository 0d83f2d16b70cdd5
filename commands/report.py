"""`sage_tune report`: a run or a profile as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.options import Json, command_line, out, print_json
from profiles.store import PROFILE_SUFFIX, write_text


def report(
    subject: Annotated[Path, typer.Argument(help="run folder or policy profile (*.sage.json)")],
    out_path: Annotated[
        Path | None, typer.Option("--out", help="HTML file to write; unset names it by SUBJECT")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML file with curves, costs, policy, yardsticks and provenance; it needs no network."""
    from tuner.report.build import build_report, open_subject
    from tuner.report.page import html

    opened = open_subject(subject)
    path = out_path or (
        subject / "report.html" if subject.is_dir() else Path(subject.name.removesuffix(PROFILE_SUFFIX) + ".html")
    )
    made = build_report(opened, command_line())
    text = html(made)
    write_text(path, text)
    shown = [section.key for section in made.sections if not section.missing]
    out.print(f"wrote {path} ({len(text.encode()) / 1000:.0f} kB)", soft_wrap=True)
    for section in made.sections:
        if section.missing:
            out.print(f"  {section.title}: {section.missing}", soft_wrap=True)
    if as_json:
        print_json(
            {
                "report": str(path),
                "bytes": len(text.encode()),
                "sections": shown,
                "missing": {section.key: section.missing for section in made.sections if section.missing},
                "digest": opened.profile.digest if opened.profile else None,
            }
        )
