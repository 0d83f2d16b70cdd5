"""Rounds as arrays: for every kind of round that was ever replayed, what it does at every recorded position.

Once a kind of round is a row here, a policy is a few gathers, however many policies share the row.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from tuner.cost_model import Floats
from tuner.drafts import Ints, Outcome


class RoundTable:
    """Arrays [rows, positions]. `following` is the position after the round, `positions` once the output ended."""

    NAMES = ("following", "unseen", "accepted", "nodes", "levels")

    def __init__(self, end_of: Ints) -> None:
        """`end_of` [positions]: one past the last position of the same output."""
        self.positions = len(end_of)
        self._end_of = end_of
        self._row_of: dict[Hashable, int] = {}
        self._rows = 0
        self._ints = {name: np.empty((8, self.positions), dtype=np.int64) for name in self.NAMES}
        self._time_ns = np.empty((8, self.positions))

    def find(self, key: Hashable) -> int | None:
        return self._row_of.get(key)

    def add(self, outcome: Outcome, time_ns: Floats, key: Hashable | None = None) -> int:
        """A new row; `time_ns` [positions] without the catch-up pass, which depends on the round before."""
        row = self._rows
        if row == len(self._time_ns):
            self._ints = {name: np.concatenate([old, np.empty_like(old)]) for name, old in self._ints.items()}
            self._time_ns = np.concatenate([self._time_ns, np.empty_like(self._time_ns)])
        following = np.arange(self.positions) + outcome.accepted + 1
        following[following >= self._end_of] = self.positions
        columns = (following, outcome.unseen, outcome.accepted, outcome.nodes, outcome.levels)
        for name, column in zip(self.NAMES, columns, strict=True):
            self._ints[name][row] = column
        self._time_ns[row] = time_ns
        self._rows += 1
        if key is not None:
            self._row_of[key] = row
        return row

    def ints(self, name: str, rows: Ints, at: Ints) -> Ints:
        """One column of rounds `rows` begun at positions `at` (arrays that broadcast)."""
        return self._ints[name].reshape(-1).take(rows * self.positions + at)

    def time_ns(self, rows: Ints, at: Ints) -> Floats:
        return self._time_ns.reshape(-1).take(rows * self.positions + at)
