"""`sage_tune export`: a profile for another engine, with what it loses there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from commands.options import Json, err, out, print_json
from profiles.errors import BadInput, ProfileError
from profiles.lowering import REPORT_NAME, LoweringReport
from profiles.policy_profile import PolicyProfile
from profiles.registry import load_pair_spec, model_names
from profiles.store import load_profile, parse, read_json, write_json, write_text

if TYPE_CHECKING:
    from rich.console import RenderableType

README_NAME = "README.md"


@dataclass(frozen=True)
class GraphOptions:
    """How step graphs and engines are made; None and () where nothing was said."""

    dtype: str | None = None
    opset: int | None = None
    builder: str | None = None
    arch: tuple[str, ...] = ()
    context: int | None = None


@dataclass(frozen=True)
class ExportJob:
    """What was asked for."""

    profile: PolicyProfile
    to: str
    version: str | None
    method: str | None
    draft: str | None
    folder: Path
    run: Path | None
    graphs: GraphOptions = GraphOptions()

    def refuse(self, reason: str, **options: object) -> None:
        """Raises BadInput for options that were given and say nothing to this target."""
        given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
        if given:
            raise BadInput(f"{', '.join(given)} with --to {self.to}: {reason}")


@dataclass(frozen=True)
class Exported:
    """What an exporter has to say: for people, and for a script."""

    screen: RenderableType
    document: dict[str, Any]


Exporter = Callable[[ExportJob], Exported]
"""Writes everything into the job's folder."""


def exporters() -> Mapping[str, Exporter]:
    """What `--to` takes."""
    from exports.targets import TARGETS

    return {**dict.fromkeys(TARGETS, export_configuration), "onnx": export_bundle, "tensorrt": export_bundle}


def export(
    profile_path: Annotated[Path, typer.Argument(metavar="PROFILE", help="policy profile (*.sage.json)")],
    to: Annotated[
        str, typer.Option("--to", help="trtllm, sglang, vllm, transformers, openvino, llamacpp, onnx, tensorrt")
    ],
    folder: Annotated[Path, typer.Option("--out", help="folder to write")],
    version: Annotated[
        str | None, typer.Option("--engine-version", help="release of the engine; the newest known without it")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="how the engine drafts; by the pair's own draft without it")
    ] = None,
    draft: Annotated[str | None, typer.Option("--draft", help="draft as the engine finds it, or an EAGLE head")] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="run folder: searches the best form by replay and says what is lost")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option("--dtype", help="onnx, tensorrt: precision of the graphs; as tuned without it")
    ] = None,
    opset: Annotated[int | None, typer.Option("--opset", help="onnx, tensorrt: operator set of the graphs")] = None,
    builder: Annotated[
        str | None, typer.Option("--builder", help="tensorrt: tensorrt_rtx (default) or tensorrt")
    ] = None,
    arch: Annotated[
        list[str] | None,
        typer.Option("--arch", help="tensorrt: build for this architecture, such as sm_89; may be repeated"),
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="tensorrt: most cached rows; the tuned context without it")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a profile for another engine, and report what is lost there."""
    known = exporters()
    if to not in known:
        raise BadInput(f"--to takes {', '.join(known)}, got '{to}'")
    profile = load_profile(profile_path)
    graphs = GraphOptions(dtype, opset, builder, tuple(arch or ()), context)
    found = known[to](ExportJob(profile, to, version, method, draft, folder, run, graphs))
    out.print(found.screen)
    out.print(f"wrote {folder}; start with {folder / README_NAME}", soft_wrap=True)
    if as_json:
        print_json({"out": str(folder), **found.document})


def export_configuration(job: ExportJob) -> Exported:
    """Configuration of an engine that runs one fixed shape."""
    from commands.lowering_table import lowering_screen
    from exports.lowering import by_profile, truncated
    from exports.readme import readme
    from exports.targets import TARGETS, report

    target, profile = TARGETS[job.to], job.profile
    job.refuse("the engine loads the models itself", **asdict(job.graphs))
    version, method = target.version(job.version), target.method(job.method)
    abilities = target.methods[method].abilities
    numbers, from_profile, remarks = None, None, []
    if job.run is None:
        lowered, from_profile = by_profile(profile, abilities)
    else:
        from tuner.lowering_search import LoweringSearch, lowering_numbers
        from tuner.profile_record import open_record

        with err.status("replaying every shape that the engine can run"):
            found = open_record(profile, job.run)
            search = LoweringSearch(found.arena, abilities, truncated(profile.source, abilities))
            lowered = search.best.lowered
            numbers = lowering_numbers(search, profile.policy, lowered, found.trace_digest)
        if not found.is_own:
            remarks.append(
                "this record is not the one that the profile was made from: other numbers than the profile's"
            )
        if search.left_out:
            remarks.append(
                f"{search.left_out} confidence thresholds were left out: without a limit on the length their drafts "
                "run past the record"
            )
    request = target.request(profile, lowered, version, method, models_of(profile), job.draft)
    files = target.files(request)
    made = report(target, request, numbers, from_profile, files, remarks)
    write_export(job.folder, {**files, README_NAME: readme(target, request, made)}, made)
    title = f"{profile.name} for {target.title} {version} ({method})"
    return Exported(lowering_screen(made, title), made.model_dump(mode="json"))


def export_bundle(job: ExportJob) -> Exported:
    """Step graphs or engines of both models, for this runtime: nothing of the policy is lost."""
    from commands.export_graphs import export_graphs
    from commands.lowering_table import bundle_screen
    from exports.tensorrt_engine import EngineOptions

    given = job.graphs
    job.refuse(
        "graphs are run by this runtime, which runs the whole policy with the pair's own draft",
        engine_version=job.version,
        method=job.method,
        draft=job.draft,
        run=job.run,
    )
    if job.to == "onnx":
        job.refuse("they belong to engines", builder=given.builder, arch=given.arch, context=given.context)
    fields = {"builder": given.builder, "compute_capabilities": given.arch, "context": given.context}
    engine = parse(EngineOptions, {name: value for name, value in fields.items() if value}, "flags")
    kind: Literal["onnx", "tensorrt"] = "onnx" if job.to == "onnx" else "tensorrt"
    made = export_graphs(job.profile, kind, job.folder, dtype=given.dtype, opset=given.opset, engine=engine)
    return Exported(bundle_screen(made, f"{job.profile.name} for {job.to}"), made.document())


def models_of(profile: PolicyProfile) -> tuple[str, str]:
    """Target and draft as an engine on this machine finds them."""
    pair = profile.pair
    if pair.name in model_names():
        spec = load_pair_spec(pair.name)
        return spec.resolve(spec.target), spec.resolve(spec.draft)
    return pair.target.source, pair.draft.source


def write_export(folder: Path, files: Mapping[str, str], report: LoweringReport) -> None:
    """Write an export, its report last. Files of an earlier export into the same folder that this one does not have are
    removed. Raises BadInput for a folder that holds something else."""
    saved = folder / REPORT_NAME
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--out {folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()):
        try:
            before = read_json(saved, LoweringReport).files
        except (BadInput, ProfileError):
            raise BadInput(f"--out {folder} holds something that is no export; give another folder") from None
        for name in set(before) - set(files):
            (folder / name).unlink(missing_ok=True)
    for name, text in files.items():
        write_text(folder / name, text)
    write_json(saved, report)
