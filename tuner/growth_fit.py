"""Growth trees from the record: a decision tree over what the draft knows, fitted by dynamic programming.

The record says what every (levels drafted, verify size) would have brought at every position, so going on and
stopping are compared by their counterfactual costs rather than guessed from probabilities. A round's cost is its
time less a price per token it emits: the time that a token takes elsewhere. Going on from a level is worth what the
present tree makes of the next one. Fitting the tree to those costs and pricing a token by the walked policy
alternate: approximate policy iteration on an average-reward stopping problem, kept where it improved the tuning
prompts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import get_args

import numpy as np
import numpy.typing as npt

from profiles.config import GridConfig
from profiles.growth import FEATURES, GO_ON, MAX_LEAVES, Feature, GrowthTree
from profiles.policy import DraftRule, PolicySource, SignalKind, Tier, pool_size
from tuner.cost_model import Floats
from tuner.drafts import Ints, decided
from tuner.yardsticks.base import Arena, TablePolicy

GROWTH = "growth tree"
ITERATIONS = 6
LEAVES = (8, 16, MAX_LEAVES)
CODES = 250
"""Candidate thresholds per feature, at quantiles."""
MIN_SHARE = 0.004
"""A leaf must decide for at least this share of the weighted decisions, else it is a fit to single prompts."""
ELSEWHERE = 0.05
"""Weight of decisions at levels that the present tree does not reach, against 1 for those it does: the next one may
reach them. One in `1 / (2 * ELSEWHERE)` of them is kept, at half weight."""


@dataclass(frozen=True)
class Stops:
    """Ending a round of one drafting rule after each level with each verify size, at the tuning positions [P]."""

    tier: Tier
    """The cap of every round."""
    at: Ints
    """[P] positions of the record."""
    sizes: tuple[int, ...]
    time_ns: Floats
    """[L, S, P] round and the catch-up pass that it leaves behind."""
    emitted: Ints
    """[L, S, P] tokens, bonus included."""
    values: dict[Feature, Floats]
    """[L, P] what the tree may ask."""
    top_k: int
    """k of the entropies among them."""

    def cost_ns(self, token_ns: float) -> Floats:
        """[P, L, S + 1]: going on is column 0 and still unknown, the rest are the verify sizes."""
        known = np.moveaxis(self.time_ns - token_ns * self.emitted, 2, 0)
        return np.concatenate([np.zeros_like(known[:, :, :1]), known], axis=2)


def stops_of(arena: Arena, width: int) -> Stops:
    """All ends of a round under a beam of `width`, computed from the record."""
    replay, grid = arena.replay, arena.grid
    record, depth = replay.record, grid.depth
    nodes = min(grid.max_nodes, pool_size(depth, width))
    tier = Tier(depth=depth, width=width, nodes=nodes)
    draft = record.draft(DraftRule(width=width))
    at = np.nonzero(np.isin(record.sample_of, arena.tune))[0]
    sizes = tuple(size for size in grid.verify_sizes[1:] if size - 1 <= nodes)
    time_ns = np.empty((depth, len(sizes), len(at)))
    emitted = np.empty((depth, len(sizes), len(at)), dtype=np.int64)
    for level in range(1, depth + 1):
        drafted = np.full(record.positions, level, dtype=np.int64)
        for column, size in enumerate(sizes):
            outcome = draft.outcome(drafted, np.minimum(size - 1, draft.available[:, level]))
            after = replay.catch_up_ns[outcome.unseen, np.arange(record.positions)]
            time_ns[level - 1, column] = (replay.round_ns(outcome, grid.verify_sizes) + after)[at]
            emitted[level - 1, column] = outcome.accepted[at] + 1
    by_level = [draft.level_features(level) for level in range(1, depth + 1)]
    values: dict[Feature, Floats] = {
        name: np.stack([features[name][at] for features in by_level]) for name in by_level[0]
    }
    for kind in get_args(SignalKind):
        values[kind] = np.broadcast_to(record.signal(kind, record.default_top_k)[at], (depth, len(at)))
    return Stops(tier, at, sizes, time_ns, emitted, values, record.default_top_k)


def growth_policies(arena: Arena, on_fit: Callable[[], None] = lambda: None) -> list[TablePolicy]:
    """Fitted policies: a small tree for every recorded beam, larger ones for the beam that did best.

    `on_fit` is called `fits(arena.grid)` times.
    """
    ends = {width: stops_of(arena, width) for width in arena.grid.widths}
    found = []

    def fit(width: int, leaves: int) -> float:
        policy = fit_policy(arena, ends[width], leaves)
        found.append(policy)
        on_fit()
        return arena.speedup(policy.walk(arena.tune), arena.tune)

    small, *larger = LEAVES
    widest = max(ends, key=lambda width: fit(width, small))
    for leaves in larger:
        fit(widest, leaves)
    return found


def fits(grid: GridConfig) -> int:
    """Trees that `growth_policies` fits."""
    return len(grid.widths) + len(LEAVES) - 1


def fit_policy(arena: Arena, stops: Stops, leaves: int) -> TablePolicy:
    """Policy iteration from an early stop at one half; the best policy met on the way."""
    depth, positions = len(stops.time_ns), len(stops.at)
    codes = _Codes(stops.values)
    best: tuple[float, TablePolicy] | None = None
    tree = _first_tree(stops)
    kept = np.random.default_rng(0).random((depth, positions)) < 2 * ELSEWHERE
    for _ in range(ITERATIONS):
        policy = TablePolicy(GROWTH, PolicySource(name=GROWTH, tiers=(stops.tier,), growth=tree), arena)
        walk = policy.walk(arena.tune)
        speedup = arena.speedup(walk, arena.tune)
        if best is None or speedup > best[0]:
            best = (speedup, policy)
        costs = stops.cost_ns(float(walk.time_ns.sum()) / walk.tokens)
        actions, reached = _decisions(tree, stops)
        value = np.empty(positions)
        for level in reversed(range(depth)):
            # at the last level there is no going on: all that the cap allows is verified
            costs[:, level, 0] = value if level + 1 < depth else costs[:, level, -1]
            value = costs[np.arange(positions), level, actions[level]]
        weight = np.where(reached, 1.0, np.where(kept, 0.5, 0.0))
        tree = _fitted(codes, np.moveaxis(costs, 0, 1), weight, stops, leaves)
    assert best is not None
    return best[1]


def _first_tree(stops: Stops) -> GrowthTree:
    """Go on while the best path is more likely than not, then verify a node per level and a few beside."""
    size = stops.sizes[len(stops.sizes) // 2]
    return GrowthTree(
        features=("best",),
        thresholds=(float(np.log(0.5)),),
        left=(-1,),
        right=(-2,),
        leaves=(size, GO_ON),
        top_k=stops.top_k,
    )


def _decisions(tree: GrowthTree, stops: Stops) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """[L, P] column of the costs that the tree takes at each level, and whether a round gets there."""
    depth, positions = len(stops.time_ns), len(stops.at)
    column_of = np.zeros(max(stops.sizes) + 1, dtype=np.int64)
    column_of[list(stops.sizes)] = np.arange(1, len(stops.sizes) + 1)
    actions = np.empty((depth, positions), dtype=np.int64)
    reached = np.ones((depth, positions), dtype=np.bool_)
    for level in range(depth):
        values = {name: column[level] for name, column in stops.values.items()}
        actions[level] = column_of[decided(tree, values, positions)]
        if level + 1 < depth:
            reached[level + 1] = reached[level] & (actions[level] == 0)
    return actions, reached


class _Codes:
    """Features of all decisions, [L * P], as small integers between quantile thresholds."""

    def __init__(self, values: dict[Feature, Floats]) -> None:
        self.names = [name for name in FEATURES if name in values]
        self.edges: list[Floats] = []
        columns = []
        for name in self.names:
            flat = values[name].reshape(-1)
            finite = flat[np.isfinite(flat)]
            edges = _between(np.unique(np.quantile(finite, np.linspace(0, 1, CODES, endpoint=False)[1:])))
            self.edges.append(edges)
            # NaN marks a level without candidates, where nothing is decided
            columns.append(np.searchsorted(edges, np.nan_to_num(flat, nan=-np.inf), side="left").astype(np.uint8))
        self.columns = np.stack(columns)


def _between(quantiles: Floats) -> Floats:
    """Thresholds with four significant digits: a quantile often is a recorded value, and a threshold on a value is a
    coin toss between passes that round differently."""
    return np.unique([float(f"{value:.4g}") for value in quantiles])


@dataclass
class _Leaf:
    rows: Ints
    action: int
    parent: int = -1
    side: int = 0
    split: tuple[float, int, int] | None = None
    """(gain, feature, code)"""


def _fitted(codes: _Codes, costs: Floats, weight: Floats, stops: Stops, leaves: int) -> GrowthTree:
    """Best-first: the leaf whose split saves most is split next. `costs` [L, P, A], `weight` [L, P]."""
    flat = (costs * weight[:, :, None]).reshape(-1, costs.shape[2])
    weights = weight.reshape(-1)
    least = MIN_SHARE * weights.sum()
    order = count()
    heap: list[tuple[float, int, _Leaf]] = []

    def grown(leaf: _Leaf) -> _Leaf:
        leaf.split = _best_split(codes, flat, weights, leaf.rows, least)
        if leaf.split is not None:
            heapq.heappush(heap, (-leaf.split[0], next(order), leaf))
        return leaf

    ends = [grown(_Leaf(np.nonzero(weights)[0], int(flat.sum(axis=0).argmin())))]
    features: list[Feature] = []
    thresholds: list[float] = []
    children: list[list[int]] = []
    while heap and len(ends) < leaves:
        leaf = heapq.heappop(heap)[2]
        assert leaf.split is not None
        _, feature, code = leaf.split
        node = len(features)
        features.append(codes.names[feature])
        thresholds.append(float(codes.edges[feature][code]))
        children.append([0, 0])
        if leaf.parent >= 0:
            children[leaf.parent][leaf.side] = node
        lower = codes.columns[feature][leaf.rows] <= code
        ends = [end for end in ends if end is not leaf]
        for side, rows in enumerate((leaf.rows[lower], leaf.rows[~lower])):
            ends.append(grown(_Leaf(rows, int(flat[rows].sum(axis=0).argmin()), node, side)))
    for number, leaf in enumerate(ends):
        if leaf.parent >= 0:
            children[leaf.parent][leaf.side] = -1 - number
    values = (GO_ON, *stops.sizes)
    return GrowthTree(
        features=tuple(features),
        thresholds=tuple(thresholds),
        left=tuple(pair[0] for pair in children),
        right=tuple(pair[1] for pair in children),
        leaves=tuple(values[leaf.action] for leaf in ends),
        top_k=stops.top_k,
    )


def _best_split(
    codes: _Codes, flat: Floats, weights: Floats, rows: Ints, least: float
) -> tuple[float, int, int] | None:
    """The split of `rows` that lowers the summed cost most, both sides with at least `least` weight."""
    mine, mass = flat[rows], weights[rows]
    if mass.sum() < 2 * least:
        return None
    total, before = mine.sum(axis=0), mine.sum(axis=0).min()
    best: tuple[float, int, int] | None = None
    for feature, column in enumerate(codes.columns):
        code = column[rows]
        n = len(codes.edges[feature]) + 1
        lower = np.stack([np.bincount(code, weights=mine[:, a], minlength=n) for a in range(mine.shape[1])], axis=1)
        lower = lower.cumsum(axis=0)[:-1]
        below = np.bincount(code, weights=mass, minlength=n).cumsum()[:-1]
        after = lower.min(axis=1) + (total - lower).min(axis=1)
        after = np.where((below >= least) & (mass.sum() - below >= least), after, np.inf)
        if len(after) and before - after.min() > (best[0] if best else 1e-6 * abs(before)):
            best = (float(before - after.min()), feature, int(after.argmin()))
    return best
