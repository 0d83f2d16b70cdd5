"""Cost tables: what every pass of a round takes here, measured in the rounds of the real decode loop.

Passes are not timed in isolation. A target pass evicts the draft's weights and the next draft pass pays for
it; plain decoding has the cache to itself. So real prompts are decoded under a set of tiers that covers every
verify size and width, and every pass of every round is a sample of its kind and size.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiles.config import GridConfig, TimingConfig
from profiles.errors import EnvelopeError, OutOfMemory
from profiles.measurement import CostTable, HostTime, PassKind, PassTime
from profiles.policy import CompiledPolicy, PolicySource, Tier, pool_size
from profiles.pruning import NO_PRUNING
from profiles.sampling import GREEDY, Sampling
from runtime.decode import OFF, generate, plain_policy
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.policy.tree import padded_size
from runtime.prompts import Prompt
from runtime.records import COLD_ROUNDS, Generation, StepRecord
from tuner.memory import memory_errors, release
from tuner.timing import Budget, warm_up

CATCH_UP_SIZES = (1, 2)
"""Committed tokens a draft can lag behind: the bonus, and one accepted leaf that was never expanded."""
PassSamples = dict[tuple[PassKind, int], list[tuple[int, int]]]
"""(kind, tokens in the pass) to (context, ns) of every pass seen."""
SMALLEST_TREE = 3
"""Verify size (root counted) below which there is nothing to tune: trees of one level only."""
OUTLIER = 2.0
"""A time slower than this multiple of what is usual for its kind, size and context was hit by foreign load. On a
quiet machine less than 1 % of passes are; they carry 0.2 % of the time."""


def context_grid(shortest: int, longest: int, points: int) -> list[int]:
    """Contexts of the table, end points included. Replay interpolates inside and refuses outside."""
    longest = max(longest, shortest + points - 1)
    return sorted({round(c) for c in np.linspace(shortest, longest, points)})


def covering_policies(grid: GridConfig, signal_edge: float, context_max: int) -> list[CompiledPolicy]:
    """Policies whose rounds make every pass that the grid allows; plain decoding is the first.

    One fixed tier per (verify size, width) where such a tree exists, as shallow as it can be, and one policy
    that is off above `signal_edge`: it makes the verification pass of a lone root. Under the strongest pruning of the
    grid the draft's passes are made once more, so that their times over short contexts are seen, not extrapolated.
    """
    tiers: list[Tier] = []
    for width in grid.widths:
        for size in grid.verify_sizes[1:]:
            depth = next((d for d in range(1, grid.depth + 1) if pool_size(d, width) >= size - 1), None)
            if depth is not None:
                tiers.append(Tier(depth=depth, width=width, nodes=size - 1))
        if grid.depth > 1:
            # the smallest tree with a frontier pass, which needs no more than two nodes where memory is short
            tiers.append(Tier(depth=2, width=width, nodes=2))
        # a deep tree as well: the host's time per level is a slope
        deep = grid.node_counts(grid.depth, width)
        tiers += [Tier(depth=grid.depth, width=width, nodes=deep[0])] if deep else []
    sources = [PolicySource(tiers=(tier,)) for tier in dict.fromkeys(tiers)]
    if 0.0 < signal_edge < 1.0:
        lone_root = PolicySource.model_validate(
            {
                "signal": {"kind": "one_minus_top1"},
                "edges": (signal_edge,),
                "tiers": (Tier(depth=1, nodes=1), OFF),
            }
        )
        sources.append(lone_root)
    strongest = max(grid.pruning.settings(), key=lambda pruning: pruning.ratio)
    if strongest != NO_PRUNING:
        drafts = [Tier(depth=2, width=width, nodes=2) for width in grid.widths] if grid.depth > 1 else [tiers[0]]
        sources += [PolicySource(tiers=(tier,), pruning=strongest) for tier in drafts]
    compiled = [compile_policy(source, grid.verify_sizes, context_max) for source in sources]
    return [plain_policy(), *compiled]


@dataclass(frozen=True)
class Measured:
    """Rounds of real outputs, one list per output, and the verify sizes that did not fit the device's memory."""

    outputs: list[list[StepRecord]]
    dropped_sizes: tuple[int, ...] = ()


def measure_rounds(
    pair: Pair,
    prompts: Sequence[tuple[Prompt, int]],
    policies: Sequence[CompiledPolicy],
    timing: TimingConfig,
    budget: Budget,
    on_progress: Callable[[float], None] = lambda share: None,
    sampling: Sampling = GREEDY,
) -> Measured:
    """Rounds of outputs under every policy, at least `timing.samples` warm rounds each. `prompts` are
    (prompt, max_new_tokens); `policies` begin with plain decoding.

    Policies take turns, so drift of the machine falls on all sizes alike. A spent budget ends it after the
    first turn, which every size needs. A policy that runs out of memory takes its verify size and all larger ones
    with it, what was timed of them included. Raises OutOfMemory when not even a tree of two nodes fits.
    """

    def run(prompt: Prompt, limit: int, policy: CompiledPolicy) -> Generation:
        return generate(pair, prompt, policy, max_new_tokens=limit, sampling=sampling)

    with memory_errors("plain decoding"):
        warm_up(lambda: float(run(*prompts[0], policies[0]).decode_ns), timing)
    outputs: list[list[list[StepRecord]]] = [[] for _ in policies]
    sizes = [padded_size(policy.max_nodes, policy.verify_sizes) for policy in policies]
    counts, fits = [0] * len(policies), max(sizes)
    shuffler, turn = random.Random(0), 0

    def waiting() -> list[int]:
        return [i for i, size in enumerate(sizes) if size <= fits and counts[i] < timing.samples]

    while waiting() and not (turn and budget.expired):
        order = waiting()
        shuffler.shuffle(order)
        for i in order:
            if sizes[i] > fits:
                continue
            try:
                with memory_errors(f"a round that verifies {sizes[i]} tokens"):
                    outputs[i].append(run(*prompts[(turn + i) % len(prompts)], policies[i]).rounds)
            except OutOfMemory:
                if max((size for size in sizes if size < sizes[i]), default=0) < SMALLEST_TREE:
                    raise
                fits = sizes[i] - 1
                release()
                continue
            counts[i] += max(len(outputs[i][-1]) - COLD_ROUNDS, 1)
            shares = [min(c / timing.samples, 1.0) for c, size in zip(counts, sizes, strict=True) if size <= fits]
            on_progress(float(np.mean(shares)))
        turn += 1
    return Measured(
        [rounds for made, size in zip(outputs, sizes, strict=True) if size <= fits for rounds in made],
        tuple(sorted({size for policy in policies for size in policy.verify_sizes if size > fits})),
    )


def warm_rounds(outputs: Sequence[Sequence[StepRecord]]) -> list[StepRecord]:
    """All rounds but the cold ones."""
    return [record for rounds in outputs for record in rounds[COLD_ROUNDS:]]


def pass_samples(records: Sequence[StepRecord], verify_sizes: tuple[int, ...]) -> PassSamples:
    """Every pass of every round by kind and size."""
    samples: PassSamples = defaultdict(list)
    for record in records:
        for kind, n, cached, time_ns in record.passes(verify_sizes):
            samples[kind, n].append((cached, time_ns))
    return dict(samples)


def cost_table(measured: Measured, verify_sizes: tuple[int, ...], contexts: list[int], threads: int) -> CostTable:
    """A table over `contexts`: per kind and size a robust line over context, evaluated at every context.

    Raises EnvelopeError when a verify size that fits memory was never seen.
    """
    verify_sizes = tuple(size for size in verify_sizes if size not in measured.dropped_sizes)
    samples = pass_samples(warm_rounds(measured.outputs), verify_sizes)
    _fill_missing(samples, verify_sizes)
    passes = []
    for (kind, n), seen in sorted(samples.items()):
        context, time_ns = (np.array(column, dtype=np.float64) for column in zip(*seen, strict=True))
        line = mean_line(context, time_ns, np.array(contexts, dtype=np.float64))
        residual = time_ns / np.interp(context, contexts, line)
        low, high = np.percentile(residual, [10, 90])
        passes += [
            PassTime(
                kind=kind,
                n=n,
                context=c,
                time_ns=float(ns),
                p10_ns=float(ns * low),
                p90_ns=float(ns * high),
                samples=len(seen),
            )
            for c, ns in zip(contexts, line, strict=True)
        ]
    return CostTable(
        mark="measured",
        threads=threads,
        passes=tuple(passes),
        host=fit_host(measured.outputs),
        dropped_sizes=measured.dropped_sizes,
    )


def mean_line(
    context: npt.NDArray[np.float64], time_ns: npt.NDArray[np.float64], at: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Mean time at contexts `at`: least squares over context, passes hit by foreign load left out.

    They are told by a line that they cannot bend: through the medians of the short and the long third of contexts
    (Tukey 1977, the resistant line). The slope is not negative (more context is never less work), and few samples
    make a flat line.
    """
    slope, level = 0.0, float(np.median(time_ns))
    lowest = 0.25 * level  # a steep line must not promise a pass for nothing
    sloped = len(context) >= 8 and np.ptp(context) > 0
    if sloped:
        short, _, long = np.array_split(np.argsort(context, kind="stable"), 3)
        run = float(np.median(context[long]) - np.median(context[short]))
        slope = max(float(np.median(time_ns[long]) - np.median(time_ns[short])) / run, 0.0) if run else 0.0
        level = float(np.median(time_ns - slope * context))
    for _ in range(2):  # the second line is drawn through what the first one, already unbent, calls usual
        calm = time_ns <= OUTLIER * np.maximum(level + slope * context, lowest)
        x, y = context[calm], time_ns[calm]
        if sloped and np.ptp(x) > 0:
            slope = max(float(np.polyfit(x, y, 1)[0]), 0.0)
        level = float(np.mean(y - slope * x))
        lowest = 0.25 * float(np.mean(y))
    line: npt.NDArray[np.float64] = np.maximum(level + slope * at, lowest)
    return line


def fit_host(outputs: Sequence[Sequence[StepRecord]]) -> HostTime:
    """Host time of plain rounds, and `round + level * levels` of drafting ones: weighted least squares on the
    calm mean of each level count, so that a burst of foreign load does not move the fit."""
    by_levels: dict[int, list[int]] = defaultdict(list)
    warm = warm_rounds(outputs)
    for record in warm:
        by_levels[record.levels].append(record.host_ns)
    if 0 not in by_levels or len(by_levels) < 3:
        raise EnvelopeError(f"plain rounds and two other level counts are needed, got levels {sorted(by_levels)}")
    drafted = sorted(levels for levels in by_levels if levels)
    means = np.array([_calm_mean(by_levels[levels]) for levels in drafted])
    weights = np.sqrt([len(by_levels[levels]) for levels in drafted])
    level_ns, round_ns = np.polyfit(np.array(drafted, dtype=float), means, 1, w=weights)
    return HostTime(
        plain_ns=_calm_mean(by_levels[0]),
        round_ns=max(float(round_ns), 0.0),
        level_ns=max(float(level_ns), 0.0),
        plain_cold_ns=_cold_extra([rounds for rounds in outputs if rounds and not rounds[0].levels]),
        draft_cold_ns=_cold_extra([rounds for rounds in outputs if rounds and rounds[0].levels]),
        rounds=len(warm),
    )


def _cold_extra(outputs: Sequence[Sequence[StepRecord]]) -> tuple[float, ...]:
    """Extra time of round 0, 1, ... of an output over the mean of its warm rounds of the same tier."""
    extra: list[list[float]] = [[] for _ in range(COLD_ROUNDS)]
    for rounds in outputs:
        for i, record in enumerate(rounds[:COLD_ROUNDS]):
            alike = [r.round_ns for r in rounds[COLD_ROUNDS:] if r.tier == record.tier and r.levels == record.levels]
            if len(alike) >= 3:
                extra[i].append(record.round_ns - _calm_mean(alike))
    return tuple(max(float(np.median(column)), 0.0) if column else 0.0 for column in extra)


def _calm_mean(times: Sequence[int]) -> float:
    values = np.array(times, dtype=np.float64)
    return float(values[values <= OUTLIER * np.median(values)].mean())


def _fill_missing(samples: PassSamples, verify_sizes: tuple[int, ...]) -> None:
    """Sizes that chance did not produce: a lone root is verified like two tokens at most, one unseen token is
    caught up at most like two. Anything else that is missing is an error."""
    for kind, n, upper in (("verify", 1, 2), ("catch_up", 1, 2), ("catch_up", 2, 1)):
        key: tuple[PassKind, int] = ("verify" if kind == "verify" else "catch_up", n)
        if key not in samples and (key[0], upper) in samples:
            samples[key] = samples[key[0], upper]
    missing = [size for size in verify_sizes if ("verify", size) not in samples]
    if missing or any(("catch_up", n) not in samples for n in CATCH_UP_SIZES) or ("plain", 1) not in samples:
        raise EnvelopeError(
            f"rounds of verify sizes {missing} were never made; give longer outputs or fewer verify_sizes"
        )
