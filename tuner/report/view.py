"""What a report is made of, before anything is drawn: text, numbers and charts as plain data.

Every chart carries a sentence that says what it shows and the table of its numbers, for those who cannot see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Table:
    """Numbers as text, one tuple per row."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Span:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        return f"{self.value:.{digits}f} [{self.low:.{digits}f}, {self.high:.{digits}f}]"


@dataclass(frozen=True)
class Line:
    """One line of a chart; `low` and `high` are empty where there is no band."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Curves:
    """Lines with bands over one axis."""

    key: str
    title: str
    alt: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    numbers: Table
    log_x: bool = False
    """Values that spread over powers of ten."""
    mark: float | None = None
    """A place on the x axis that matters ..."""
    mark_label: str = ""
    """... and what it is."""
    kind: Literal["curves"] = "curves"


@dataclass(frozen=True)
class Dot:
    """One row of a dot chart: a replayed value and, where it was taken live, a measured one."""

    name: str
    replayed: Span | None
    measured: Span | None = None
    strong: bool = False


@dataclass(frozen=True)
class Dots:
    """Rows of values with intervals on one axis, with lines to compare with."""

    key: str
    title: str
    alt: str
    x_label: str
    dots: tuple[Dot, ...]
    numbers: Table
    lines: tuple[tuple[float, str], ...] = ()
    kind: Literal["dots"] = "dots"


@dataclass(frozen=True)
class Agreement:
    """What was predicted against what came, with the diagonal and the bound on either side of it."""

    key: str
    title: str
    alt: str
    x_label: str
    y_label: str
    dots: tuple[Dot, ...]
    bound: float
    numbers: Table
    kind: Literal["agreement"] = "agreement"


Chart = Curves | Dots | Agreement


@dataclass(frozen=True)
class Cell:
    """One cell of the policy map."""

    label: str
    shade: int
    """0 for plain decoding, then 1 to 5 by depth."""


@dataclass(frozen=True)
class PolicyMap:
    """Signal bin by history state: the tier of a round."""

    states: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


@dataclass(frozen=True)
class Round:
    """One round of the decoded example. `rows` are the verified nodes of each level, the first level first; the first
    `accepted` levels hold the accepted path."""

    number: int
    position: int
    tier: str
    signal: str
    rows: tuple[int, ...]
    accepted: int


@dataclass(frozen=True)
class Card:
    """One number of the summary."""

    name: str
    value: str
    note: str
    interval: str = ""


@dataclass(frozen=True)
class Section:
    """One part of the page. `missing` says why it is empty."""

    key: str
    title: str
    text: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    charts: tuple[Chart, ...] = ()
    policy: PolicyMap | None = None
    rounds: tuple[Round, ...] = ()
    tables: tuple[Table, ...] = ()
    missing: str = ""


@dataclass(frozen=True)
class Report:
    """The whole page."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
