"""sage_tune: tune, freeze and run tree policies for speculative decoding of vision-language models.

    sage_tune demo                                        the whole story on the embedded pair
    sage_tune profile --model tiny-llava-ov --gpu cpu     measure costs and record traces
    sage_tune tune runs/tiny-llava-ov-cpu                 search by replay, confirm live, freeze
    sage_tune run --profile P.sage.json --image X.png --prompt "..."

Commands parse first and import models later, so that help answers at once.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from profiles.admission import admit
from profiles.config import TuneConfig, load_config, parse_seconds, parse_set, retuned, to_toml
from profiles.errors import BadInput, SageError
from profiles.registry import ModelSource, gpu_names, load_gpu_spec, load_pair_spec, model_names
from profiles.store import load_profile, write_text

if TYPE_CHECKING:
    from runtime.pair import Pair, PairPlan
    from tuner.machine import Device

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help=(__doc__ or "").splitlines()[0],
)
PIPE_COLUMNS = 120
"""Width of tables where there is no terminal to ask."""
out, err = (
    Console(stderr=to_stderr, width=None if stream.isatty() else PIPE_COLUMNS)
    for to_stderr, stream in ((False, sys.stdout), (True, sys.stderr))
)

INTERRUPTED = 130
UsageError: Any = typer.BadParameter.__base__
"""What typer raises for a wrong command line; whether click is bundled with it or not depends on its release."""

Config = Annotated[Path | None, typer.Option("--config", help="TOML configuration; flags override it")]
Model = Annotated[str | None, typer.Option("--model", help="registered pair or a pair TOML")]
Gpu = Annotated[str | None, typer.Option("--gpu", help="auto, cpu, h100, ... see `sage_tune gpus`")]
Data = Annotated[Path | None, typer.Option("--data", help="calibration JSONL")]
Backend = Annotated[str | None, typer.Option("--backend", help="onnx or torch")]
Set = Annotated[list[str] | None, typer.Option("--set", help="any field: --set grid.depth=6", metavar="KEY=VALUE")]
BudgetText = Annotated[str | None, typer.Option("--budget", help="stop cleanly after this time: 90s, 10m, 1h")]
Out = Annotated[Path | None, typer.Option("--out", help="run folder")]
Json = Annotated[bool, typer.Option("--json", help="end with one JSON line on stdout")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="print the plan with estimated time and disk, then stop")]


@app.command()
def demo(out_folder: Out = None, budget: BudgetText = None, as_json: Json = False, sets: Set = None) -> None:
    """Profile, tune, freeze and decode on the embedded pair: the whole story in minutes."""
    from tuner import demo as story
    from tuner.screens import decoded, result_table, verdict_lines

    start = time.monotonic()
    config = load_config(None, {**story.OVERRIDES, "budget_s": _seconds(budget), **_sets(sets)})
    folder = out_folder or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    pair, config, device = _open(config)
    found = story.demo(pair, config, device, folder, _budget(config), _progress(), _command_line())
    out.print(decoded(found.picture, found.question, found.example))
    out.print(result_table(found.tuned.profile))
    out.print(verdict_lines(found.tuned.profile, str(found.tuned.path)))
    out.print(f"took {time.monotonic() - start:.0f} s; decode with it: sage_tune run --profile {found.tuned.path} ...")
    if as_json:
        _print_json(found.document(time.monotonic() - start))


@app.command()
def profile(
    config_path: Config = None,
    model: Model = None,
    gpu: Gpu = None,
    data: Data = None,
    backend: Backend = None,
    out_folder: Out = None,
    budget: BudgetText = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    sets: Set = None,
) -> None:
    """Measure costs and record traces into a run folder. The same command resumes what was interrupted."""
    from tuner.profiling import estimate
    from tuner.profiling import profile as run_profile
    from tuner.run_folder import RunFolder
    from tuner.screens import cost_screen, curve_screen

    config = _configured(config_path, model, gpu, data, backend, budget, sets)
    pair, config, device = _open(config)
    folder = out_folder or Path("runs") / f"{pair.spec.name}-{config.gpu}"
    if dry_run:
        out.print(estimate(pair, config, folder))
        return
    found = run_profile(pair, config, device, RunFolder(folder), _budget(config), _progress())
    out.print(cost_screen(found.costs))
    out.print(curve_screen(found.curves[0]))
    out.print(f"{found.summary()}\nnext: sage_tune tune {folder}")
    if as_json:
        _print_json({"run": str(folder), **found.document()})


@app.command()
def tune(
    run_folder: Annotated[Path, typer.Argument(help="run folder made by `sage_tune profile`")],
    config_path: Config = None,
    trials: Annotated[int | None, typer.Option("--trials", help="trials of the study")] = None,
    budget: BudgetText = None,
    as_json: Json = False,
    sets: Set = None,
) -> None:
    """Search policies by replay, confirm the best live, freeze the winner."""
    from tuner.demo import result_document
    from tuner.run_folder import RunFolder
    from tuner.screens import result_table, verdict_lines
    from tuner.tuning import tune as run_tune

    run = RunFolder(run_folder)
    config = retuned(run.config(), config_path, {"search.trials": trials, "budget_s": _seconds(budget), **_sets(sets)})
    pair, config, device = _open(config)
    from tuner.machine import fingerprint

    run.begin(config, pair.record, fingerprint(pair.target, device, pair.threads))
    tuned = run_tune(pair, config, run, _budget(config), _progress(), _command_line())
    out.print(result_table(tuned.profile))
    out.print(verdict_lines(tuned.profile, str(tuned.path)))
    if as_json:
        _print_json(result_document(tuned))


@app.command()
def run(
    profile_path: Annotated[Path, typer.Option("--profile", help="policy profile (*.sage.json)")],
    prompt: Annotated[str, typer.Option("--prompt", help="what to ask")],
    image: Annotated[list[Path] | None, typer.Option("--image", help="picture; may be repeated")] = None,
    video: Annotated[
        list[Path] | None, typer.Option("--video", help="frames: a folder, an animated picture, or repeated")
    ] = None,
    model: Model = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 256,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="stop string; may be repeated")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="rounds, acceptance, tiers, digest")] = False,
    as_json: Json = False,
) -> None:
    """Decode one request with a frozen profile, streaming."""
    frozen = load_profile(profile_path)
    from runtime.prompts import ask

    request = ask(prompt, image or [], video or [])
    from runtime.decode import generate
    from tuner.machine import fingerprint
    from tuner.screens import stats_table

    saved = frozen.fingerprint
    config = TuneConfig(
        model=model or frozen.pair.name,
        gpu="cpu" if saved.device == "cpu" else "auto",
        backend="onnx" if saved.backend == "onnx" else "torch",
        dtype=saved.dtype,  # type: ignore[arg-type]  # validated by the schema
        threads=min(saved.threads, len(os.sched_getaffinity(0))),
    )
    pair, config, device = _open(config)
    for note in admit(frozen, pair.record, fingerprint(pair.target, device, pair.threads)):
        err.print(f"note: {note}", style="yellow", highlight=False, soft_wrap=True)
    policy = frozen.policy
    if request.modality not in frozen.regime.modalities:
        err.print(
            f"note: tuned for {', '.join(frozen.regime.modalities)}, this request is {request.modality}; using the "
            f"safe tier ({policy.tiers[policy.safe].label()})",
            style="yellow",
        )
        policy = policy.model_copy(update={"context_max": 0})
    generation = generate(
        pair,
        pair.encoder.encode(request),
        policy,
        max_new_tokens=max_new_tokens,
        stop_strings=stop or (),
        on_text=lambda text: print(text, end="", flush=True),
    )
    print()
    if stats:
        out.print(stats_table(generation, policy, frozen.digest))
    if as_json:
        _print_json({**generation.document(), "digest": frozen.digest})


@app.command()
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


@app.command()
def models() -> None:
    """Pairs that are known by name."""
    from tuner.screens import models_table

    out.print(models_table([load_pair_spec(name) for name in model_names()]))


@app.command()
def gpus() -> None:
    """Devices that are known by name, and what this machine is."""
    from tuner.machine import core_count, find_device
    from tuner.screens import gpus_table

    out.print(gpus_table([load_gpu_spec(name) for name in gpu_names()]))
    device = find_device("auto")
    out.print(f"this machine: {device.product} ({device.arch}, {core_count()} cores), used by --gpu auto")


def open_pair(plan: PairPlan) -> Pair:
    """Load a pair, exporting step graphs on first use when its backend runs graphs. The graphs are cached by
    the digests of weights and configuration."""
    from transformers.utils import logging as transformers_logging

    from runtime.pair import load_pair, model_record

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    plan.check_memory()
    if plan.backend != "onnx":
        with err.status(f"loading {plan.spec.name}"):
            return load_pair(plan)
    from exports.onnx_graph import cached_step_graph, graph_key
    from runtime.backends.torch_backend import cache_argument, load_transformers

    folders = []
    for role, source in (("target", plan.spec.target), ("draft", plan.spec.draft)):

        def load(source: ModelSource = source, role: str = role) -> tuple[Any, str]:
            err.print(f"exporting the {role}'s step graph, once per set of weights ...")
            model = load_transformers(plan.files(source, None))
            return model, cache_argument(model)

        record = model_record(plan.spec, source)
        key = graph_key(record.weights_digest, record.config_digest)
        folders.append(cached_step_graph(f"{plan.spec.name}-{role}", key, load))
    with err.status(f"loading {plan.spec.name}"):
        return load_pair(plan, (folders[0], folders[1]))


def _open(config: TuneConfig) -> tuple[Pair, TuneConfig, Device]:
    from tuner.plan import plan_pair

    plan, resolved, device = plan_pair(config)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: plan.threads])
    return open_pair(plan), resolved, device


def _configured(
    path: Path | None,
    model: str | None,
    gpu: str | None,
    data: Path | None,
    backend: str | None,
    budget: str | None,
    sets: list[str] | None,
) -> TuneConfig:
    return load_config(
        path,
        {
            "model": model,
            "gpu": gpu,
            "data.path": str(data) if data else None,
            "backend": backend,
            "budget_s": _seconds(budget),
            **_sets(sets),
        },
    )


def _sets(sets: list[str] | None) -> dict[str, Any]:
    return dict(parse_set(text) for text in sets or [])


def _seconds(text: str | None) -> float | None:
    return None if text is None else parse_seconds(text)


def _budget(config: TuneConfig) -> Any:
    from tuner.timing import Budget

    return Budget(config.budget_s)


def _progress() -> Any:
    from tuner.progress import Progress

    return Progress(err)


def _command_line() -> str:
    return shlex.join(["sage_tune", *sys.argv[1:]])


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.flush()
    print(json.dumps(document, allow_nan=False), flush=True)


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
