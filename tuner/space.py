"""The search space: which policies an Optuna trial may suggest, and how a known policy is written as a trial.

Edges are placed at quantiles of the signal, so no bin is empty whatever the signal's scale. Depth, width and
nodes are indices into the recorded grid, so every suggestion can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from profiles.config import GridConfig, SearchConfig
from profiles.policy import HistorySpec, PolicySource, SignalKind, SignalSpec, Tier
from profiles.pruning import NO_PRUNING, Pruning
from runtime.decode import OFF
from runtime.policy.signals import is_entropy
from tuner.outcomes import Record

Floats = npt.NDArray[np.float64]

MAX_DROP = 4
"""Most levels that depth may fall from one bin to the next in a monotone policy."""
MAX_RISE = 2
"""Most places on the grid that width may rise from one bin to the next in a monotone policy."""
WINDOWS = (1, 2, 4, 8, 16, 32)


class Suggester(Protocol):
    """The part of `optuna.Trial` that the space needs."""

    def suggest_int(self, name: str, low: int, high: int) -> int: ...
    def suggest_float(self, name: str, low: float, high: float) -> float: ...
    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


def edges_at(values: Floats, shares: Floats) -> tuple[float, ...]:
    """Edges inside (0, 1), strictly increasing, at quantiles `shares` of a signal's recorded values.

    Three significant digits: a quantile often is a recorded value, and an edge on a value is a coin toss between
    passes that round differently.
    """
    edges = {float(f"{quantile:.3g}") for quantile in np.quantile(values, shares)}
    return tuple(sorted(edge for edge in edges if 0.0 < edge < 1.0))


class SearchSpace:
    """Policies over a record's grid."""

    def __init__(self, grid: GridConfig, search: SearchConfig, record: Record) -> None:
        self._grid, self._search, self._record = grid, search, record
        self._tuned = np.isin(record.sample_of, record.split_samples("tune"))

    def under(self, pruning: Pruning) -> SearchSpace:
        """The part of the space with this pruning: edges and known policies of it."""
        return SearchSpace(self._grid, self._search, self._record.under(pruning))

    def _pruning(self, trial: Suggester) -> Pruning:
        """What the draft does without; no question where one answer is on record."""
        known = {pruning.stem(): pruning for pruning in self._record.manifest.prunings}
        if len(known) == 1:
            return NO_PRUNING
        return known[trial.suggest_categorical("pruning", list(known))]

    def suggest(self, trial: Suggester) -> PolicySource:
        """One policy. Raises ValueError (through the models) for a combination that is no policy."""
        grid, search = self._grid, self._search
        bins = trial.suggest_int("bins", 1, search.max_bins)
        # one bin asks no signal: suggesting one would be a knob that turns nothing
        signal = self._signal(trial) if bins > 1 else SignalSpec()
        pruning = self._pruning(trial)
        edges = self.under(pruning)._edges(trial, signal, bins)
        tiers: list[Tier] = []
        depth, width = grid.depth, 0
        for i in range(len(edges) + 1):
            if i == 0 or not search.monotone:
                depth = trial.suggest_int(f"depth_{i}", 0 if i else 1, grid.depth)
                width = trial.suggest_int(f"width_{i}", 0, len(grid.widths) - 1)
            else:
                depth = max(depth - trial.suggest_int(f"drop_{i}", 0, MAX_DROP), 0)
                width = min(width + trial.suggest_int(f"rise_{i}", 0, MAX_RISE), len(grid.widths) - 1)
            tiers.append(self._tier(trial, i, depth, grid.widths[width]))
        history = self._history(trial) if search.history else None
        return PolicySource(
            name="tuned",
            signal=signal if edges else SignalSpec(),
            edges=edges,
            tiers=tuple(tiers),
            history=history,
            monotone=search.monotone,
            pruning=pruning,
        )

    def single(self, tier: Tier) -> dict[str, Any]:
        """Parameters of a one-tier policy, to enqueue a known policy as a trial."""
        return self.binned(SignalSpec(), [tier])

    def binned(self, signal: SignalSpec, tiers: Sequence[Tier]) -> dict[str, Any]:
        """Parameters of a policy with these tiers in bins of equal position counts (`equal_edges`).

        Raises ValueError for tiers that the space cannot express (a fall by more than MAX_DROP levels, a width or
        node count off the grid, a plain first bin).
        """
        parameters: dict[str, Any] = {"bins": len(tiers)}
        if len(self._record.manifest.prunings) > 1:
            parameters["pruning"] = self._record.pruning.stem()
        if len(tiers) > 1:
            parameters |= {"signal": signal.kind, "lag": signal.lag, "smoothing": signal.smoothing}
            if is_entropy(signal.kind):
                parameters["top_k"] = signal.top_k
            parameters |= {f"size_{i}": 0.5 for i in range(len(tiers))}
        depth, width = self._grid.depth, 0
        for i, tier in enumerate(tiers):
            at = self._grid.widths.index(tier.width) if tier.depth else width
            if i == 0 or not self._search.monotone:
                parameters |= {f"depth_{i}": tier.depth, f"width_{i}": at}
            else:
                drop, rise = depth - tier.depth, at - width
                if not (0 <= drop <= MAX_DROP and 0 <= rise <= MAX_RISE):
                    raise ValueError(f"bin {i} falls by {drop} levels and rises by {rise} widths, outside the space")
                parameters |= {f"drop_{i}": drop, f"rise_{i}": rise}
            if tier.depth:
                parameters |= {f"nodes_{i}": self._node_share(tier), f"stop_{i}": tier.stop}
            depth, width = tier.depth, at
        if self._search.history:
            parameters["history"] = False
        return parameters

    def may_follow(self, before: Tier, after: Tier) -> bool:
        """Whether a policy may hold these tiers in neighbouring bins."""
        if not self._search.monotone:
            return True
        widths = self._grid.widths
        # a plain step drafts nothing and leaves the width as it was, so nothing but a plain step may follow it
        if before.depth == 0 or after.depth == 0:
            return after.depth == 0 and before.depth <= MAX_DROP
        drop, rise = before.depth - after.depth, widths.index(after.width) - widths.index(before.width)
        return 0 <= drop <= MAX_DROP and 0 <= rise <= MAX_RISE

    def equal_edges(self, signal: SignalSpec, bins: int) -> tuple[float, ...]:
        """The edges that `binned` stands for."""
        return edges_at(self._values(signal), np.arange(1, bins) / bins)

    def _signal(self, trial: Suggester) -> SignalSpec:
        search = self._search
        kind: SignalKind = trial.suggest_categorical("signal", list(search.signals))
        fields: dict[str, Any] = {
            "kind": kind,
            "lag": trial.suggest_categorical("lag", list(search.lags)),
            "smoothing": trial.suggest_categorical("smoothing", list(search.smoothings)),
        }
        if is_entropy(kind):
            fields["top_k"] = trial.suggest_categorical("top_k", list(search.top_ks))
        return SignalSpec(**fields)

    def _values(self, signal: SignalSpec) -> Floats:
        """The signal at the tuning positions, for quantiles: means of it live on the same scale."""
        return self._record.signal(signal.kind, signal.top_k)[self._tuned]

    def _edges(self, trial: Suggester, signal: SignalSpec, bins: int) -> tuple[float, ...]:
        """Strictly increasing edges inside (0, 1), at quantiles set by the relative sizes of the bins."""
        if bins == 1:
            return ()
        sizes = np.array([trial.suggest_float(f"size_{i}", 0.05, 1.0) for i in range(bins)])
        shares = np.cumsum(sizes)[:-1] / sizes.sum()
        return edges_at(self._values(signal), shares)

    def _tier(self, trial: Suggester, i: int, depth: int, width: int) -> Tier:
        if depth == 0:
            return OFF
        choices = self._grid.node_counts(depth, width)
        if not choices:
            raise ValueError(f"no verify size fits a tree of depth {depth} and width {width}")
        share = trial.suggest_float(f"nodes_{i}", 0.0, 1.0)
        stop = trial.suggest_categorical(f"stop_{i}", list(self._search.stops))
        return Tier(
            depth=depth,
            width=width,
            nodes=choices[min(int(share * len(choices)), len(choices) - 1)],
            stop=stop,
        )

    def _node_share(self, tier: Tier) -> float:
        choices = self._grid.node_counts(tier.depth, tier.width)
        return (choices.index(tier.nodes) + 0.5) / len(choices)

    def _history(self, trial: Suggester) -> HistorySpec | None:
        if not trial.suggest_categorical("history", [False, True]):
            return None
        low = trial.suggest_float("history_low", 0.25, 4.0)
        return HistorySpec(
            window=trial.suggest_categorical("history_window", list(WINDOWS)),
            low=low,
            high=low + trial.suggest_float("history_gap", 0.5, 3.0),
            step=trial.suggest_int("history_step", 1, 3),
            hysteresis=trial.suggest_float("history_hysteresis", 0.0, 0.25),
            min_depth=1,
            max_depth=self._grid.depth,
        )
