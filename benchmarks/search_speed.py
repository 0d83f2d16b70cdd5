"""Trials per minute of the search, its overhead and the time of replay reported apart. Aim: 2 000 in 3 minutes.

    python -m benchmarks.search_speed               a synthetic record of the real layout
    python -m benchmarks.search_speed --run RUN     the record of a run folder

A new study in a scratch journal. `replay_s` is the time inside the objective (compile and replay), `overhead_s`
everything else: the sampler, the journal, locks. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.policies import made_up_costs
from benchmarks.replay_speed import GRID, synthetic_record
from profiles.config import SearchConfig
from profiles.policy import CompiledPolicy
from tuner.drafts import Ints
from tuner.replay import Replay
from tuner.run_folder import RunFolder
from tuner.search import Search
from tuner.timing import Budget
from tuner.trace_store import load_record
from tuner.warm_start import first_trials
from tuner.yardsticks.base import Arena


class TimedReplay(Replay):
    """Replay that adds up the time of the objective."""

    seconds = 0.0

    def speedup(self, policy: CompiledPolicy, samples: Ints) -> float:
        start = time.perf_counter()
        value = super().speedup(policy, samples)
        self.seconds += time.perf_counter() - start
        return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="run folder; a synthetic record without it")
    parser.add_argument("--trials", type=int, default=2000)
    args = parser.parse_args()
    if args.run:
        run = RunFolder(args.run)
        table = run.costs()
        grid = run.config().grid.restricted(table.sizes("verify"))
        replay = TimedReplay(load_record(run.trace), table)
    else:
        replay, grid = TimedReplay(synthetic_record(), made_up_costs(GRID, (100, 300))), GRID
    settings = SearchConfig(trials=args.trials)
    with tempfile.TemporaryDirectory() as folder:
        search = Search(Path(folder) / "journal", grid, settings, replay, {"benchmark": "search_speed"})
        start = time.perf_counter()
        first = first_trials(Arena(replay, grid), search.space, settings)
        warm_s = time.perf_counter() - start
        replay.seconds = 0.0
        start = time.perf_counter()
        done = search.run(first, Budget(None))
        total_s = time.perf_counter() - start
    overhead_s = total_s - replay.seconds
    print(f"{done} trials in {total_s:.0f} s after {warm_s:.1f} s of placing {len(first)} first trials")
    print(f"replay {replay.seconds:.0f} s, search overhead {overhead_s:.0f} s")
    print(
        json.dumps(
            {
                "trials": done,
                "positions": replay.record.positions,
                "first_trials_s": warm_s,
                "replay_s": replay.seconds,
                "overhead_s": overhead_s,
                "total_s": total_s,
                "trials_per_min": 60 * done / total_s,
            }
        )
    )


if __name__ == "__main__":
    main()
