"""Findings: what one check of a pair or of a calibration set has to say, in one sentence with rule and value.

`fail` means that hours spent on it would be wasted or that its numbers could not be trusted; `warn` means that the
output stays exact but acceptance may suffer; `skipped` says why a check could not run.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal, NamedTuple

Status = Literal["pass", "warn", "fail", "skipped"]
WORST_FIRST: tuple[Status, ...] = ("fail", "warn", "pass", "skipped")


class Verdict(NamedTuple):
    """The answer of a check function, which need not know its own name."""

    status: Status
    text: str
    items: tuple[str, ...] = ()
    """Everything the sentence is about, when it names only the first: sample ids."""

    def of(self, check: str) -> Finding:
        return Finding(check, *self)


@dataclass(frozen=True)
class Finding:
    """The verdict of a named check."""

    check: str
    status: Status
    text: str
    items: tuple[str, ...] = ()

    def document(self) -> dict[str, object]:
        return {"check": self.check, "status": self.status, "text": self.text, "items": list(self.items)}


def passed(text: str) -> Verdict:
    return Verdict("pass", text)


def warned(text: str, items: tuple[str, ...] = ()) -> Verdict:
    return Verdict("warn", text, items)


def failed(text: str, items: tuple[str, ...] = ()) -> Verdict:
    return Verdict("fail", text, items)


def skipped(reason: str) -> Verdict:
    return Verdict("skipped", reason)


@dataclass(frozen=True)
class Report:
    """All findings about one thing."""

    subject: str
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The worst status; skipped only when nothing ran."""
        found = {finding.status for finding in self.findings}
        return next((status for status in WORST_FIRST if status in found), "skipped")

    def exit_code(self, strict: bool) -> int:
        """1 when a check failed; under `strict` a warning counts as well."""
        return int(self.status == "fail" or (strict and self.status == "warn"))

    def summary(self) -> str:
        counts = Counter(finding.status for finding in self.findings)
        return ", ".join(f"{counts[status]} {status}" for status in WORST_FIRST if counts[status])

    def document(self) -> dict[str, object]:
        return {
            "subject": self.subject,
            "status": self.status,
            "findings": [finding.document() for finding in self.findings],
        }
