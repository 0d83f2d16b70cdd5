"""What a person sees in the terminal: the final table, a cost table, a decoded picture with its rounds."""

from __future__ import annotations

import numpy as np
from PIL import Image
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from profiles.measurement import PASS_KINDS, CostTable, Curve
from profiles.policy import CompiledPolicy
from profiles.policy_profile import PolicyProfile
from profiles.registry import GpuSpec, PairSpec
from runtime.records import Generation

PICTURE_COLUMNS = 42


def result_table(profile: PolicyProfile) -> Table:
    """One row per policy, the shipped one marked by a word and a star, not by colour alone."""
    evidence = profile.evidence
    prompts = evidence.speedup.prompts
    machine = profile.fingerprint
    device = machine.cpu if machine.device == "cpu" else machine.device
    table = Table(
        title=f"{profile.pair.name} on {device} ({machine.threads} threads, {machine.backend} {machine.dtype}), "
        f"{profile.regime.sampling.label()}",
        caption=f"{prompts} held-out prompts that neither search nor selection saw; speedup over plain decoding, "
        "prefill excluded; acceptance = tokens per round, bonus included; ★ ships",
        caption_justify="left",
        title_justify="left",
    )
    table.add_column("policy", no_wrap=True)
    table.add_column("depth,width,nodes", overflow="fold")
    for name in ("accept-\nance", "rounds", "speedup\nreplayed", "speedup\nmeasured, 95 %"):
        table.add_column(name, justify="right", no_wrap=True)
    for result in evidence.results:
        shipped = result.verdict == profile.shipped and result.speedup_replayed == evidence.speedup_replayed
        table.add_row(
            f"★ {result.name}" if shipped else result.name,
            " | ".join(dict.fromkeys(result.tiers)),
            f"{result.acceptance_length:.2f}",
            str(result.rounds),
            f"{result.speedup_replayed:.2f}",
            result.speedup_measured.text() if result.speedup_measured else "–",
            style="bold" if shipped else None,
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
        f"tuned over best static tier {evidence.gain_over_static.text(3)} (measured)\n"
    )
    text.append("prediction ", style="bold").append(
        f"replay said {evidence.speedup_replayed:.2f}, measured {evidence.speedup.median:.2f} "
        f"({evidence.prediction_error:+.1%})\n"
    )
    text.append("whole requests ", style="bold").append(
        f"{evidence.request_speedup.text()} times plain decoding, with the prefills of both models\n"
    )
    if entropy:
        text.append("entropy ", style="bold").append(
            f"rank correlation with accepted tokens {entropy.rank_correlation:+.2f}; "
            f"cost ratio target/draft {evidence.cost_ratio:.1f}\n"
        )
    text.append("profile ", style="bold").append(f"{path}  digest {profile.digest[:12]}")
    return text


def cost_screen(table: CostTable) -> Table:
    """Medians in milliseconds by pass size, one column per context."""
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
    return screen


def curve_screen(curve: Curve) -> Table:
    """One entropy-acceptance curve as a table with bars."""
    screen = Table(
        title=f"{curve.signal} ({curve.modality}): what the chain {curve.reference_tier} accepts, "
        f"rank correlation {curve.rank_correlation:+.2f}",
        title_justify="left",
    )
    for name in ("signal", "positions", "top-1", "accepted, 95 %"):
        screen.add_column(name, justify="right", no_wrap=True)
    screen.add_column("")
    longest = max((p.accepted_mean for p in curve.points), default=1.0) or 1.0
    for p in curve.points:
        screen.add_row(
            f"{p.low_edge:.3f}–{p.high_edge:.3f}",
            str(p.positions),
            f"{p.top1_acceptance:.2f}",
            f"{p.accepted_mean:.2f} [{p.accepted_low:.2f}, {p.accepted_high:.2f}]",
            "█" * round(20 * p.accepted_mean / longest),
        )
    return screen


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
        ("policy", f"{policy.verdict()}, {len(policy.edges) + 1} bins"),
        ("outside the tuned hull", f"{generation.outside_hull} rounds"),
        ("profile digest", digest[:12]),
    ]
    rows += [(f"tier {label}", f"{n} rounds") for label, n in generation.tier_rounds().items()]
    for name, value in rows:
        table.add_row(name, value)
    return table


def models_table(specs: list[PairSpec]) -> Table:
    table = Table("name", "target", "draft", "dtype", "backend", "modalities", "weights GiB", "note")
    for spec in specs:
        sources = [source.hub or f"embedded {source.path}" for source in (spec.target, spec.draft)]
        modalities = ", ".join(spec.modalities)
        table.add_row(spec.name, *sources, spec.dtype, spec.backend, modalities, f"{spec.weights_gib:g}", spec.note)
    return table


def gpus_table(specs: list[GpuSpec]) -> Table:
    table = Table("name", "product", "memory GiB", "GB/s", "dense bf16 TFLOP/s", "source")
    for spec in specs:
        figures = (spec.memory_gib, spec.bandwidth_gb_per_s, spec.dense_bf16_tflops)
        table.add_row(spec.name, spec.product, *("–" if v is None else f"{v:g}" for v in figures), spec.source)
    return table
