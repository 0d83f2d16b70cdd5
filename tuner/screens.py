"""What a person sees in the terminal: the final table, a cost table, a decoded picture with its rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image
from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from profiles.measurement import FREE_SLACK, PASS_KINDS, Association, CostTable, Curve, PolicyResult
from profiles.policy import CompiledPolicy
from profiles.policy_profile import PolicyProfile
from profiles.registry import GpuSpec, PairSpec
from runtime.model_facts import needed_gib
from runtime.records import Generation
from tuner.roofline import Estimate

PICTURE_COLUMNS = 42
MANY_TIERS = 2
"""A row with more tiers than this names the first and the last."""


def result_table(profile: PolicyProfile) -> Table:
    """The scoreboard of a profile, the shipped row marked by a word and a star, not by colour alone."""
    evidence, machine = profile.evidence, profile.fingerprint
    device = machine.cpu if machine.device == "cpu" else machine.device
    return scoreboard_table(
        evidence.results,
        f"{profile.pair.name} on {device} ({machine.threads} threads, {machine.backend} {machine.dtype}), "
        f"{profile.regime.sampling.label()}",
        f"{evidence.speedup.prompts} held-out prompts that neither search nor selection saw; ★ ships",
        evidence.shipped_name,
    )


def scoreboard_table(
    results: Sequence[PolicyResult], title: str, caption: str = "", shipped: str | None = None
) -> Table:
    """One row per policy or yardstick. A column without a number in any row is left out."""
    notes = (
        "speedup over plain decoding, prefill excluded, 95 % over prompts; acceptance = tokens per round, bonus "
        "included; vs static = replayed time of the best static tier over its own; of oracle = the oracle's time over "
        "its own, regret = the rest"
    )
    table = Table(
        title=title,
        caption=f"{caption}; {notes}" if caption else notes,
        caption_justify="left",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("policy", no_wrap=True)
    table.add_column("depth,width,nodes", overflow="fold", min_width=18, max_width=34)
    columns: list[tuple[str, Callable[[PolicyResult], str]]] = [
        ("accept-\nance", lambda row: f"{row.acceptance_length:.2f}"),
        ("rounds", lambda row: str(row.rounds)),
        (
            "speedup\nreplayed",
            lambda row: row.speedup_interval.text() if row.speedup_interval else f"{row.speedup_replayed:.2f}",
        ),
        ("vs\nstatic", lambda row: f"{row.gain_over_static.median:.3f}" if row.gain_over_static else ""),
        (
            "of oracle\n(regret)",
            lambda row: (
                f"{row.share_of_oracle.median:.2f} ({1 - row.share_of_oracle.median:.0%})"
                if row.share_of_oracle
                else ""
            ),
        ),
        ("speedup\nmeasured", lambda row: row.speedup_measured.text() if row.speedup_measured else ""),
    ]
    filled = [(name, cell) for name, cell in columns if any(cell(row) for row in results)]
    for name, _ in filled:
        table.add_column(name, justify="right", no_wrap=True)
    for row in results:
        labels = " | ".join(dict.fromkeys(row.tiers))
        if len(row.tiers) > MANY_TIERS:
            labels = f"{row.tiers[0]} to {row.tiers[-1]}"
        ships = row.name == shipped
        table.add_row(
            f"★ {row.name}" if ships else row.name,
            labels,
            *(cell(row) or "–" for _, cell in filled),
            style="bold" if ships else "dim" if row.kind == "bound" else None,
        )
    return table


def verdict_lines(profile: PolicyProfile, path: str) -> Text:
    evidence = profile.evidence
    entropy = next((c for c in evidence.curves if c.signal == "entropy"), None)
    text = Text()
    text.append("shipped ", style="bold").append(f"{profile.shipped}: {profile.reason}\n")
    text.append("lossless ", style="bold").append(
        f"{evidence.lossless_tokens} tokens compared with plain decoding, all equal"
        + (f" but {evidence.near_ties} near ties\n" if evidence.near_ties else "\n")
    )
    text.append("gain ", style="bold").append(
        f"best adaptive policy over best static tier {evidence.gain_over_static.text(3)} (measured)\n"
    )
    text.append("prediction ", style="bold").append(
        f"replay said {evidence.speedup_replayed:.2f}, measured {evidence.speedup.median:.2f} "
        f"({evidence.prediction_error:+.1%})\n"
    )
    if abs(evidence.prediction_error) > evidence.prediction_bound:
        text.append("warning ", style="bold yellow").append(
            f"that is more than {evidence.prediction_bound:.0%} apart: the machine was not the one that the cost table "
            "describes. What ships was decided by the measurement, but which policies came so far was not; profile "
            "again into a new folder when nothing else runs\n"
        )
    text.append("whole requests ", style="bold").append(
        f"{evidence.request_speedup.text()} times plain decoding, with the prefills of both models\n"
    )
    if entropy:
        share = entropy.association.share.median if entropy.association else None
        text.append("entropy ", style="bold").append(
            ("" if share is None else f"explains {100 * share:.0f} % of what acceptance varies by, ")
            + f"rank correlation with accepted tokens {entropy.rank_correlation:+.2f}; "
            f"cost ratio target/draft {evidence.cost_ratio:.1f}\n"
        )
    text.append("profile ", style="bold").append(f"{path}  digest {profile.digest[:12]}")
    return text


def cost_screen(table: CostTable) -> RenderableType:
    """Mean times in milliseconds by pass size, one column per context, and what they mean for a tree."""
    contexts = table.contexts()
    screen = Table(title="model passes inside rounds, mean ms (p90)", title_justify="left")
    screen.add_column("pass")
    for context in contexts:
        screen.add_column(f"context {context}", justify="right")
    for kind in PASS_KINDS:
        for n in table.sizes(kind):
            cells = [p for p in table.passes if p.kind == kind and p.n == n]
            screen.add_row(
                f"{'draft' if kind in ('catch_up', 'frontier') else 'target'} {kind} n={n}",
                *(f"{p.time_ns / 1e6:.2f} ({p.p90_ns / 1e6:.2f})" for p in sorted(cells, key=lambda p: p.context)),
            )
    text = Text(f"free width {table.free_width()}: ", style="bold")
    text.append(
        f"the target verifies up to {table.free_width()} tokens, the root counted, in at most "
        f"{100 * FREE_SLACK:.0f} % more time than one",
        style="not bold",
    )
    if table.dropped_sizes:
        sizes = ", ".join(str(size) for size in table.dropped_sizes)
        text.append("\ndropped ", style="bold").append(
            f"verify sizes {sizes}: they ran out of memory here, and no policy uses them", style="not bold"
        )
    return Group(screen, text)


def estimate_screen(found: Estimate) -> RenderableType:
    """A cost table by data sheet, with the two numbers that a policy hangs on; every part says that it is estimated."""
    gpu, table = found.gpu, found.costs
    screen = Table("ESTIMATED, ms per pass", *(f"context {context}" for context in table.contexts()))
    for kind in PASS_KINDS:
        for n in table.sizes(kind):
            cells = sorted((p for p in table.passes if p.kind == kind and p.n == n), key=lambda p: p.context)
            side = "draft" if kind in ("catch_up", "frontier") else "target"
            screen.add_row(f"{side} {kind} n={n}", *(f"{p.time_ns / 1e6:.2f}" for p in cells))
    knees = ", ".join(f"{knee} at context {context}" for context, knee in found.knees.items())
    lines = [
        f"ESTIMATED cost ratio target/draft {table.cost_ratio():.1f}"
        if found.draft_has_weights
        else "the draft is a prompt lookup: it moves no weights, its time is the host's, which is not in an estimate",
        f"ESTIMATED free width (tokens of a target pass for {FREE_SLACK:.0%} more time than one): {knees}",
        f"a pass is the longer of its bytes / {gpu.bandwidth_gb_per_s:g} GB/s and its operations / "
        f"{gpu.dense_bf16_tflops:g} TFLOP/s ({gpu.source}); host time and what kernels lose are not in it",
    ]
    if found.devices() > 1:
        lines.append(
            f"{found.weights_gib:.3g} GiB of weights need {found.devices()} such devices; under --device-map auto "
            "their layers run one after the other, which is what these times add up"
        )
    lines.append("there are no traces in an estimate: run the command on the device, without --estimate, to tune")
    title = Text(f"{found.pair} on {gpu.product}, {found.dtype}: ESTIMATED from its data sheet, nothing was measured")
    return Group(title, screen, Text("\n".join(lines)))


def curve_screen(curves: Sequence[Curve]) -> RenderableType:
    """The first curve as a table with bars, what every signal says about acceptance, and that in one sentence."""
    shown = curves[0]
    screen = Table(
        title=f"{shown.signal} ({shown.modality}): what tier {shown.reference_tier} accepts", title_justify="left"
    )
    for name in ("signal", "positions", "top-1", "accepted, 95 %"):
        screen.add_column(name, justify="right", no_wrap=True)
    screen.add_column("")
    longest = max((p.accepted_mean for p in shown.points), default=1.0) or 1.0
    for p in shown.points:
        screen.add_row(
            f"{p.low_edge:.2g}–{p.high_edge:.2g}",
            str(p.positions),
            f"{p.top1_acceptance:.2f}",
            f"{p.accepted_mean:.2f} [{p.accepted_low:.2f}, {p.accepted_high:.2f}]",
            "█" * round(16 * p.accepted_mean / longest),
        )
    alike = [c for c in curves if (c.modality, c.part) == (shown.modality, shown.part)]
    return Group(screen, _signals_table(alike), Text(explained(alike), style="italic"))


def _signals_table(curves: Sequence[Curve]) -> Table:
    """One row per signal."""
    lucky = any(c.association and not is_more_than_luck(c.association) for c in curves)
    table = Table(
        title="what a signal says about the accepted tokens, 95 % by prompts",
        caption="information: mutual information in nats, chance subtracted, and its share of the entropy of the "
        "accepted tokens" + lucky * "\n~ no more than luck: signals of other positions say as much",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("signal", no_wrap=True)
    for name in ("rank correlation", "information, nats", "share, %"):
        table.add_column(name, justify="right", no_wrap=True)
    for curve in curves:
        found = curve.association
        if found is None:
            table.add_row(curve.signal, *["–"] * 3)
            continue
        rank, share, luck = found.rank_correlation, found.share, "" if is_more_than_luck(found) else "~"
        table.add_row(
            curve.signal,
            f"{rank.median:+.2f} [{rank.low:+.2f}, {rank.high:+.2f}]",
            luck + found.information_nats.text(3),
            f"{100 * share.median:.0f} [{100 * share.low:.0f}, {100 * share.high:.0f}]",
        )
    return table


def is_more_than_luck(found: Association) -> bool:
    return found.information_nats.median > found.chance_nats and found.information_nats.low > 0


def explained(curves: Sequence[Curve]) -> str:
    """Whether the first signal helps for this pair, in one sentence, and which one helps most."""
    first = curves[0]
    if first.association is None:
        return f"too few prompts to say what {first.signal} explains"
    found = first.association
    if not is_more_than_luck(found):
        text = f"{first.signal} explains no more of what acceptance varies by than luck would"
    else:
        rank = found.rank_correlation
        if rank.high < 0:
            how = "the more uncertain the draft, the fewer tokens are accepted"
        elif rank.low > 0:
            how = "the more uncertain the draft, the more tokens are accepted"
        else:
            how = "not in one direction, so a single threshold says little"
        text = f"{first.signal} explains {100 * found.share.median:.0f} % of what acceptance varies by: {how}"
    known = [(c.association.share.median, c.signal) for c in curves if c.association is not None]
    most, signal = max(known)
    return f"{text}; {signal} explains most, {100 * most:.0f} %" if signal != first.signal else text


def picture(image: Image.Image) -> Text:
    """A picture in half blocks: two pixels per character cell."""
    rows = PICTURE_COLUMNS * image.height // image.width // 2 * 2
    small = image.convert("RGB").resize((PICTURE_COLUMNS, rows), Image.Resampling.NEAREST)
    pixels = np.asarray(small)
    text = Text()
    for y in range(0, rows, 2):
        for x in range(PICTURE_COLUMNS):
            top, bottom = (",".join(str(v) for v in pixels[row, x]) for row in (y, y + 1))
            text.append("▀", style=f"rgb({top}) on rgb({bottom})")
        text.append("\n")
    return text


def decoded(image: Image.Image | None, question: str, generation: Generation) -> RenderableType:
    """One decoded example: picture, question, answer, and the accepted tokens of every round as a strip."""
    strip = " ".join(str(record.accepted) for record in generation.rounds)
    body = Text(f"{question}\n", style="italic")
    body.append(generation.text + "\n", style="not italic")
    body.append(f"accepted per round: {strip}", style="not italic dim")
    parts: list[RenderableType] = [picture(image)] if image else []
    return Panel(Group(*parts, body), title="one decoded example", title_align="left")


def stats_table(generation: Generation, policy: CompiledPolicy, digest: str) -> Table:
    """What `run --stats` prints."""
    table = Table(title="decoding", show_header=False, title_justify="left")
    tokens = len(generation.tokens)
    decode_s = generation.decode_ns / 1e9
    rows = [
        ("tokens", f"{tokens} ({generation.finished})"),
        ("rounds", str(len(generation.rounds))),
        ("acceptance length (bonus included)", f"{generation.acceptance_length:.2f}"),
        ("decode speed", f"{(tokens - 1) / decode_s:.0f} tokens/s" if decode_s else "–"),
        (
            "prefill target / draft",
            f"{generation.target_prefill_ns / 1e6:.0f} / {generation.draft_prefill_ns / 1e6:.0f} ms",
        ),
        ("policy", ", ".join(filter(None, [policy.verdict(), f"{len(policy.edges) + 1} bins", _pruning(policy)]))),
        ("outside the tuned hull", f"{generation.outside_hull} rounds"),
        ("profile digest", digest[:12]),
    ]
    rows += [(f"tier {label}", f"{n} rounds") for label, n in generation.tier_rounds().items()]
    for name, value in rows:
        table.add_row(name, value)
    return table


def _pruning(policy: CompiledPolicy) -> str:
    return f"pruning {policy.pruning.label()}" if policy.pruning.label() else ""


def models_table(specs: list[PairSpec], memory_bytes: int | None) -> Table:
    """Registered pairs; `memory_bytes` is what this machine's device has for weights."""
    table = Table(caption="a pair without calibration prompts of its own needs --data", caption_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("target, draft", no_wrap=True)
    for name in ("reads", "GiB", "fits\nhere", "note"):
        table.add_column(name)
    for spec in specs:
        weights = needed_gib(spec, spec.dtype)
        fits = memory_bytes is None or weights <= memory_bytes / (1 << 30)
        table.add_row(
            spec.name,
            f"{spec.target.label()}\n{spec.draft.label()}",
            "\n".join(spec.modalities),
            f"{weights:.3g}\n{spec.dtype}",
            "yes" if fits else "no",
            spec.note,
        )
    return table


def gpus_table(specs: list[GpuSpec], here: set[str]) -> Table:
    """Registered devices, those of this machine marked."""
    table = Table("name", "product", "memory GiB", "GB/s", "dense bf16 TFLOP/s", "here", "source")
    for spec in specs:
        figures = (spec.memory_gib, spec.bandwidth_gb_per_s, spec.dense_bf16_tflops)
        table.add_row(
            ", ".join((spec.name, *spec.aliases)),
            spec.product,
            *("–" if v is None else f"{v:g}" for v in figures),
            "yes" if spec.name in here else "",
            spec.source,
        )
    return table
