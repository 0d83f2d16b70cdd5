"""`sage_tune drift`: does production still look like what the profile was tuned on?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.options import Json, err, out, print_json
from profiles.errors import BadInput
from profiles.store import load_profile

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.drift import Drift

WORDS = {"same": "no drift", "moved": "DRIFT", "open": "inconclusive", None: "not recorded"}


def drift(
    profile_path: Annotated[Path, typer.Argument(metavar="PROFILE", help="policy profile (*.sage.json)")],
    log: Annotated[Path, typer.Argument(help="counter log written by `sage_tune run --counters`")],
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="run folder of an older profile, for what it did not record")
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0.0, help="relative change of acceptance and cost that is no drift")
    ] = 0.1,
    signal_tolerance: Annotated[
        float, typer.Option("--signal-tolerance", min=0.0, help="change of the mean signal that is no drift")
    ] = 0.05,
    as_json: Json = False,
) -> None:
    """Tell workload drift (signal, acceptance) from machine drift (time per pass). Exits with 0, 1, or 4 for open."""
    from runtime.counters import read_log
    from tuner.drift import compare_snapshots, replayed_counters, snapshot

    frozen = load_profile(profile_path)
    lines = read_log(log)
    mine = [line.counters for line in lines if line.digest == frozen.digest]
    if not mine:
        raise BadInput(f"{log} holds {len(lines)} lines, none of profile {frozen.digest[:12]}")
    table, base = frozen.evidence.cost_table, frozen.evidence.baseline
    if base is None and run_folder is not None:
        from tuner.run_folder import RunFolder
        from tuner.trace_store import load_record, trace_digest

        trace = RunFolder(run_folder).trace
        if trace_digest(trace) != frozen.provenance.trace_digest:
            raise BadInput(f"{run_folder} holds another record than the one that {profile_path} was tuned on")
        base = snapshot(replayed_counters(frozen.policy, load_record(trace), table), table)
    found = compare_snapshots(base, snapshot(mine, table), tolerance, signal_tolerance)
    out.print(_table(found, frozen.name))
    if len(mine) < len(lines):
        err.print(f"note: {len(lines) - len(mine)} lines belong to other profiles", style="yellow")
    if base is None:
        err.print(
            "note: this profile recorded no counters; costs are held against its cost table, and --run replays the "
            "rest",
            style="yellow",
            soft_wrap=True,
        )
    for group in ("workload", "machine"):
        out.print(f"{group}: {WORDS[found.verdict(group)]}")
    if as_json:
        print_json({**found.document(), "digest": frozen.digest})
    raise typer.Exit(found.exit_code)


def _table(found: Drift, name: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=f"{name}: {found.requests} requests against the report prompts, 95 %", box=box.SIMPLE_HEAD)
    for head in ("", "then", "now", "change", "beyond", "verdict"):
        table.add_column(head, justify="left" if head in ("", "verdict") else "right", no_wrap=True)
    for c in found.changes:
        scale, unit = (100, " %") if c.relative else (1, "")
        digits = 1 if c.relative else 3
        ends = f"{scale * c.change:+.{digits}f} [{scale * c.low:+.{digits}f}, {scale * c.high:+.{digits}f}]{unit}"
        table.add_row(c.name, f"{c.was.median:.3f}", f"{c.now.median:.3f}", ends, f"±{scale * c.tolerance:g}{unit}",
                      WORDS[c.verdict])  # fmt: skip
    for missing in found.not_recorded:
        table.add_row(missing, "–", "", "", "", WORDS[None])
    return table
