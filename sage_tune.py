"""sage_tune: tune, freeze and run tree policies for speculative decoding of vision-language models.

    sage_tune demo                                        the whole story on the embedded pair
    sage_tune profile --model tiny-llava-ov --gpu cpu     measure costs and record traces
    sage_tune tune runs/tiny-llava-ov-cpu                 search by replay, confirm live, freeze
    sage_tune run --profile P.sage.json --image X.png --prompt "..."

Commands parse first and import models later, so that help answers at once.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.artefact import diff, show, sign, verify
from commands.bench import bench
from commands.check import check
from commands.counters import counters
from commands.doctor import doctor
from commands.drift import drift
from commands.export import export
from commands.known import gpus, models
from commands.lint import lint
from commands.lookup import lookup
from commands.opening import open_configured
from commands.options import (
    Backend,
    BudgetText,
    Config,
    Data,
    DeviceMap,
    Draft,
    DryRun,
    Estimated,
    Gpu,
    Json,
    Merge,
    Model,
    Out,
    Ray,
    SearchOnly,
    Set,
    Shards,
    ShardText,
    SignKey,
    Storage,
    Target,
    TraceUrl,
    Workers,
    assignments,
    budget_of,
    command_line,
    configured,
    err,
    out,
    print_json,
    progress,
    require_together,
    seconds,
)
from commands.report import report
from commands.run import run
from commands.verify_applied import verify_applied
from profiles.config import load_config, retuned
from profiles.config_text import to_toml
from profiles.errors import BadInput, SageError
from profiles.registry import load_pair_spec
from profiles.store import write_text

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(__doc__ or "").splitlines()[0],
)
INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__base__
"""What typer raises for a wrong command line; whether click is bundled with it or not depends on its release."""


def demo(out_folder: Out = None, budget: BudgetText = None, as_json: Json = False, sets: Set = None) -> None:
    """Profile, tune, freeze and decode on the embedded pair: the whole story in minutes."""
    from tuner import demo as story
    from tuner.screens import decoded, result_table, verdict_lines

    start = time.monotonic()
    config = load_config(None, {**story.OVERRIDES, "budget_s": seconds(budget), **assignments(sets)})
    folder = out_folder or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    pair, config, device = open_configured(config)
    found = story.demo(pair, config, device, folder, budget_of(config), progress(), command_line())
    out.print(decoded(found.picture, found.question, found.example))
    out.print(result_table(found.tuned.profile))
    out.print(verdict_lines(found.tuned.profile, str(found.tuned.path)))
    out.print(f"took {time.monotonic() - start:.0f} s; decode with it: sage_tune run --profile {found.tuned.path} ...")
    if as_json:
        print_json(found.document(time.monotonic() - start))


def profile(
    config_path: Config = None,
    model: Model = None,
    target: Target = None,
    draft: Draft = None,
    gpu: Gpu = None,
    device_map: DeviceMap = None,
    data: Data = None,
    backend: Backend = None,
    out_folder: Out = None,
    budget: BudgetText = None,
    shard: ShardText = None,
    merge: Merge = None,
    trace_url: TraceUrl = None,
    ray: Ray = None,
    shards: Shards = None,
    dry_run: DryRun = False,
    estimated: Estimated = False,
    as_json: Json = False,
    sets: Set = None,
) -> None:
    """Measure costs and record traces into a run folder. The same command resumes what was interrupted."""
    from commands.profile import Spread, run_profile

    require_together(ray=ray, shards=shards)
    own = {"target": target, "draft": draft, "device_map": device_map, "data.trace_url": trace_url}
    config = configured(config_path, model, gpu, data, backend, budget, sets, **own)
    if estimated:
        from tuner.roofline import estimate_pair
        from tuner.screens import estimate_screen

        sheet = estimate_pair(config)
        out.print(estimate_screen(sheet))
        if as_json:
            print_json(sheet.document())
        return
    spread = Spread(shard, tuple(merge or ()), ray, shards)
    found, folder = run_profile(config, out_folder, spread, dry_run)
    if isinstance(found, str):
        out.print(found, soft_wrap=True)
        return
    from tuner.profiling import Profiled
    from tuner.screens import cost_screen, curve_screen

    if isinstance(found, Profiled):
        out.print(cost_screen(found.costs))
        out.print(curve_screen(found.curves))
    out.print(found.summary(), soft_wrap=True)
    if isinstance(found, Profiled):
        out.print(f"next: sage_tune tune {folder}", soft_wrap=True)
    if as_json:
        print_json({"run": str(folder), **found.document()})


def tune(
    run_folder: Annotated[Path, typer.Argument(help="run folder made by `sage_tune profile`")],
    config_path: Config = None,
    trials: Annotated[int | None, typer.Option("--trials", help="trials of the study")] = None,
    storage: Storage = None,
    search_only: SearchOnly = False,
    ray: Ray = None,
    workers: Workers = None,
    budget: BudgetText = None,
    sign_key: SignKey = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    sets: Set = None,
) -> None:
    """Search policies by replay, confirm the best live, freeze the winner."""
    from tuner import policy_search
    from tuner.run_folder import RunFolder

    require_together(ray=ray, workers=workers)
    run = RunFolder(run_folder)
    config = retuned(
        run.config(),
        config_path,
        {
            "search.trials": trials,
            "search.storage": storage,
            "budget_s": seconds(budget),
            **assignments(sets),
        },
    )
    if dry_run:
        spread = f"\n  {workers} search workers on the Ray cluster '{ray}'" if ray else ""
        out.print(policy_search.plan(config, run) + spread, soft_wrap=True)
        return
    limit = budget_of(config)
    if ray and workers:
        from commands.cluster import search_on_cluster

        share = limit if search_only else policy_search.search_share(limit)
        search_on_cluster(config, run, ray, workers, share, progress())
    if search_only:
        place = run.study_place(config)
        found = policy_search.search_only(config, place, run.trace, run.costs(), limit, progress())
        out.print(found.summary(), soft_wrap=True)
        if as_json:
            print_json(found.document())
        return
    from tuner.demo import result_document
    from tuner.machine import fingerprint
    from tuner.screens import result_table, verdict_lines
    from tuner.signing import load_key, sign_file
    from tuner.tuning import tune as run_tune

    key = None if sign_key is None else load_key(sign_key)  # a wrong key is found before hours are spent
    pair, config, device = open_configured(config)
    run.begin(config, pair.record, fingerprint(pair.target, device, pair.threads))
    # loading is not counted, unless the budget has long begun on the cluster
    tuned = run_tune(pair, config, run, limit if ray else budget_of(config), progress(), command_line())
    if key is not None:
        sign_file(tuned.path, key)
    out.print(result_table(tuned.profile))
    out.print(verdict_lines(tuned.profile, str(tuned.path)))
    if as_json:
        print_json(result_document(tuned))


def init(
    path: Annotated[Path, typer.Argument(help="file to write")] = Path("sage.toml"),
    model: Model = None,
    gpu: Gpu = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite an existing file")] = False,
) -> None:
    """Write a commented configuration for a pair and a device."""
    if path.exists() and not force:
        raise BadInput(f"{path} exists; give another path or --force")
    config = load_config(None, {"model": model, "gpu": gpu})
    load_pair_spec(config.model)
    write_text(path, to_toml(config))
    out.print(f"wrote {path}; next: sage_tune profile --config {path}")


COMMANDS = (
    # in the order of their use, which is that of the help
    *(demo, init, doctor, lint, profile, tune, run),
    *(bench, check, report, export, verify_applied, counters, drift),
    *(show, diff, sign, verify, lookup, models, gpus),
)
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Console entry: every expected error is one line on stderr and the exit code that belongs to it."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code if isinstance(code, int) else 0)
    except SageError as error:
        err.print("error: ", style="bold red", end="")
        err.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        err.print("interrupted; finished samples and trials are kept, the same command goes on from there")
        sys.exit(INTERRUPTED)
    except UsageError as error:
        error.show()
        sys.exit(2)


if __name__ == "__main__":
    main()
