"""llama.cpp: flags of `llama-server`. Builds are named whose help text was read: the flags of drafts were renamed in
April 2026, and the old names are refused since.

Its `p-min` ends a draft by a token's probability among the ten best, which is on no record, and builds differ in
whether the token that ends it is kept. It is set to 0, which also undoes the old default of 0.75.
"""

from __future__ import annotations

from typing import Final

from exports.request import ExportRequest, Method, fenced, shell_script
from profiles.lowering import Abilities

VERSIONS: Final = ("b8672", "b9950", "b10212")
METHODS: Final = {"draft_model": Method(Abilities(room="chain"))}
OLD_NAMES: Final = ("b8672",)
TARGET, DRAFT = "TARGET_GGUF", "DRAFT_GGUF"


def flags(request: ExportRequest) -> list[str]:
    """Everything about speculation; nothing without it."""
    if not request.drafts:
        return []
    found = ["--model-draft", f"${DRAFT}"]
    length = str(request.length)
    if request.version in OLD_NAMES:
        return [*found, "--draft-max", length, "--draft-min", "0", "--draft-p-min", "0"]
    found += ["--spec-type", "draft-simple", "--spec-draft-n-max", length]
    return [*found, "--spec-draft-n-min", "0", "--spec-draft-p-min", "0"]


def files(request: ExportRequest) -> dict[str, str]:
    needs = [TARGET, DRAFT] if request.drafts else [TARGET]
    command = ["llama-server", "--model", f"${TARGET}", *flags(request)]
    return {"launch.sh": shell_script(request.stamp(), command, needs)}


def start(request: ExportRequest) -> str:
    return (
        "Convert both models to GGUF with llama.cpp's own `convert_hf_to_gguf.py`, then in this folder:\n\n"
        + fenced(f"{TARGET}=target.gguf {DRAFT}=draft.gguf sh launch.sh --parallel 1")
        + "\nThe profile was tuned for one request at a time, hence `--parallel 1`.\n"
    )


def notes(request: ExportRequest) -> tuple[str, ...]:
    found = [
        "never run: the flags were read in help texts of these builds",
        "quantised models draft and accept differently from those on the record",
    ]
    if request.sees:
        found.append("speculation together with --mmproj (pictures) was not established for these builds")
    return tuple(found)
