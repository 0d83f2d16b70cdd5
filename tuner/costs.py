"""Cost tables: what every pass of a round takes here, measured in the rounds of the real decode loop.

Passes are not timed in isolation. A target pass evicts the draft's weights and the next draft pass pays for
it; plain decoding has the cache to itself. So real prompts are decoded under a set of tiers that covers every
verify size and width, and every pass of every round is a sample of its kind and size.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from profiles.config import GridConfig, TimingConfig
from profiles.errors import EnvelopeError
from profiles.measurement import CostTable, HostTime, PassKind, PassTime
from profiles.policy import CompiledPolicy, PolicySource, Tier, pool_size
from profiles.sampling import GREEDY, Sampling
from runtime.decode import OFF, generate, plain_policy
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.policy.tree import padded_size
from runtime.prompts import Prompt
from runtime.records import Generation, StepRecord
from tuner.timing import Budget, warm_up

CATCH_UP_SIZES = (1, 2)
"""Committed tokens a draft can lag behind: the bonus, and one accepted leaf that was never expanded."""
PassSamples = dict[tuple[PassKind, int], list[tuple[int, int]]]
"""(kind, tokens in the pass) to (context, ns) of every pass seen."""
COLD_ROUNDS = 4
"""First rounds of an output, whose caches the prefill left cold. Their extra time is a term of its own."""
OUTLIER = 3.0
"""A pass slower than this multiple of its size's median was hit by foreign load and does not shape the line."""


def context_grid(shortest: int, longest: int, points: int) -> list[int]:
    """Contexts of the table, end points included. Replay interpolates inside and refuses outside."""
    longest = max(longest, shortest + points - 1)
    return sorted({round(c) for c in np.linspace(shortest, longest, points)})


def covering_policies(grid: GridConfig, signal_edge: float, context_max: int) -> list[CompiledPolicy]:
    """Policies whose rounds make every pass that the grid allows; plain decoding is the first.

    One fixed tier per (verify size, width) where such a tree exists, as shallow as it can be, and one policy
    that is off above `signal_edge`: it makes the verification pass of a lone root.
    """
    tiers: list[Tier] = []
    for width in grid.widths:
        for size in grid.verify_sizes[1:]:
            depth = next((d for d in range(1, grid.depth + 1) if pool_size(d, width) >= size - 1), None)
            if depth is not None:
                tiers.append(Tier(depth=depth, width=width, nodes=size - 1))
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
    compiled = [compile_policy(source, grid.verify_sizes, context_max) for source in sources]
    return [plain_policy(), *compiled]


def measure_rounds(
    pair: Pair,
    prompts: Sequence[tuple[Prompt, int]],
    policies: Sequence[CompiledPolicy],
    timing: TimingConfig,
    budget: Budget,
    on_progress: Callable[[float], None] = lambda share: None,
    sampling: Sampling = GREEDY,
) -> list[list[StepRecord]]:
    """Rounds of outputs under every policy, at least `timing.samples` warm rounds each. `prompts` are
    (prompt, max_new_tokens).

    Policies take turns, so drift of the machine falls on all sizes alike. A spent budget ends it after the
    first turn, which every size needs.
    """

    def run(prompt: Prompt, limit: int, policy: CompiledPolicy) -> Generation:
        return generate(pair, prompt, policy, max_new_tokens=limit, sampling=sampling)

    warm_up(lambda: float(run(*prompts[0], policies[0]).decode_ns), timing)
    outputs: list[list[StepRecord]] = []
    counts = [0] * len(policies)
    shuffler, turn = random.Random(0), 0
    while min(counts) < timing.samples and not (turn and budget.expired):
        order = [i for i in range(len(policies)) if counts[i] < timing.samples]
        shuffler.shuffle(order)
        for i in order:
            outputs.append(run(*prompts[(turn + i) % len(prompts)], policies[i]).rounds)
            counts[i] += max(len(outputs[-1]) - COLD_ROUNDS, 1)
            on_progress(float(np.mean([min(count / timing.samples, 1.0) for count in counts])))
        turn += 1
    return outputs


def warm_rounds(outputs: Sequence[Sequence[StepRecord]]) -> list[StepRecord]:
    """All rounds but the cold ones."""
    return [record for rounds in outputs for record in rounds[COLD_ROUNDS:]]


def pass_samples(records: Sequence[StepRecord], verify_sizes: tuple[int, ...]) -> PassSamples:
    """Every pass of every round by kind and size."""
    samples: PassSamples = defaultdict(list)
    for record in records:
        cached = record.context - 1
        if not record.draft_passes_ns:
            samples["plain", 1].append((cached, record.verify_ns))
            continue
        samples["catch_up", record.caught_up].append((cached, record.draft_passes_ns[0]))
        for time_ns in record.draft_passes_ns[1:]:
            samples["frontier", record.tier.width].append((cached, time_ns))
        samples["verify", padded_size(record.nodes, verify_sizes)].append((cached, record.verify_ns))
    return dict(samples)


def cost_table(
    outputs: Sequence[Sequence[StepRecord]], verify_sizes: tuple[int, ...], contexts: list[int], threads: int
) -> CostTable:
    """A table over `contexts`: per kind and size a robust line over context, evaluated at every context.

    Raises EnvelopeError when a verify size was never seen.
    """
    samples = pass_samples(warm_rounds(outputs), verify_sizes)
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
    return CostTable(mark="measured", threads=threads, passes=tuple(passes), host=fit_host(outputs))


def mean_line(
    context: npt.NDArray[np.float64], time_ns: npt.NDArray[np.float64], at: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Mean time at contexts `at`: least squares over context, passes hit by foreign load left out.

    The slope is not negative (more context is never less work), and few samples make a flat line.
    """
    calm = time_ns <= OUTLIER * np.median(time_ns)
    x, y = context[calm], time_ns[calm]
    slope = 0.0
    if len(x) >= 8 and np.ptp(x) > 0:
        slope = max(float(np.polyfit(x, y, 1)[0]), 0.0)
    level = float(np.mean(y - slope * x))
    lowest = 0.25 * float(np.mean(y))  # a steep line must not promise a pass for nothing
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
