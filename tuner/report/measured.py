"""The measured sections of a report: what signals say about acceptance, and what passes cost."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.measurement import FREE_SLACK, PASS_KINDS, CostTable, Curve, PassKind
from tuner.report.view import Curves, Line, Section, Span, Table
from tuner.screens import explained

LOG_FROM = 50.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
NAMES: dict[PassKind, str] = {"plain": "plain step", "verify": "verify", "catch_up": "catch-up", "frontier": "frontier"}
PARTS = {"early": "first half of the output", "late": "second half of the output"}


def signals(curves: Sequence[Curve]) -> Section:
    """Entropy-acceptance curves: every signal, then the first one by modality and by half of the output."""
    title = "What a signal says about acceptance"
    if not curves:
        return Section("signals", title, missing="no curves are recorded here")
    first = curves[0]
    alike = [c for c in curves if (c.modality, c.part) == (first.modality, first.part)]
    charts = [_signal_chart(c.signal, c.signal, [("95 % by prompts", c)]) for c in alike]
    split = [c for c in curves if c.signal == first.signal]
    by_modality = [(c.modality, c) for c in split if c.part == "all" and c.modality != first.modality]
    if by_modality:
        charts.append(_signal_chart(f"{first.signal}-modality", f"{first.signal}, by modality", by_modality))
    halves = [(PARTS[c.part], c) for c in split if c.part in PARTS]
    if halves:
        charts.append(_signal_chart(f"{first.signal}-half", f"{first.signal}, by place in the output", halves))
    text = (
        f"Draft tokens that the tier {first.reference_tier} would have accepted (bonus excluded), by the value of a "
        "signal that is known before the tree is built. Bands are 95 % intervals over prompts.",
        _sentence(explained(alike)) if first.association else "What the signals explain is not recorded here.",
    )
    return Section("signals", title, text, charts=tuple(charts))


def costs(table: CostTable) -> Section:
    """What passes take, against their size and their context, and where width stops being free."""
    contexts, knee = table.contexts(), table.free_width()
    shown = sorted({contexts[0], contexts[-1]})
    verify = Curves(
        "cost-verify",
        "target: verification pass",
        f"Time of a verification pass against its tokens; up to {knee} tokens it costs at most "
        f"{100 * FREE_SLACK:.0f} % more than the smallest.",
        "tokens verified, root counted",
        "ms",
        tuple(_pass_line(table, "verify", c) for c in shown),
        _pass_table(table, ("plain", "verify")),
        mark=knee,
        mark_label=f"free width {knee}",
    )
    charts = [verify]
    if table.sizes("frontier"):
        charts.append(
            Curves(
                "cost-draft",
                "draft: frontier pass",
                "Time of a frontier pass against its width.",
                "nodes of the frontier",
                "ms",
                tuple(_pass_line(table, "frontier", c) for c in shown),
                _pass_table(table, ("catch_up", "frontier")),
            )
        )
    smallest = {kind: table.sizes(kind)[0] for kind in PASS_KINDS if table.sizes(kind)}
    lines = [_context_line(table, kind, n, f"{NAMES[kind]} {n}") for kind, n in smallest.items()]
    if knee not in (1, smallest["verify"]):
        lines.append(_context_line(table, "verify", knee, f"verify {knee}"))
    charts.append(
        Curves(
            "cost-context",
            "both: against the context",
            "Time of the smallest pass of each kind against the cached context.",
            "cached tokens",
            "ms",
            tuple(lines),
            _pass_table(table, PASS_KINDS),
        )
    )
    host = table.host
    text = [
        f"Passes inside real rounds, {table.mark}, {table.threads} threads. A target pass costs "
        f"{table.cost_ratio():.1f} draft passes. Free width {knee}: up to {knee} tokens a verification costs at most "
        f"{100 * FREE_SLACK:.0f} % more than the smallest. Bands hold 80 % of the passes.",
        f"Outside the passes a drafting round takes {host.round_ns / 1e6:.2f} ms and {host.level_ns / 1e6:.2f} ms per "
        f"draft pass, a plain step {host.plain_ns / 1e6:.2f} ms.",
    ]
    if table.dropped_sizes:
        text.append(f"Verify sizes {', '.join(map(str, table.dropped_sizes))} ran out of memory and are not used.")
    return Section("costs", "What passes cost", tuple(text), charts=tuple(charts))


def _signal_chart(key: str, title: str, curves: Sequence[tuple[str, Curve]]) -> Curves:
    lines = tuple(
        Line(
            name,
            tuple(p.signal_mean for p in curve.points),
            tuple(p.accepted_mean for p in curve.points),
            tuple(p.accepted_low for p in curve.points),
            tuple(p.accepted_high for p in curve.points),
        )
        for name, curve in curves
    )
    rows = tuple(
        (
            name,
            f"{p.low_edge:.3g} – {p.high_edge:.3g}",
            str(p.positions),
            Span(p.accepted_mean, p.accepted_low, p.accepted_high).text(),
            Span(p.top1_acceptance, p.top1_low, p.top1_high).text(),
        )
        for name, curve in curves
        for p in curve.points
    )
    correlations = ", ".join(f"{name} {curve.rank_correlation:+.2f}" for name, curve in curves)
    return Curves(
        f"signal-{key}",
        title,
        f"Accepted draft tokens against {title}; rank correlation {correlations}.",
        "signal, 0 certain to 1 uncertain",
        "accepted draft tokens",
        lines,
        Table(f"bins of {title}", ("curve", "signal", "positions", "accepted", "first token accepted"), rows),
        log_x=_spreads([x for line in lines for x in line.x]),
    )


def _spreads(values: Sequence[float]) -> bool:
    """True when most of a linear axis would be empty."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_FROM


def _pass_line(table: CostTable, kind: PassKind, context: int) -> Line:
    cells = sorted((p for p in table.passes if p.kind == kind and p.context == context), key=lambda p: p.n)
    return Line(
        f"context {context}",
        tuple(float(p.n) for p in cells),
        tuple(p.time_ns / 1e6 for p in cells),
        tuple(p.p10_ns / 1e6 for p in cells),
        tuple(p.p90_ns / 1e6 for p in cells),
    )


def _context_line(table: CostTable, kind: PassKind, n: int, name: str) -> Line:
    cells = sorted((p for p in table.passes if p.kind == kind and p.n == n), key=lambda p: p.context)
    return Line(name, tuple(float(p.context) for p in cells), tuple(p.time_ns / 1e6 for p in cells))


def _pass_table(table: CostTable, kinds: Sequence[PassKind]) -> Table:
    passes = sorted((p for p in table.passes if p.kind in kinds), key=lambda p: (kinds.index(p.kind), p.n, p.context))
    return Table(
        f"passes, {table.mark}",
        ("pass", "tokens", "context", "mean ms", "p10", "p90", "samples"),
        tuple(
            (
                p.kind,
                str(p.n),
                str(p.context),
                *(f"{ns / 1e6:.3f}" for ns in (p.time_ns, p.p10_ns, p.p90_ns)),
                str(p.samples),
            )
            for p in passes
        ),
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _ms(time_ns: float) -> str:
    return f"{time_ns / 1e6:.3f}"
