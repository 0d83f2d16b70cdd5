"""Progress on a terminal: a bar with remaining time for long work, plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """Opens one bar per step of a command. Everything goes to stderr, so stdout stays for results."""

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def task(self, what: str, total: float) -> Iterator[Callable[[float], None]]:
        """A bar for one step; yields a function that advances it."""
        if not self.console.is_terminal:
            self.console.print(f"{what} ...")
            yield lambda steps: None
            return
        columns = (
            TextColumn("{task.description:<22}"),
            BarColumn(bar_width=32, complete_style="cyan", finished_style="blue"),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with RichProgress(*columns, console=self.console) as bar:
            task = bar.add_task(what, total=total)
            yield lambda steps: bar.advance(task, steps)
            bar.update(task, completed=total)
