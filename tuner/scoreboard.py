"""The scoreboard: every contestant replayed on the same prompts, with intervals, against plain, static and oracle.

All intervals are over prompts, which are resampled together for both sides of a ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from profiles.measurement import Interval, PolicyResult
from tuner.cost_model import Floats
from tuner.drafts import Ints
from tuner.statistics import ratio_interval
from tuner.yardsticks.base import Arena, Contestant, TablePolicy
from tuner.yardsticks.oracle import ORACLE, Oracle
from tuner.yardsticks.single import STATIC


def scoreboard(
    contestants: Sequence[Contestant],
    arena: Arena,
    samples: Ints,
    measured: Mapping[str, Interval] | None = None,
) -> tuple[PolicyResult, ...]:
    """A row per contestant over `samples`, in their order. The oracle and the best static tier must be among them.

    `measured` adds live speedups by name.
    """
    walks = {contestant.name: contestant.walk(samples) for contestant in contestants}
    time_ns = {name: walk.time_by_sample(samples) for name, walk in walks.items()}
    plain_ns = arena.replay.plain_time_ns(samples)

    def ratio(over: Floats, name: str) -> Interval:
        return ratio_interval(over, time_ns[name], "replayed")

    return tuple(
        PolicyResult(
            name=contestant.name,
            tiers=contestant.labels if isinstance(contestant, TablePolicy) else (contestant.detail,),
            verdict=contestant.policy.verdict() if isinstance(contestant, TablePolicy) else "adaptive",
            kind=_kind(contestant),
            acceptance_length=walks[contestant.name].acceptance_length,
            rounds=walks[contestant.name].rounds,
            speedup_replayed=float(plain_ns.sum() / time_ns[contestant.name].sum()),
            speedup_interval=ratio(plain_ns, contestant.name),
            gain_over_static=ratio(time_ns[STATIC], contestant.name),
            share_of_oracle=ratio(time_ns[ORACLE], contestant.name),
            speedup_measured=(measured or {}).get(contestant.name),
        )
        for contestant in contestants
    )


def document(results: Sequence[PolicyResult]) -> dict[str, dict[str, float]]:
    """Name to `speedup_replayed`, `acceptance_length` and `regret`, for a script. Names have no spaces."""
    return {
        row.name.replace(" ", "_").replace("-", "_"): {
            "speedup_replayed": row.speedup_replayed,
            "acceptance_length": row.acceptance_length,
            "regret": 1.0 - row.share_of_oracle.median if row.share_of_oracle else 0.0,
        }
        for row in results
    }


def _kind(contestant: Contestant) -> Literal["policy", "rule", "bound"]:
    if isinstance(contestant, Oracle):
        return "bound"
    return "policy" if isinstance(contestant, TablePolicy) else "rule"
