"""The sections of a report that need the record: one output round by round, and what the neighbours of the shipped
policy would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from profiles.errors import EnvelopeError
from profiles.policy import MAX_WIDTH, CompiledPolicy, HistorySpec, PolicySource, Tier, pool_size
from runtime.policy.compile import compile_policy, shifted
from tuner.drafts import Ints
from tuner.outcomes import Record
from tuner.replay import Replay, Walk
from tuner.report.view import Dot, Dots, Round, Section, Span, Table
from tuner.statistics import ratio_interval

EXAMPLE_ROUNDS = 40
"""The example is the longest output of the report prompts with at most this many rounds."""
GATE_FACTORS = (0.5, 2.0)
EDGE_FACTORS = (0.8, 1.25)
LOWEST_GATE = 0.99
"""A gate that is doubled stays below 1."""


def example(policy: CompiledPolicy, replay: Replay, samples: Ints) -> Section:
    """One recorded output under the policy, as a strip of trees. Raises EnvelopeError when the record cannot say."""
    walk = replay.walk(policy, samples)
    sample, mine = _chosen(walk)
    record = replay.record
    rounds = tuple(_round(i, row, walk, policy, record) for i, row in enumerate(mine.tolist(), start=1))
    used: dict[str, int] = {}
    for made in rounds:
        used[made.tier] = used.get(made.tier, 0) + 1
    saved = record.samples[sample]
    numbers = Table(
        "rounds",
        ("round", "position", "signal", "tier", "levels", "nodes", "accepted"),
        tuple(
            (str(r.number), str(r.position), r.signal, r.tier, str(len(r.rows)), str(sum(r.rows)), str(r.accepted))
            for r in rounds
        ),
    )
    text = (
        f"Sample '{saved.id}' ({saved.modality}), {len(saved.output)} tokens in {len(rounds)} rounds: replayed, which "
        "is what the runtime does round for round. A row of dots is a level of the verified tree, the first level on "
        "top; filled dots are the accepted path.",
        "Tiers used: " + ", ".join(f"{tier} {n}×" for tier, n in sorted(used.items(), key=lambda item: -item[1])) + ".",
    )
    return Section("example", "One output, round by round", text, rounds=rounds, tables=(numbers,))


def sensitivity(source: PolicySource, policy: CompiledPolicy, replay: Replay, samples: Ints) -> Section:
    """Replayed time of the shipped policy over that of policies one step away from it, with intervals over prompts."""
    title = "Sensitivity of the optimum"
    shipped_ns = replay.walk(policy, samples).time_by_sample(samples)
    dots, rows = [Dot("as shipped", Span(1.0, 1.0, 1.0), strong=True)], []
    beyond: list[str] = []
    for near in neighbours(source, policy.verify_sizes):
        try:
            other = compile_policy(near.source, policy.verify_sizes, policy.context_max)
            walk = replay.walk(other, samples)
        except EnvelopeError:
            beyond.append(near.name)
            continue
        found = ratio_interval(shipped_ns, walk.time_by_sample(samples), "replayed")
        dots.append(Dot(near.name, Span(found.median, found.low, found.high)))
        rows.append((near.name, found.text(3), f"{walk.acceptance_length:.2f}", str(walk.rounds)))
    if not rows:
        return Section("sensitivity", title, missing="no neighbour of this policy is on record")
    faster = sum(dot.replayed is not None and dot.replayed.low > 1 for dot in dots)
    text = [
        f"Every setting moved by one step, replayed on the {len(samples)} report prompts, which chose nothing. Right "
        "of the line a neighbour is faster than what ships. "
        + (
            f"Certainly faster here: {faster} of {len(rows)}."
            if faster
            else f"None of {len(rows)} is certainly faster."
        )
    ]
    if beyond:
        text.append(f"Outside the record: {', '.join(beyond)}.")
    chart = Dots(
        "sensitivity",
        "one step away from what ships",
        f"Replayed speed of {len(rows)} neighbours of the shipped policy relative to it, {faster} certainly faster.",
        "times the shipped policy",
        tuple(dots),
        Table("neighbours", ("change", "relative speed", "acceptance length", "rounds"), tuple(rows)),
        lines=((1.0, "shipped"),),
    )
    return Section("sensitivity", title, tuple(text), charts=(chart,))


@dataclass(frozen=True)
class Neighbour:
    """A policy that differs from another in one setting."""

    name: str
    source: PolicySource


def neighbours(source: PolicySource, verify_sizes: tuple[int, ...]) -> Iterator[Neighbour]:
    """Policies one step away, those left out that are no policy or the same one."""
    for name, change in _changes(source, verify_sizes):
        try:
            near = PolicySource.model_validate({**source.model_dump(), "monotone": False, **change()})
        except ValueError:
            continue  # a depth of 0, a width without room for its nodes
        if near.model_copy(update={"monotone": source.monotone}) != source:
            yield Neighbour(name, near)


Change = Callable[[], dict[str, Any]]


def _changes(source: PolicySource, verify_sizes: tuple[int, ...]) -> Iterator[tuple[str, Change]]:
    def tiers(turn: Callable[[Tier], Tier]) -> Change:
        return lambda: {"tiers": [(turn(t) if t.depth else t).model_dump() for t in source.tiers]}

    step = HistorySpec(max_depth=max(max(t.depth for t in source.tiers) + 1, 1))
    yield "depth - 1", tiers(lambda t: shifted(t, step, -1))
    yield "depth + 1", tiers(lambda t: shifted(t, step, 1))
    yield "width - 1", tiers(lambda t: _wider(t, -1))
    yield "width + 1", tiers(lambda t: _wider(t, 1))
    yield "nodes: one verify size less", tiers(lambda t: _sized(t, verify_sizes, -1))
    yield "nodes: one verify size more", tiers(lambda t: _sized(t, verify_sizes, 1))
    if any(t.stop or any(t.stops) for t in source.tiers):
        yield "without stop gates", tiers(lambda t: t.model_copy(update={"stop": 0.0, "stops": ()}))
        for factor in GATE_FACTORS:
            yield f"stop gates × {factor:g}", tiers(lambda t, f=factor: _gated(t, f, 1.0))  # type: ignore[misc]
    else:
        yield "with stop 0.3", tiers(lambda t: t.model_copy(update={"stop": 0.3}))
    if any(any(t.keep) for t in source.tiers):
        yield "without keep gates", tiers(lambda t: t.model_copy(update={"keep": ()}))
        for factor in GATE_FACTORS:
            yield f"keep gates × {factor:g}", tiers(lambda t, f=factor: _gated(t, 1.0, f))  # type: ignore[misc]
    for factor in EDGE_FACTORS if source.edges else ():
        yield (
            f"edges × {factor:g}",
            lambda f=factor: {"edges": [min(edge * f, 1 - 1e-6) for edge in source.edges]},  # type: ignore[misc]
        )
    if source.edges:
        lag = 1 - source.signal.lag
        yield (
            "signal of the round before" if lag else "signal of this round",
            lambda: {"signal": {**source.signal.model_dump(), "lag": lag}},
        )
    if source.history is not None:
        yield "without history", lambda: {"history": None}
    if source.growth is not None:
        yield "without the growth tree", lambda: {"growth": None}


def _wider(tier: Tier, by: int) -> Tier:
    width = tier.width + by
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"1 <= width <= {MAX_WIDTH} must hold, got {width}")
    return tier.model_copy(update={"width": width, "nodes": min(tier.nodes, pool_size(tier.depth, width))})


def _sized(tier: Tier, verify_sizes: tuple[int, ...], by: int) -> Tier:
    """The tier with as many nodes as the next smaller or larger verify size has room for."""
    others = [size - 1 for size in verify_sizes if (size - 1 - tier.nodes) * by > 0]
    if not others:
        return tier
    nodes = min(others) if by > 0 else max(others)
    return tier.model_copy(update={"nodes": min(max(nodes, tier.depth), pool_size(tier.depth, tier.width))})


def _gated(tier: Tier, stop: float, keep: float) -> Tier:
    def scaled(gates: tuple[float, ...], factor: float) -> tuple[float, ...]:
        return tuple(min(gate * factor, LOWEST_GATE) for gate in gates)

    return tier.model_copy(
        update={
            "stop": scaled((tier.stop,), stop)[0],
            "stops": scaled(tier.stops, stop),
            "keep": scaled(tier.keep, keep),
        }
    )


def _chosen(walk: Walk) -> tuple[int, Ints]:
    """The example's sample and its rows of the walk."""
    samples, counts = np.unique(walk.samples, return_counts=True)
    fitting = counts <= EXAMPLE_ROUNDS
    best = int(np.where(fitting, counts, -1).argmax()) if fitting.any() else int(counts.argmin())
    rows: Ints = np.nonzero(walk.samples == samples[best])[0]
    return int(samples[best]), rows[:EXAMPLE_ROUNDS]


def _round(number: int, row: int, walk: Walk, policy: CompiledPolicy, record: Record) -> Round:
    at, tier = int(walk.at[row]), policy.tiers[walk.choice[row]]
    rows: tuple[int, ...] = ()
    if tier.depth:
        rows = tuple(level_nodes(record, tier, at, int(walk.levels[row]), int(walk.nodes[row])))
    drafts = policy.drafts()
    signal = float(record.signal(policy.signal.kind, policy.signal.top_k)[at]) if drafts else float("nan")
    return Round(
        number=number,
        position=at - int(record.start[walk.samples[row]]),
        tier=tier.label(),
        signal=f"{signal:.2f}" if drafts else "–",
        rows=rows,
        accepted=int(walk.accepted[row]),
    )


def level_nodes(record: Record, tier: Tier, at: int, levels: int, nodes: int) -> list[int]:
    """Verified nodes of every drafted level: the `nodes` best candidates by score, earlier levels first among equals,
    as `runtime.policy.tree.select` takes them."""
    scores = record.draft(tier.draft_rule).scores[at, :levels].astype(np.float64)
    level_of = np.repeat(np.arange(levels), scores.shape[1])
    best = np.argsort(-scores.reshape(-1), kind="stable")[:nodes]
    return [int(n) for n in np.bincount(level_of[best], minlength=levels)]
