"""`sage_tune doctor`: check a pair in under a minute, before hours are spent on it."""

from __future__ import annotations

import time

import typer

from commands.opening import open_pair
from commands.options import Backend, Config, Data, Gpu, Json, Model, Set, Strict, configured, err, out, print_json


def doctor(
    config_path: Config = None,
    model: Model = None,
    gpu: Gpu = None,
    data: Data = None,
    backend: Backend = None,
    strict: Strict = False,
    as_json: Json = False,
    sets: Set = None,
) -> None:
    """Check a pair in under a minute: files, then live rounds, caches, ends and losslessness."""
    from commands.findings_table import findings_table
    from tuner.doctor import examine
    from tuner.plan import plan_pair

    start = time.monotonic()
    plan, config, _ = plan_pair(configured(config_path, model, gpu, data, backend, None, sets))
    with err.status("reading both sides") as status:
        report, error = examine(plan.spec, config, lambda: open_pair(plan), status.update)
    out.print(findings_table(report, f"{plan.spec.name} ({config.backend} {config.dtype} on {config.gpu})"))
    if as_json:
        print_json({**report.document(), "wall_s": round(time.monotonic() - start, 1)})
    raise typer.Exit(error.exit_code if error else report.exit_code(strict))
