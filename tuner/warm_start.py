"""First trials: what the record already knows to be good, so that the sampler starts from there.

Three kinds: the best fixed shapes with every early stop; per signal the best tier of every cell, found by dynamic
programming over cells under the space's own rules; and the chain depths that theory gives for the measured reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from profiles.config import SearchConfig
from profiles.policy import SignalSpec, Tier
from runtime.decode import OFF
from runtime.policy.signals import is_entropy
from tuner import theory
from tuner.cost_model import Floats
from tuner.drafts import Ints
from tuner.space import SearchSpace
from tuner.yardsticks.base import Arena, TablePolicy
from tuner.yardsticks.single import (
    best_chain,
    best_single,
    best_static,
    chain_tiers,
    grid_tiers,
    static_policy,
    stopping_tiers,
)

MAX_CELLS = 4
"""Most bins of a first trial; more cells leave too few prompts in each."""
_Bools = npt.NDArray[np.bool_]


def first_trials(arena: Arena, space: SearchSpace, search: SearchConfig) -> list[dict[str, Any]]:
    """Parameters of the first trials, distinct, the yardsticks first; for every pruning on record."""
    trials = []
    for pruning in arena.prunings:
        here = arena.under(pruning)
        trials += _first_trials(here, space.under(pruning), search)
    return [trial for i, trial in enumerate(trials) if trial not in trials[:i]]


def _first_trials(arena: Arena, space: SearchSpace, search: SearchConfig) -> list[dict[str, Any]]:
    static, chain = best_static(arena), best_chain(arena)
    shapes = [policy.source.tiers[0] for policy in (chain, static) if policy]
    stopping = best_stopping(arena, shapes, search.stops)
    singles = [*shapes, *stopping]
    trials = [space.single(tier) for tier in singles]
    tiers = [*grid_tiers(arena.grid), OFF, *stopping]
    costs = _Costs(arena, tiers, _token_ns(arena, singles))
    for signal in _signals(search, arena):
        for bins in range(2, min(search.max_bins, MAX_CELLS) + 1):
            cells = costs.by_cell(signal, space.equal_edges(signal, bins))
            if len(cells) < bins:
                continue  # the signal has too few values for as many bins
            for chosen in (best_cells(cells, tiers, space), _theoretical(arena, space, signal, bins)):
                if len(set(chosen)) > 1:
                    trials.append(space.binned(signal, chosen))
    return trials


def best_stopping(arena: Arena, shapes: Sequence[Tier], stops: Sequence[float]) -> list[Tier]:
    """The shapes with every early stop, and the deepest tree of every width with the stop that suits it best."""
    grid = arena.grid
    found = [tier for shape in shapes for tier in stopping_tiers(shape, stops)]
    for width in grid.widths:
        deepest = [Tier(depth=grid.depth, width=width, nodes=n) for n in grid.node_counts(grid.depth, width)]
        variants = [tier for shape in deepest for tier in stopping_tiers(shape, stops)]
        if variants:
            found.append(best_single("stopping", variants, arena).source.tiers[0])
    return list(dict.fromkeys(found))


def best_cells(costs: Floats, tiers: Sequence[Tier], space: SearchSpace) -> list[Tier]:
    """The tier of each cell, [bins, tiers] costs given, of least total cost among what the space can express."""
    allowed = np.array([[space.may_follow(before, after) for after in tiers] for before in tiers])
    first = np.array([tier.depth > 0 for tier in tiers])
    total = np.where(first, costs[0], np.inf)
    choices: list[Ints] = []
    for cell in costs[1:]:
        reach = np.where(allowed, total[:, None], np.inf)
        choices.append(reach.argmin(axis=0))
        total = reach.min(axis=0) + cell
    place = int(total.argmin())
    path = [place]
    for choice in reversed(choices):
        path.insert(0, int(choice[path[0]]))
    return [tiers[i] for i in path]


class _Costs:
    """Cost of every tier at every tuning position, summed by cell."""

    def __init__(self, arena: Arena, tiers: Sequence[Tier], token_ns: float) -> None:
        self._arena = arena
        record = arena.replay.record
        self._at = np.nonzero(np.isin(record.sample_of, arena.tune))[0]
        rounds, everywhere = arena.replay.rounds, np.arange(record.positions)
        columns = []
        for tier in tiers:
            row = np.array(arena.replay.row_of(tier, arena.grid.verify_sizes))
            after = arena.replay.catch_up_ns[rounds.ints("unseen", row, everywhere), everywhere]
            cost = rounds.time_ns(row, everywhere) + after - token_ns * (rounds.ints("accepted", row, everywhere) + 1)
            columns.append(cost[self._at])
        self._costs = np.stack(columns)

    def by_cell(self, signal: SignalSpec, edges: tuple[float, ...]) -> Floats:
        """[bins, tiers] total cost."""
        values = self._arena.replay.record.signal(signal.kind, signal.top_k)[self._at]
        cell = np.searchsorted(edges, values, side="right")
        return np.stack([self._costs[:, cell == i].sum(axis=1) for i in range(len(edges) + 1)])


def _token_ns(arena: Arena, tiers: Sequence[Tier]) -> float:
    """Time per token of the fastest of `tiers`: what a token costs elsewhere."""
    walks = [TablePolicy("", static_policy("", tier), arena).walk(arena.tune) for tier in tiers]
    return min(float(walk.time_ns.sum()) / walk.tokens for walk in walks)


def _signals(search: SearchConfig, arena: Arena) -> list[SignalSpec]:
    """Every signal of the space as it is, neither lagged nor smoothed; entropies at their middle k."""
    middle = sorted(search.top_ks)[len(search.top_ks) // 2]
    if 0 not in search.lags or 0.0 not in search.smoothings:
        return []
    return [
        SignalSpec(kind=kind, top_k=middle) if is_entropy(kind) else SignalSpec(kind=kind) for kind in search.signals
    ]


def _theoretical(arena: Arena, space: SearchSpace, signal: SignalSpec, bins: int) -> list[Tier]:
    """Chains as deep in each cell as the measured reach of their levels pays for (`theory.joint_depths`); none where
    the space cannot express them."""
    chains, record = chain_tiers(arena.grid), arena.replay.record
    if not chains:
        return []
    tuned = np.isin(record.sample_of, arena.tune)
    cell = np.searchsorted(space.equal_edges(signal, bins), record.signal(signal.kind, signal.top_k), side="right")
    if any(not (tuned & (cell == i)).any() for i in range(bins)):
        return []  # edges have three digits: a signal that hardly varies leaves a cell without a position
    accepted = record.outcome(chains[-1]).accepted
    levels = np.arange(1, len(chains) + 1)
    reach = np.array([(accepted[tuned & (cell == i), None] >= levels).mean(axis=0) for i in range(bins)])
    context = np.array([int(record.context.mean())])
    costs, host = arena.replay.costs, arena.replay.host
    verify = [
        float(costs.pass_ns("verify", next(s for s in arena.grid.verify_sizes if s > tier.nodes), context)[0])
        for tier in (OFF, *chains)
    ]
    drafted_over = np.array([int(record.draft_context.mean())])
    draft = float(costs.pass_ns("catch_up", 1, drafted_over)[0]), float(costs.pass_ns("frontier", 1, drafted_over)[0])
    level_ns = [(draft[min(i, 1)] + host.level_ns + verify[i + 1] - verify[i]) for i in range(len(chains))]
    plain_ns = float(costs.pass_ns("plain", 1, context)[0]) + host.plain_ns
    depths = theory.joint_depths(reach, level_ns, verify[0] + host.round_ns, plain_ns)
    tiers = [chains[depth - 1] if depth else OFF for depth in depths]
    if not tiers[0].depth or not all(space.may_follow(a, b) for a, b in pairwise(tiers)):
        return []
    return tiers
