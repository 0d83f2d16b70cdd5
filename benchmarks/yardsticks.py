"""The yardstick table of a run, computed again from its record and cost table alone. No model is loaded.

    python -m benchmarks.yardsticks --run runs/tiny-llava-ov-cpu

Every yardstick is fitted on the tuning prompts and replayed on the report prompts, as `sage_tune tune` does. Our own
policies are those of the run's last live comparison; a run that was never tuned is searched here by replay, with
`--trials`. Without `--run` the embedded pair is profiled first if `runs/tiny-llava-ov-cpu` is not there yet.

The last line is JSON: `policies` is name -> `speedup_replayed`, `acceptance_length`, `regret` (time that the oracle
would save, as a share), `tuned` among them, the best of our own by the prompts that choices may see; and
`gain_over_best_static` is its {median, low, high}, a ratio of replayed times.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from tuner.contest import SEARCHED, by_speed, choice_samples, computed_policies, fitted_yardsticks
from tuner.policy_search import search_policies
from tuner.progress import Progress
from tuner.run_folder import RunFolder
from tuner.scoreboard import document, scoreboard
from tuner.screens import scoreboard_table
from tuner.timing import Budget
from tuner.trace_store import load_record
from tuner.yardsticks.base import Arena, TablePolicy
from tuner.yardsticks.oracle import oracle

DEFAULT_RUN = Path("runs/tiny-llava-ov-cpu")


def own_policies(run: RunFolder, arena: Arena, trials: int, progress: Progress) -> list[TablePolicy]:
    """The adaptive policies that the run compared live, or new ones for a run that was never tuned."""
    known = {name: source for name, source in run.compared_policies().items() if name not in ("plain", "best static")}
    if known:
        return [TablePolicy(name, source, arena) for name, source in known.items()]
    config = run.config()
    search, _ = search_policies(
        config.model_copy(update={"search": config.search.model_copy(update={"trials": trials})}),
        run.study_place(config),
        run.trace,
        arena,
        Budget(None),
        progress,
    )
    searched = [TablePolicy(SEARCHED, found.source, arena) for found in search.candidates(1)]
    return [*searched, *computed_policies(arena, progress)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help=f"run folder, {DEFAULT_RUN} without it")
    parser.add_argument("--trials", type=int, default=400, help="trials of the search in a run without one")
    args = parser.parse_args()
    folder = args.run or DEFAULT_RUN
    if args.run is None and not (folder / "costs.json").exists():
        subprocess.run([sys.executable, "sage_tune.py", "profile", "--gpu", "cpu", "--out", str(folder)], check=True)
    run, progress = RunFolder(folder), Progress(Console(stderr=True))
    record, table = load_record(run.trace), run.costs()
    arena = Arena.measured(record, table, run.config().grid)
    yardsticks = fitted_yardsticks(arena, progress)
    names = {yardstick.name for yardstick in yardsticks}
    own = [policy for policy in own_policies(run, arena, args.trials, progress) if policy.name not in names]
    tuned = by_speed(own, arena, choice_samples(arena))[0]
    report = record.split_samples("report")
    results = scoreboard([*yardsticks, *own, oracle(arena)], arena, report)
    Console(width=140).print(scoreboard_table(results, f"{folder}: {len(report)} report prompts, replayed"))
    best = next(row for row in results if row.name == tuned.name)
    policies = document(results)
    policies["tuned"] = document([best])[best.name.replace(" ", "_")]
    gain = best.gain_over_static
    assert gain is not None
    print(
        json.dumps(
            {
                "run": str(folder),
                "prompts": len(report),
                "policies": policies,
                "tuned_is": tuned.name,
                "gain_over_best_static": {"median": gain.median, "low": gain.low, "high": gain.high},
            }
        )
    )


if __name__ == "__main__":
    main()
