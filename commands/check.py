"""`sage_tune check`: does a profile still hold on this machine?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from commands.opening import open_profile
from commands.options import BudgetText, Json, Model, ProfilePath, Trust, err, out, print_json, progress, seconds
from profiles.store import load_profile, write_text

DEFAULT_BUDGET_S = 60.0


def check(
    profile_path: ProfilePath,
    model: Model = None,
    run_folder: Annotated[
        Path | None,
        typer.Option("--run", help="run folder that froze the profile, where it carries no gate of its own"),
    ] = None,
    data: Annotated[str | None, typer.Option("--data", help="where the profile's prompts lie on this machine")] = None,
    trust: Trust = None,
    budget: BudgetText = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="write a JUnit report for CI")] = None,
    as_json: Json = False,
) -> None:
    """Say whether a profile still holds here: pass, regress, re-tune or inconclusive (exit code 0, 1, 1, 4)."""
    start = time.monotonic()
    frozen = load_profile(profile_path)
    from tuner.signing import require_trusted

    require_trusted(frozen, trust)
    from tuner.check import check as run_check
    from tuner.check import live_bench
    from tuner.foreign_load import Watch
    from tuner.gate_record import gate_of_run, gate_samples
    from tuner.gate_screens import check_screen
    from tuner.junit import junit_text
    from tuner.machine import fingerprint
    from tuner.profiling import samples_of
    from tuner.run_folder import RunFolder
    from tuner.timing import Budget

    pair, _, device = open_profile(frozen, model)
    gate = frozen.gate
    if gate is None and run_folder is not None:
        run = RunFolder(run_folder)
        gate = gate_of_run(frozen, run, samples_of(run.config(), pair.spec))
    samples = None if gate is None else gate_samples(gate, pair.spec, data)
    # loading is not counted: it says nothing about the profile
    limit = Budget(seconds(budget) or DEFAULT_BUDGET_S)
    bench = live_bench(frozen, pair, Watch(device.index, device.uuid))
    machine = fingerprint(pair.target, device, pair.threads)
    checked = run_check(frozen, pair, machine, gate, samples, bench, limit, progress())
    out.print(check_screen(checked))
    if junit is not None:
        write_text(junit, junit_text(checked))
        err.print(f"wrote {junit}")
    if as_json:
        print_json({**checked.document(), "wall_s": round(time.monotonic() - start, 1)})
    raise typer.Exit(checked.exit_code)
