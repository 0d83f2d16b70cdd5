"""`sage_tune counters`: a counter log as Prometheus text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from profiles.errors import BadInput
from profiles.store import write_text


def counters(
    log: Annotated[Path, typer.Argument(help="counter log written by `sage_tune run --counters`")],
    out_path: Annotated[Path | None, typer.Option("--out", help="file for a textfile collector; unset prints")] = None,
) -> None:
    """Sum a counter log up as Prometheus text, under the names of vLLM and SGLang where they have one."""
    from runtime.counters import prometheus, read_log

    lines = read_log(log)
    if not lines:
        raise BadInput(f"{log} holds no line")
    text = prometheus(lines)
    if out_path is None:
        print(text, end="")
    else:
        write_text(out_path, text)
