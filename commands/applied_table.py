"""What `verify-applied` found, as a table. A verdict is a word, never a colour alone."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tuner.applied import Applied, Finding, Verdict

STYLES: dict[Finding, str] = {"agrees": "green", "contradicts": "bold red", "differs": "yellow", "says nothing": "dim"}
VERDICT_STYLES: dict[Verdict, str] = {"applied": "bold green", "not this policy": "bold red", "inconclusive": "yellow"}


def applied_screen(found: Applied, title: str) -> RenderableType:
    """One row per check, the verdict below."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("check", no_wrap=True)
    table.add_column("finding", no_wrap=True)
    table.add_column("counted", overflow="fold")
    for check in found.checks:
        table.add_row(check.name, Text(check.finding, style=STYLES[check.finding]), Text(check.text))
    verdict = Text(found.verdict, style=VERDICT_STYLES[found.verdict])
    verdict.append(f": {found.expected.label}, expected by {found.expected.source}", style="not bold default")
    return Group(table, verdict)
