"""The page: a report as one HTML document that loads nothing, runs nothing, and escapes every name it shows."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tuner.report import plots
from tuner.report.view import Report

HERE = Path(__file__).resolve().parent


def html(report: Report) -> str:
    """The whole document. Raises HardwareMissing when matplotlib is not installed."""
    drawn = {chart.key: Markup(plots.svg(chart)) for section in report.sections for chart in section.charts}
    rounds = [made for section in report.sections for made in section.rounds]
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html.jinja").render(
        report=report,
        css=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        drawn=drawn,
        strip_width=max((max(made.rows, default=1) for made in rounds), default=1),
        strip_depth=max((len(made.rows) for made in rounds), default=1),
    )
