"""Replay against live decoding, round for round, and speculative against plain output, token for token.

    python -m benchmarks.replay_exactness --backend onnx --prompts 50

Records the prompts, replays every policy, decodes every policy live. The last line is JSON: `policies`,
`prompts`, `rounds`, `rounds_equal`, `tokens`, `tokens_equal`, and the near ties with their margins.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.policies import exactness_policies, made_up_costs
from commands.opening import open_pair
from profiles.config import GridConfig, TuneConfig
from profiles.errors import LosslessError
from profiles.sampling import Sampling
from runtime.decode import generate
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from tuner.calibration import Sample, load_samples
from tuner.lossless import NEAR_TIE, compare_rounds, first_divergence
from tuner.plan import plan_pair
from tuner.profiling import manifest_of
from tuner.replay import Replay
from tuner.timing import Budget
from tuner.trace_store import load_record
from tuner.traces import Recorder

GRID = GridConfig(depth=6, widths=(1, 2, 3), verify_sizes=(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16))


def run(pair: Pair, config: TuneConfig, samples: list[Sample], policy_limit: int | None = None) -> dict[str, Any]:
    """Counts over all policies and prompts. Raises LosslessError for a difference that is no near tie."""
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(pair, Path(folder), manifest_of(pair, config, samples))
        recorder.record_all(samples, Budget(None))
        record = load_record(Path(folder))
    replay = Replay(record, made_up_costs(GRID, (0, int(record.context.max()))))
    by_id = {sample.id: sample for sample in samples}
    paper = GRID.sage_paper.source(GRID.depth, GRID.widths, GRID.max_nodes)
    sources = [*exactness_policies(record), paper][:policy_limit]
    policies = [compile_policy(s, GRID.verify_sizes, record.context_max) for s in sources]
    everyone = np.arange(len(record.samples))
    walks = [replay.walk(policy, everyone[record.end > record.start]) for policy in policies]
    counts = {"rounds": 0, "rounds_equal": 0, "tokens": 0, "tokens_equal": 0}
    ties: list[dict[str, Any]] = []
    for i, recorded in enumerate(record.samples):
        sample = by_id[recorded.id]
        prompt = pair.encoder.encode(sample.request())
        plain, sampling = list(recorded.output), record.sampling(i)
        for source, policy, walk in zip(sources, policies, walks, strict=True):
            live = generate(pair, prompt, policy, max_new_tokens=sample.max_new_tokens, sampling=sampling)
            counts["tokens"] += len(plain)
            found = first_divergence(pair, prompt, plain, live.tokens, sampling)
            if found is not None:
                if found.verdict == "bug":
                    raise LosslessError(f"{sample.id}, {source.name}: {found}")
                ties.append(
                    {"sample": sample.id, "policy": source.name, "token": found.position, "margin": found.margin}
                )
                continue
            counts["tokens_equal"] += len(plain)
            rounds = compare_rounds(live.rounds, policy, walk, i, record)
            counts["rounds"] += rounds.rounds
            counts["rounds_equal"] += rounds.equal
            if rounds.first_margin is not None:
                if rounds.first_margin >= NEAR_TIE:
                    raise LosslessError(
                        f"{sample.id}, {source.name}: live round {rounds.equal} is not the replayed one; margin "
                        f"{rounds.first_margin:.2e} nats"
                    )
                ties.append(
                    {"sample": sample.id, "policy": source.name, "round": rounds.equal, "margin": rounds.first_margin}
                )
    return {"policies": len(policies), "prompts": len(record.samples), **counts, "near_ties": ties}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-llava-ov")
    parser.add_argument("--backend", default="onnx", choices=("onnx", "torch"))
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    args = parser.parse_args()
    sampling = Sampling(temperature=args.temperature, top_p=args.top_p)
    config = TuneConfig(
        model=args.model, gpu="cpu", backend=args.backend, threads=args.threads, grid=GRID, sampling=sampling
    )
    plan, config, _ = plan_pair(config)
    path = plan.spec.calibration_path()
    if path is None:
        sys.exit(f"{args.model} ships no calibration set")
    result = run(open_pair(plan), config, load_samples(path, config.data)[: args.prompts])
    print(f"{result['policies']} policies x {result['prompts']} held-out prompts on {args.backend}, {sampling.label()}")
    print(f"rounds equal {result['rounds_equal']} of {result['rounds']}")
    print(f"tokens equal {result['tokens_equal']} of {result['tokens']}")
    for tie in result["near_ties"]:
        print(f"near tie: {tie}")
    print(json.dumps({"backend": args.backend, "sampling": sampling.model_dump(), **result}))


if __name__ == "__main__":
    main()
