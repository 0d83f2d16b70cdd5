"""`sage_tune lookup`: is there a profile for this pair on this machine?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import typer

from commands.options import Accept, Backend, Gpu, Json, Library, Model, Set, configured, out, print_json
from profiles.errors import BadInput

if TYPE_CHECKING:
    from tuner.library import Found, LookupResult

INCONCLUSIVE = 4


def lookup(
    model: Model = None,
    gpu: Gpu = None,
    backend: Backend = None,
    library: Library = None,
    accept: Accept = "tuned",
    as_json: Json = False,
    sets: Set = None,
) -> None:
    """Find the profile of a pair for this machine: tuned, nearest or default. Exit code 4 for less than --accept."""
    found, least = found_for(model, gpu, backend, library, accept, sets)
    out.print(found.text(), soft_wrap=True, markup=False, highlight=False)
    if found.differences:
        from tuner.gate_screens import fingerprint_table

        out.print(fingerprint_table(list(found.differences)))
    for reason in found.passed_over:
        out.print(f"passed over: {reason}", soft_wrap=True, markup=False, highlight=False)
    if as_json:
        print_json(found.document())
    raise typer.Exit(0 if found.accepted(least) else INCONCLUSIVE)


def found_for(
    model: str | None,
    gpu: str | None,
    backend: str | None,
    library: list[Path] | None,
    accept: str,
    sets: list[str] | None = None,
) -> tuple[Found, LookupResult]:
    """The best match of the libraries, and the least that is accepted. Raises BadInput for another word."""
    from tuner.library import SHIPPED_LIBRARY, LookupResult
    from tuner.library import lookup as look

    if accept not in get_args(LookupResult):
        raise BadInput(f"--accept takes {', '.join(get_args(LookupResult))}, got '{accept}'")
    config = configured(None, model, gpu, None, backend, None, sets)
    return look(config, library or [SHIPPED_LIBRARY]), cast("LookupResult", accept)
