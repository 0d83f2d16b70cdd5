"""`sage_tune bench`: profiles, yardsticks and plain decoding in pairs, on your own prompts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.opening import open_profile
from commands.options import BudgetText, Data, Json, Model, err, out, print_json, progress, seconds
from profiles.admission import admit, sampling_of
from profiles.errors import Inconclusive
from profiles.gate import GateLimits
from profiles.store import PROFILE_SUFFIX, load_profile

if TYPE_CHECKING:
    from rich.table import Table

    from tuner.bench import Bench


def bench(
    profile_path: Annotated[Path, typer.Option("--profile", help="policy profile (*.sage.json)")],
    data: Data = None,
    arms: Annotated[
        str, typer.Option("--arms", help="beside the profile: plain, static, chain, sage-paper, paths of profiles")
    ] = "plain,static",
    prompts: Annotated[int, typer.Option("--prompts", min=2, help="use at most this many")] = 40,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="ABBA blocks per prompt")] = 2,
    model: Model = None,
    budget: BudgetText = None,
    as_json: Json = False,
) -> None:
    """Time the profile, plain decoding and other arms on the same prompts in turn; refuse what cannot be compared.
    Exit code 4 when other work disturbed too much of it."""
    from tuner import bench as benching

    frozen = load_profile(profile_path)
    names = [name for part in arms.split(",") if (name := part.strip())]
    others = {name: load_profile(Path(name)) for name in names if name.endswith(PROFILE_SUFFIX)}
    chosen = benching.bench_arms(frozen, names, others)

    from tuner.bench_data import bench_samples
    from tuner.comparison import Job
    from tuner.foreign_load import Watch
    from tuner.machine import fingerprint
    from tuner.timing import Budget

    pair, _, device = open_profile(frozen, model)
    for note in admit(frozen, pair.record, fingerprint(pair.target, device, pair.threads)):
        err.print(f"note: {note}", style="yellow", highlight=False, soft_wrap=True)
    samples = bench_samples(data, pair.spec, prompts)
    jobs = [Job(i, pair.encoder.encode(s.request()), s.max_new_tokens) for i, s in enumerate(samples)]
    sampling = sampling_of(frozen)
    runner = benching.BenchRunner(
        pair=pair,
        ids=[sample.id for sample in samples],
        samplings=[sampling.for_sample(sample.id) for sample in samples],
        policies=benching.regime_policies({frozen.name: frozen, **others}, sampling),
    )
    try:
        with progress().task("decoding, live", len(jobs)) as advance:
            found = benching.bench(
                runner,
                chosen,
                jobs,
                repeats,
                Budget(seconds(budget)),
                Watch(device.index, device.uuid),
                (frozen.gate.limits if frozen.gate else GateLimits()).disturbed,
                lambda: advance(1),
            )
    except benching.OutputDiffers as error:
        if as_json:
            print_json({"verdict": "bug", "divergence": error.document(), "digest": frozen.digest})
        raise
    out.print(_table(found, frozen.name))
    for tie in found.near_ties:
        out.print(tie.text(), soft_wrap=True, highlight=False, markup=False)
    if as_json:
        print_json({**found.document(), "digest": frozen.digest})
    if not found.load.is_valid:
        raise Inconclusive(f"{found.load.text()}: these times say little; bench again when nothing else runs")


def _table(found: Bench, first: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=f"{found.prompts} prompts, {found.tokens} tokens held against plain decoding",
        caption=f"measured, 95 % over prompts; vs = time of {first} over its own; acceptance = tokens per round, bonus "
        "included",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("arm", overflow="fold")
    table.add_column("depth,width,nodes", overflow="fold")
    for head in ("accept-\nance", "rounds", "speedup,\ndecoding", "speedup,\nrequests", f"vs\n{first}"):
        table.add_column(head, justify="right")
    for row in found.rows:
        labels = " | ".join(row.tiers) if len(row.tiers) < 3 else f"{row.tiers[0]} to {row.tiers[-1]}"
        table.add_row(
            row.name,
            labels,
            f"{row.acceptance_length:.2f}",
            str(row.rounds),
            row.speedup.text(),
            row.request_speedup.text(),
            row.over_first.text(3),
        )
    return table
