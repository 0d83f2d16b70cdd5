"""Policies replayed per second, with a warm tier cache, on 10 000 positions. Aim: 500.

    python -m benchmarks.replay_speed            a synthetic record of the real layout
    python -m benchmarks.replay_speed --run RUN  the record of a run folder

Half of the policies have a history window, so both kinds of walk count. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.policies import made_up_costs
from profiles.config import GridConfig
from profiles.policy import DraftRule, HistorySpec, PolicySource, Tier
from profiles.trace_schema import CHAIN, SampleRecord, TraceManifest
from runtime.policy.compile import compile_policy
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.run_folder import RunFolder
from tuner.trace_store import load_record

GRID = GridConfig()
VERIFY_SIZES, WIDTHS, DEPTH, SIGNAL_LOGPROBS = GRID.verify_sizes, GRID.widths, GRID.depth, GRID.signal_logprobs


def synthetic_record(samples: int = 100, length: int = 101, seed: int = 0) -> Record:
    """A record with the columns and shapes of a real one; acceptance falls with the signal."""
    rng = np.random.default_rng(seed)
    n = samples * (length - 1)
    position = np.tile(np.arange(length - 1), samples)
    unsure = rng.beta(0.6, 1.5, n)
    reach = rng.geometric(0.15 + 0.75 * unsure) - 1
    columns: dict[str, np.ndarray] = {
        "position": position,
        "root_logprobs": peaked(unsure),
        "target_logprobs": peaked(rng.beta(0.6, 1.5, n)),
        "true_rank": np.where(reach > 0, 0, 1),
    }
    for width in WIDTHS:
        candidates = width * width
        scores = -np.sort(rng.exponential(1.0, (n, DEPTH, candidates)).cumsum(axis=1), axis=2).astype(np.float32)
        scores[:, 0, width:] = -np.inf
        rank = np.minimum(rng.geometric(0.7, (n, DEPTH)) - 1, width - 1).astype(np.int32)
        inside = np.arange(DEPTH) < np.minimum(reach, length - 1 - position)[:, None]
        rank = np.where(inside, rank, -1)
        score = np.take_along_axis(scores, np.maximum(rank, 0)[..., None], axis=2)[..., 0]
        stem = f"beam_{width}"
        columns |= {
            f"{stem}.in_frontier": inside,
            f"{stem}.rank_in_level": rank,
            f"{stem}.score": np.where(inside, score, np.nan),
            f"{stem}.pool_scores": scores.reshape(n, -1),
        }
    columns[f"{CHAIN.stem()}.frontier_entropy"] = rng.exponential(1.0, (n, DEPTH)).astype(np.float32)
    manifest = TraceManifest(
        pair_digest="",
        data_digest="",
        backend="",
        dtype="float32",
        depth=DEPTH,
        rules=tuple(DraftRule(width=width) for width in WIDTHS),
        signal_logprobs=SIGNAL_LOGPROBS,
        versions={},
    )
    records = [
        SampleRecord(
            id=str(i),
            kind="synthetic",
            modality="text",
            split="tune",
            prompt_tokens=100,
            output=tuple(range(length)),
            finished="length",
        )
        for i in range(samples)
    ]
    return Record(manifest, records, pl.DataFrame({k: pl.Series(k, v) for k, v in columns.items()}))


def peaked(unsure: np.ndarray) -> np.ndarray:
    """[N, K] log-probabilities of distributions with the mass `0.9 * unsure` spread evenly below the best token."""
    rest = np.log(np.maximum(0.9 * unsure, 1e-12) / (SIGNAL_LOGPROBS - 1))
    rows = np.tile(rest[:, None], (1, SIGNAL_LOGPROBS))
    rows[:, 0] = np.log1p(-0.9 * unsure)
    return -np.sort(-rows, axis=1).astype(np.float32)


def random_policies(count: int, record: Record, seed: int = 0) -> list[PolicySource]:
    """Eight bins each, every tier within the grid; tiers come from a set of 24 as in a search that has settled."""
    rng = random.Random(seed)
    pool = [
        Tier(depth=d, width=w, nodes=rng.choice(GRID.node_counts(d, w))) for d in range(2, DEPTH + 1) for w in WIDTHS
    ][:24]
    quantiles = np.quantile(record.signal("entropy", 10), np.linspace(0.1, 0.9, 33))
    made = []
    for i in range(count):
        edges = tuple(sorted(float(q) for q in rng.sample(sorted(set(quantiles)), 7)))
        history = HistorySpec(window=rng.randint(1, 16), low=1.0, high=2.0, max_depth=DEPTH) if i % 2 else None
        made.append(PolicySource(edges=edges, tiers=tuple(rng.choices(pool, k=8)), history=history, monotone=False))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="run folder; a synthetic record without it")
    parser.add_argument("--policies", type=int, default=1000)
    args = parser.parse_args()
    if args.run:
        run = RunFolder(args.run)
        record, costs = load_record(run.trace), run.costs()
    else:
        record, costs = synthetic_record(), made_up_costs(GRID, (100, 300))
    sizes = tuple(costs.sizes("verify"))
    replay = Replay(record, costs)
    everyone = record.split_samples("tune")
    policies = [compile_policy(s, sizes, record.context_max) for s in random_policies(args.policies, record)]
    start = time.perf_counter()
    for policy in policies:
        replay.speedup(policy, everyone)
    cold_s = time.perf_counter() - start
    start = time.perf_counter()
    for policy in policies:
        replay.speedup(policy, everyone)
    warm_s = time.perf_counter() - start
    rate = len(policies) / warm_s
    print(f"{record.positions} positions, {len(policies)} policies: {rate:.0f} policies/s warm, {cold_s:.1f} s cold")
    print(
        json.dumps(
            {
                "record": str(args.run) if args.run else "synthetic",
                "positions": record.positions,
                "policies": len(policies),
                "policies_per_s": rate,
                "cold_s": cold_s,
            }
        )
    )


if __name__ == "__main__":
    main()
