"""Charts as inline SVG that takes its colours from the page, so that light, dark and print need one drawing.

Matplotlib draws with placeholder colours; each is replaced by a CSS variable of the page. Lines differ in dashes and
markers as well as in colour.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from profiles.errors import HardwareMissing
from tuner.report.view import Agreement, Chart, Curves, Dots, Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID, STRONG = "#010101", "#020202", "#030303", "#040404"
SERIES = ("#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005", "#0a0006")
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    STRONG: "--strong",
    **{colour: f"--series-{i}" for i, colour in enumerate(SERIES, start=1)},
}
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), (0, (3, 3)), (0, (8, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P")
WIDTH, HEIGHT = 4.2, 2.9
"""Inches. About as wide as a phone, so that letters keep their size there."""
ROW = 0.27
"""Height of a row of a dot chart ..."""
MARGIN, LOWEST = 0.9, 2.0
"""... what its axis needs besides, and the least that it is given."""
STYLE: dict[str, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name may hold dollar signs
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
}


def svg(chart: Chart) -> str:
    """One chart as an SVG element. Raises HardwareMissing when matplotlib is not installed."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise HardwareMissing(f"charts need matplotlib; pip install 'sage_tune[report]' ({error})") from error
    height = max(MARGIN + ROW * len(chart.dots), LOWEST) if isinstance(chart, Dots) else HEIGHT
    style: Any = {**STYLE, "svg.hashsalt": chart.key}
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the browser has its own fonts
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        if isinstance(chart, Curves):
            _curves(axes, chart)
        elif isinstance(chart, Dots):
            _dots(figure, axes, chart)
        else:
            _agreement(axes, chart)
        return _written(figure, chart.key)


def _curves(axes: Axes, chart: Curves) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for i, line in enumerate(chart.lines):
        colour = SERIES[i % len(SERIES)]
        axes.plot(
            line.x,
            line.y,
            color=colour,
            linestyle=DASHES[i % len(DASHES)],
            marker=MARKERS[i % len(MARKERS)],
            label=line.name,
        )
        if line.low:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
    axes.set_ylim(bottom=0)
    if chart.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    elif all(x == int(x) for line in chart.lines for x in line.x):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.mark is not None:
        axes.axvline(chart.mark, color=INK, linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate(
            chart.mark_label, (chart.mark, 0.04), xycoords=("data", "axes fraction"), xytext=(3, 0),
            textcoords="offset points", color=INK, fontsize=8,
        )  # fmt: skip
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    if len(chart.lines) > 1:
        axes.legend(loc="best")


def _dots(figure: Figure, axes: Axes, chart: Dots) -> None:
    measured = any(dot.measured for dot in chart.dots)
    for i, dot in enumerate(chart.dots):
        y, shift = len(chart.dots) - 1 - i, 0.15 if measured else 0.0
        if dot.replayed:
            _bar(axes, dot.replayed, y + shift, STRONG if dot.strong else SERIES[0], "o", dot.strong)
        if dot.measured:
            _bar(axes, dot.measured, y - shift, STRONG if dot.strong else SERIES[1], "s", dot.strong)
    axes.set_yticks(
        range(len(chart.dots)), [f"{'★ ' if dot.strong else ''}{_short(dot.name)}" for dot in reversed(chart.dots)]
    )
    axes.set_ylim(-0.7, len(chart.dots) - 0.3)
    for value, name in chart.lines:
        axes.axvline(value, color=INK, linewidth=1, linestyle=(0, (4, 2)))
        axes.annotate(
            name, (value, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize=8, color=INK,
        )  # fmt: skip
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(chart.x_label)
    if measured:
        axes.plot([], [], color=SERIES[0], marker="o", linestyle="none", label="replayed")
        axes.plot([], [], color=SERIES[1], marker="s", linestyle="none", label="measured")
        figure.legend(loc="outside lower center", ncols=2)


def _agreement(axes: Axes, chart: Agreement) -> None:
    pairs = [(dot, dot.replayed.value, dot.measured) for dot in chart.dots if dot.replayed and dot.measured]
    ends = [v for _, x, span in pairs for v in (x, span.low, span.high)]
    low, high = 0.97 * min(ends, default=0.9), 1.03 * max(ends, default=1.1)
    axes.plot([low, high], [low, high], color=INK, linewidth=1)
    for factor in (1 / (1 + chart.bound), 1 / (1 - chart.bound)):
        axes.plot([low, high], [low * factor, high * factor], color=MUTED, linewidth=1, linestyle=(0, (4, 2)))
    for i, (dot, x, span) in enumerate(pairs):
        colour = STRONG if dot.strong else SERIES[i % len(SERIES)]
        axes.errorbar(
            [x], [span.value], yerr=[[span.value - span.low], [span.high - span.value]], color=colour,
            marker=MARKERS[i % len(MARKERS)], linestyle="none", label=f"{'★ ' if dot.strong else ''}{_short(dot.name)}",
        )  # fmt: skip
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label, xlim=(low, high), ylim=(low, high))
    axes.legend(loc="upper left")


def _bar(axes: Axes, span: Span, y: float, colour: str, marker: str, strong: bool) -> None:
    axes.plot([span.low, span.high], [y, y], color=colour, linewidth=2.2 if strong else 1.4, solid_capstyle="butt")
    axes.plot([span.value], [y], color=colour, marker=marker, markersize=6 if strong else 4.5)


def _short(name: str, most: int = 26) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _written(figure: Figure, key: str) -> str:
    """The figure's SVG element alone: no prologue, no metadata, ids of its own, colours of the page."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    replacements: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
        (r'\bid="', f'id="{key}-'),
        (r"url\(#", f"url(#{key}-"),
        (r'xlink:href="#', f'xlink:href="#{key}-'),
        (r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" aria-hidden="true" focusable="false">'),
    ]
    for pattern, new in replacements:
        text = re.sub(pattern, new, text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.strip()
