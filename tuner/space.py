"""The search space: which policies an Optuna trial may suggest, and how a known policy is written as a trial.

Edges are placed at quantiles of the signal, so no bin is empty whatever the signal's scale. Depth, width and
nodes are indices into the recorded grid, so every suggestion can be replayed.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from profiles.config import GridConfig, SearchConfig
from profiles.policy import HistorySpec, PolicySource, SignalKind, SignalSpec, Tier
from runtime.decode import OFF
from tuner.outcomes import Record

Floats = npt.NDArray[np.float64]

MAX_DROP = 4
"""Most levels that depth may fall from one bin to the next in a monotone policy."""
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
        self._grid, self._search = grid, search
        tuned = np.isin(record.sample_of, record.split_samples("tune"))
        self._signals = {kind: record.signal(self._spec(kind))[tuned] for kind in search.signals}

    def suggest(self, trial: Suggester) -> PolicySource:
        """One policy. Raises ValueError (through the models) for a combination that is no policy."""
        grid, search = self._grid, self._search
        kind: SignalKind = trial.suggest_categorical("signal", list(search.signals))
        bins = trial.suggest_int("bins", 1, search.max_bins)
        edges = self._edges(trial, kind, bins)
        tiers: list[Tier] = []
        depth, width = grid.depth, 0
        for i in range(len(edges) + 1):
            if i == 0 or not search.monotone:
                depth = trial.suggest_int(f"depth_{i}", 0 if i else 1, grid.depth)
                width = trial.suggest_int(f"width_{i}", 0, len(grid.widths) - 1)
            else:
                depth = max(depth - trial.suggest_int(f"drop_{i}", 0, MAX_DROP), 0)
                width = min(width + trial.suggest_int(f"rise_{i}", 0, 1), len(grid.widths) - 1)
            tiers.append(self._tier(trial, i, depth, grid.widths[width]))
        history = self._history(trial) if search.history else None
        return PolicySource(
            name="tuned",
            signal=self._spec(kind),
            edges=edges,
            tiers=tuple(tiers),
            history=history,
            monotone=search.monotone,
        )

    def single(self, tier: Tier) -> dict[str, Any]:
        """Parameters of a one-tier policy, to enqueue a known policy as a trial."""
        parameters: dict[str, Any] = {
            "signal": self._search.signals[0],
            "bins": 1,
            "depth_0": tier.depth,
            "width_0": self._grid.widths.index(tier.width),
            "nodes_0": self._node_share(tier),
            "stop_0": tier.stop,
        }
        if self._search.history:
            parameters["history"] = False
        return parameters

    def _spec(self, kind: str) -> SignalSpec:
        return SignalSpec.model_validate({"kind": kind, "top_k": self._grid.signal_top_k})

    def _edges(self, trial: Suggester, kind: SignalKind, bins: int) -> tuple[float, ...]:
        """Strictly increasing edges inside (0, 1), at quantiles set by the relative sizes of the bins."""
        if bins == 1:
            return ()
        sizes = np.array([trial.suggest_float(f"size_{i}", 0.05, 1.0) for i in range(bins)])
        shares = np.cumsum(sizes)[:-1] / sizes.sum()
        return edges_at(self._signals[kind], shares)

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
