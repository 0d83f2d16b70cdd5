"""Share of a round spent outside model passes, and the time of one controller decision.

    python -m benchmarks.host_overhead

Both are ratios or repeated calls within one run. Aims: 20 % of the round, 10 us per `choose`. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from benchmarks.policies import GROWTH
from commands.opening import open_pair
from profiles.config import DataConfig, TuneConfig
from profiles.policy import CompiledPolicy, HistorySpec, PolicySource, Tier
from runtime.decode import generate
from runtime.policy.compile import compile_policy
from runtime.policy.controller import Controller
from tuner.calibration import load_samples
from tuner.plan import plan_pair

ADAPTIVE = PolicySource(
    name="adaptive",
    edges=(0.05, 0.2, 0.4),
    tiers=(
        Tier(depth=6, width=1, nodes=6),
        Tier(depth=5, width=2, nodes=9),
        Tier(depth=4, width=2, nodes=7),
        Tier(depth=2, width=3, nodes=7),
    ),
    history=HistorySpec(window=8, low=1.0, high=2.5),
)
VERIFY_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)


def ladder(bins: int) -> CompiledPolicy:
    """A policy of this many bins with the history of the adaptive one."""
    edges = tuple((i + 1) / bins for i in range(bins - 1))
    tiers = tuple(Tier(depth=9 - i, nodes=9 - i) for i in range(bins))
    return compile_policy(PolicySource(edges=edges, tiers=tiers, history=ADAPTIVE.history), VERIFY_SIZES, 4096)


def choose_ns(policy: CompiledPolicy, calls: int = 20_000) -> float:
    """Median over batches of the time of one choose and observe."""
    controller = Controller(policy)
    batches = []
    for _ in range(20):
        start = time.perf_counter_ns()
        for i in range(calls // 20):
            tier = controller.choose((i % 100) / 100, 100)
            controller.observe(tier, i % (tier.depth + 1))
        batches.append((time.perf_counter_ns() - start) / (calls // 20))
    return statistics.median(batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="onnx", choices=("onnx", "torch"))
    parser.add_argument("--prompts", type=int, default=12)
    args = parser.parse_args()
    plan, config, _ = plan_pair(TuneConfig(gpu="cpu", backend=args.backend))
    pair = open_pair(plan)
    path = plan.spec.calibration_path()
    assert path is not None
    samples = load_samples(path, DataConfig())[: args.prompts]
    policies = {
        "chain 5": compile_policy(PolicySource(tiers=(Tier(depth=5, nodes=5),)), VERIFY_SIZES, 4096),
        "tree 5,2,9": compile_policy(PolicySource(tiers=(Tier(depth=5, width=2, nodes=9),)), VERIFY_SIZES, 4096),
        "adaptive": compile_policy(ADAPTIVE, VERIFY_SIZES, 4096),
        "growth tree": compile_policy(
            PolicySource(tiers=(Tier(depth=6, width=2, nodes=15),), growth=GROWTH), VERIFY_SIZES, 4096
        ),
    }
    shares: dict[str, float] = {}
    for name, policy in policies.items():
        rounds = []
        for sample in samples:
            prompt = pair.encoder.encode(sample.request())
            rounds += generate(pair, prompt, policy, max_new_tokens=sample.max_new_tokens).rounds[1:]
        shares[name] = statistics.median(r.host_ns / r.round_ns for r in rounds)
        host_us = statistics.median(r.host_ns for r in rounds) / 1e3
        print(f"{name:<12} {len(rounds)} rounds, host {host_us:.0f} us, {shares[name]:.1%} of the round")
    decision_ns = choose_ns(policies["adaptive"])
    print(f"choose + observe {decision_ns / 1e3:.2f} us")
    choose_us = {f"{bins} bins": choose_ns(ladder(bins)) / 1e3 for bins in (1, 3, 9)}
    print("by size of the policy: " + ", ".join(f"{name} {us:.2f} us" for name, us in choose_us.items()))
    print(
        json.dumps(
            {
                "backend": args.backend,
                "threads": config.threads,
                "host_share": shares["adaptive"],
                "host_shares": shares,
                "choose_us": decision_ns / 1e3,
                "choose_us_by_bins": choose_us,
            }
        )
    )


if __name__ == "__main__":
    main()
