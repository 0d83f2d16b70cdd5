"""One export: a profile, what became of its policy, and where it goes. What every writer of configuration is given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profiles.lowering import Abilities, Lowered
from profiles.policy_profile import PolicyProfile

LARGEST_BATCH = 1024
"""End of the last range of a schedule by batch size."""


@dataclass(frozen=True)
class Method:
    """A way of drafting that an engine has."""

    abilities: Abilities
    head: bool = False
    """True when it drafts with a head on the target's features, which is not the draft that the profile knows."""


@dataclass(frozen=True)
class ExportRequest:
    """What the files of one export are made of."""

    profile: PolicyProfile
    lowered: Lowered
    version: str
    method: str
    target: str
    draft: str
    """Paths or hub ids of both models, as the engine finds them."""

    @property
    def drafts(self) -> bool:
        """False when the engine is best started without speculation."""
        return self.lowered.tier.depth > 0

    @property
    def length(self) -> int:
        """Levels of a draft."""
        return self.lowered.tier.depth

    @property
    def tail(self) -> int:
        """Length of a chain for more requests at once than were tuned: the safe tier's, never more than `length`."""
        return min(self.lowered.source.safe.depth, self.length)

    @property
    def sees(self) -> bool:
        """True when the profile was tuned on pictures or video."""
        return any(modality != "text" for modality in self.profile.regime.modalities)

    def stamp(self) -> str:
        """One line that says what this is: profile, its digest, the digest of what the engine was given."""
        return (
            f"sage_tune profile {self.profile.name} {self.profile.digest[:12]}, lowered {self.lowered.digest()[:12]} "
            f"({self.lowered.label()})"
        )


def shell_script(stamp: str, command: Sequence[str], needs: Sequence[str] = ()) -> str:
    """`launch.sh`: the command, one option a line, further arguments passed on. `needs` are variables that must be
    set; they stand in the command as `$NAME`."""
    parts = [f'"{part}"' if part.removeprefix("$") in needs else shlex.quote(part) for part in command]
    lines: list[str] = []
    for part in parts:
        if part.startswith("--") or not lines:
            lines.append(part)
        else:
            lines[-1] += f" {part}"
    checks = [f': "${{{name}:?set {name} to the file}}"' for name in needs]
    run = " \\\n  ".join([f"exec {lines[0]}", *lines[1:], '"$@"'])
    return "\n".join(["#!/bin/sh", f"# {stamp}", "set -eu", *checks, run]) + "\n"


def pretty(document: dict[str, Any]) -> str:
    """JSON for people: keys in the order given."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def fenced(text: str, language: str = "sh") -> str:
    """A Markdown block."""
    return f"```{language}\n{text.rstrip()}\n```\n"
