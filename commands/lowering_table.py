"""The lowering report in the terminal: what an engine runs, what that costs, what it drops."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from exports.graph_bundle import BundleReport
from exports.readme import cost_text, loss_text
from profiles.lowering import LoweringReport


def bundle_screen(report: BundleReport, title: str) -> RenderableType:
    """What a bundle of graphs or engines holds and how exact it is."""
    table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE_HEAD)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in report.lines():
        table.add_row(name, Text(value))
    whole = Text("nothing of the policy is lost: this runtime runs it on these graphs as it is")
    return Group(table, whole)


def lowering_screen(report: LoweringReport, title: str) -> RenderableType:
    """Numbers first, then losses, then what to know."""
    parts: list[RenderableType] = []
    numbers = report.numbers
    if numbers is not None:
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
        table.add_column("policy", no_wrap=True)
        table.add_column("depth,width,nodes", overflow="fold")
        for name in ("acceptance", "rounds", "speedup replayed"):
            table.add_column(name, justify="right", no_wrap=True)
        rows = (("full", numbers.full), ("★ exported", numbers.lowered), ("without a search", numbers.truncated))
        for name, row in rows:
            table.add_row(
                name,
                Text(row.label),
                row.acceptance_length.text(),
                str(row.rounds),
                row.speedup.text(),
                style="bold" if row is numbers.lowered else None,
            )
        parts.append(table)
        parts.append(
            Text(
                f"the export {loss_text(numbers)}; {numbers.loss.prompts} report prompts, 95 % over prompts, best of "
                f"{numbers.tried} shapes by the tuning prompts"
            )
        )
    else:
        parts += [Text(title, style="italic"), Text(f"exported {report.lowered.label()}"), Text(cost_text(report))]
    lost = Table(title="\nwhat the engine cannot express", title_justify="left", box=box.SIMPLE_HEAD)
    lost.add_column("field", no_wrap=True)
    lost.add_column("value", overflow="fold", max_width=42)
    lost.add_column("why", overflow="fold")
    for part in report.lost:
        lost.add_row(part.field, Text(part.value), Text(part.reason))
    notes = Text("\n".join(f"note: {note}" for note in report.notes), style="yellow")
    digests = Text(f"profile {report.profile_digest[:12]}  lowered {report.lowered_digest[:12]}", style="dim")
    return Group(*parts, lost, notes, digests)
