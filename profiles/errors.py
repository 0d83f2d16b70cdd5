"""The errors a user can meet, each with the exit code that the command line answers with.

0 good, 1 gate failed, 2 bad input, 3 hardware or engine missing, 4 inconclusive (design section 8).
"""

from __future__ import annotations


class SageError(Exception):
    """Base of every error that is meant for a person: the message states the rule and the value."""

    exit_code = 2


class BadInput(SageError):
    """Something the user gave is wrong: a file, a key, a prompt, a value out of its bounds."""

    exit_code = 2


class CapacityError(BadInput):
    """The prompt, the new tokens and the largest tree do not fit the cache."""


class ProfileError(BadInput):
    """A profile or run folder cannot be trusted: unreadable, changed, newer, or made for something else."""


class EnvelopeError(BadInput):
    """A policy asks for something that was never recorded or measured; it is refused, not extrapolated."""


class ModelOutputError(SageError):
    """A model produced something impossible (NaN logits): no number built on it would mean anything."""

    exit_code = 1


class LosslessError(SageError):
    """Speculative and plain output differ by more than a near tie. A bug, never a result."""

    exit_code = 1


class HardwareMissing(SageError):
    """The hardware or engine that was asked for is not here."""

    exit_code = 3


class OutOfMemory(SageError):
    """A pass needs more memory than the device has."""

    exit_code = 3


class Inconclusive(SageError):
    """The budget ended before a verdict was certain."""

    exit_code = 4
