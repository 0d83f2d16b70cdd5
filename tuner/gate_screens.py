"""What a person sees of a check: fingerprints side by side, the stages, costs by size, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from profiles.provenance import FieldComparison
from tuner.check import STAGES, Checked
from tuner.check_costs import CostCheck

CLASS_STYLES = {"hard": "bold red", "soft": "yellow", "ignored": "dim"}
STATUS_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}
VERDICT_STYLES = {"pass": "bold green", "regress": "bold red", "re-tune": "bold red", "inconclusive": "bold yellow"}


def fingerprint_table(rows: Sequence[FieldComparison], everything: bool = False) -> Table:
    """Saved and found by field: those that differ, or all that either side knows."""
    shown = [row for row in rows if row.differs or (everything and row.saved is not None)]
    table = Table(
        title="machine, saved and found",
        title_justify="left",
        caption="hard differences refuse a profile, soft ones ask for `sage_tune check`, ignored ones say nothing",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for name in ("field", "class", "saved", "found"):
        table.add_column(name, overflow="fold")
    for row in shown:
        style = CLASS_STYLES[row.kind] if row.differs else None
        kind = Text(row.kind if row.differs else "same", style=style or "")
        table.add_row(Text(row.field), kind, Text(_shown(row.saved)), Text(_shown(row.found)))
    return table


def check_screen(checked: Checked) -> RenderableType:
    """Everything that a check found, its verdict last."""
    parts: list[RenderableType] = []
    if any(row.differs for row in checked.machine):
        parts.append(fingerprint_table(checked.machine))
    if checked.costs is not None:
        parts.append(cost_change_table(checked.costs))
    stages = Table(title=f"check of {checked.profile.name}", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("stage", "verdict", "what was found"):
        stages.add_column(name, overflow="fold")
    found = {finding.check: finding for finding in checked.findings}
    for stage in STAGES:
        finding = found.get(stage)
        status = finding.status if finding else "not run"
        stages.add_row(
            stage,
            Text(status, style=STATUS_STYLES.get(status, "dim")),
            Text(finding.text if finding else "decided before"),
        )
    verdict = Text(checked.verdict, style=VERDICT_STYLES[checked.verdict])
    verdict.append(f": {checked.reason}", style="not bold default")
    verdict.append(f"\nprofile digest {checked.profile.digest[:12]}", style="not bold dim")
    return Group(*parts, stages, verdict)


def cost_change_table(costs: CostCheck) -> Table:
    """Costs by pass size: saved, found with its interval, and their ratio."""
    table = Table(
        title="model passes inside rounds, mean ms over contexts",
        title_justify="left",
        caption=f"95 % over {costs.turns} turns"
        + (f"; not timed, scaled like their neighbours: {', '.join(costs.filled)}" if costs.filled else ""),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("pass")
    for name in ("saved", "found", "ratio"):
        table.add_column(name, justify="right")
    for change in costs.changes:
        bounds = change.found_ns
        table.add_row(
            f"{change.kind} n={change.n}",
            f"{change.saved_ns / 1e6:.2f}",
            f"{bounds.value / 1e6:.2f} [{bounds.low / 1e6:.2f}, {bounds.high / 1e6:.2f}]",
            f"{bounds.value / change.saved_ns:.2f}",
        )
    return table


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "–"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
