"""Findings as a table for people: every verdict is a word, never a colour alone."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from tuner.findings import Report, Status

STYLES: dict[Status, str] = {"pass": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def findings_table(report: Report, title: str) -> Table:
    """One row per check, in the order in which they ran."""
    table = Table(title=title, title_justify="left", caption=report.summary(), caption_justify="left")
    table.add_column("check", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was found", overflow="fold")
    for finding in report.findings:
        style = STYLES[finding.status]
        # values come from other people's files: they are text, not markup
        table.add_row(finding.check, Text(finding.status, style=style), Text(finding.text))
    return table
