"""What sharing the noise is worth: acceptance with the target's noise in the draft, with other noise, and with none.

    python -m benchmarks.shared_noise --prompts 40

Tokens are the same in all three; only acceptance differs. For a single child at single positions the shares are also
held against theory: (1 - TV) / (1 + TV) from below for shared noise (Daliri, Musco, Suresh 2024), 1 - TV from above for
any rule, with TV the total variation distance of target and draft. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from commands.opening import open_pair
from profiles.config import TuneConfig
from profiles.errors import LosslessError
from profiles.policy import CompiledPolicy, PolicySource, Tier
from profiles.sampling import Sampling
from runtime import filters
from runtime.backends.base import Model, causal
from runtime.decode import generate
from runtime.noise import GumbelNoise, gumbel
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.policy.tree import FloatArray, IntArray
from runtime.prompts import Prompt
from runtime.sampling import ShapedModel
from tuner.calibration import Sample, load_samples
from tuner.plan import plan_pair

TEMPERATURES = (0.3, 0.7, 1.0)
ARMS = ("shared", "independent", "none")
TIERS = (Tier(depth=5, nodes=5), Tier(depth=4, width=3, nodes=11))
VERIFY_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)
SEED = 7
POSITIONS = 150
"""Positions at which a single child is held against the bounds."""
STANDARD_ERRORS = 4.0
"""How far a measured share must be on the wrong side of a bound to count."""


class Silence:
    """No noise: the draft proposes its most probable tokens."""

    def rows(self, positions: IntArray, vocab: int) -> FloatArray:
        return np.zeros((len(positions), vocab), dtype=np.float32)


def arm_pair(pair: Pair, sampling: Sampling, arm: str) -> Pair:
    """A pair whose target samples with `sampling` and whose draft sees the noise of an arm."""
    vocab = max(pair.target.token_limit, pair.draft.token_limit)
    shared = GumbelNoise(sampling.seed, vocab)
    other = GumbelNoise(sampling.for_sample("another stream").seed, vocab)
    noise = {"shared": shared, "independent": other, "none": Silence()}[arm]
    return replace(
        pair, target=ShapedModel(pair.target, sampling, shared), draft=ShapedModel(pair.draft, sampling, noise)
    )


def acceptance(pair: Pair, samples: list[Sample], sampling: Sampling, policy: CompiledPolicy) -> dict[str, float]:
    """Tokens per round of every arm, bonus included. Raises LosslessError when the arms' tokens differ."""
    tokens, rounds = dict.fromkeys(ARMS, 0), dict.fromkeys(ARMS, 0)
    for sample in samples:
        prompt, mine, outputs = pair.encoder.encode(sample.request()), sampling.for_sample(sample.id), []
        for arm in ARMS:
            got = generate(arm_pair(pair, mine, arm), prompt, policy, max_new_tokens=sample.max_new_tokens)
            outputs.append(got.tokens)
            tokens[arm] += len(got.tokens) - 1
            rounds[arm] += len(got.rounds)
        if any(output != outputs[0] for output in outputs):
            raise LosslessError(f"{sample.id}: the draft's noise changed the output")
    return {arm: tokens[arm] / rounds[arm] for arm in ARMS}


def next_logits(model: Model, prompt: Prompt, output: IntArray) -> FloatArray:
    """[T, vocab] the model's logits before every token of an output."""
    n = len(output) - 1
    session, first = model.open(prompt, len(prompt) + n)
    parts = [first.logits()]
    if n:
        past = session.length
        parts.append(session.forward(output[:-1], np.arange(past, past + n), causal(n, past)).logits())
    return np.concatenate(parts)


def single_child(pair: Pair, samples: list[Sample], sampling: Sampling, draws: int) -> dict[str, Any]:
    """Shares of a single drafted child that is accepted, by the draft's noise, and the bounds at the same positions."""
    vocab = pair.draft.token_limit
    noise = np.stack([gumbel(seed, 0, vocab) for seed in range(draws)])
    found: list[tuple[float, ...]] = []
    for sample in samples:
        if len(found) >= POSITIONS:
            break
        prompt, mine = pair.encoder.encode(sample.request()), sampling.for_sample(sample.id)
        tree = compile_policy(PolicySource(tiers=TIERS[:1]), VERIFY_SIZES, 1 << 30)
        tokens = generate(pair, prompt, tree, max_new_tokens=sample.max_new_tokens, sampling=mine).tokens
        both = [next_logits(model, prompt, np.array(tokens))[:, :vocab] for model in (pair.target, pair.draft)]
        for target, draft in zip(*(filters.filtered(logits, sampling) for logits in both), strict=True):
            p, q = (np.exp(row.astype(np.float64) - row.max()) for row in (target, draft))
            p, q = p / p.sum(), q / q.sum()
            variation = 0.5 * float(np.abs(p - q).sum())
            shared = float(((target + noise).argmax(axis=1) == (draft + noise).argmax(axis=1)).mean())
            found.append((shared, float(p @ q), float(p[q.argmax()]), variation))
    shared, independent, none, variation = np.array(found[:POSITIONS]).T
    lower, upper = (1 - variation) / (1 + variation), 1 - variation

    def beyond(bound: np.ndarray, side: int) -> int:
        # the error that a share has whose true value is the bound
        error = np.sqrt(np.maximum(bound * (1 - bound), 1.0 / draws) / draws)
        return int((side * (shared - bound) > STANDARD_ERRORS * error).sum())

    return {
        "positions": len(shared),
        "draws": draws,
        "shared": float(shared.mean()),
        "independent": float(independent.mean()),
        "none": float(none.mean()),
        "lower_bound": float(lower.mean()),
        "upper_bound": float(upper.mean()),
        "below_lower_bound": beyond(lower, -1),
        "above_upper_bound": beyond(upper, +1),
    }


def run(
    pair: Pair, samples: list[Sample], temperatures: tuple[float, ...] = TEMPERATURES, draws: int = 2000
) -> list[dict[str, Any]]:
    """One row per temperature."""
    rows = []
    for temperature in temperatures:
        sampling = Sampling(temperature=temperature, seed=SEED)
        policies = {t.label(): compile_policy(PolicySource(tiers=(t,)), VERIFY_SIZES, 1 << 30) for t in TIERS}
        rows.append(
            {
                "temperature": temperature,
                "acceptance_length": {
                    label: acceptance(pair, samples, sampling, policy) for label, policy in policies.items()
                },
                "single_child": single_child(pair, samples, sampling, draws),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-llava-ov")
    parser.add_argument("--backend", default="onnx", choices=("onnx", "torch"))
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    plan, config, _ = plan_pair(TuneConfig(model=args.model, gpu="cpu", backend=args.backend, threads=args.threads))
    path = plan.spec.calibration_path()
    if path is None:
        sys.exit(f"{args.model} ships no calibration set")
    samples = load_samples(path, config.data)[: args.prompts]
    rows = run(open_pair(plan), samples, draws=args.draws)
    for row in rows:
        for label, arms in row["acceptance_length"].items():
            shown = ", ".join(f"{arm} {value:.2f}" for arm, value in arms.items())
            print(f"T {row['temperature']:g}  tier {label}: acceptance length {shown}")
        child = row["single_child"]
        print(
            f"T {row['temperature']:g}  single child accepted: shared {child['shared']:.3f} within "
            f"[{child['lower_bound']:.3f}, {child['upper_bound']:.3f}], independent {child['independent']:.3f}, none "
            f"{child['none']:.3f}; outside the bounds at {child['below_lower_bound'] + child['above_upper_bound']} of "
            f"{child['positions']} positions"
        )
    print(json.dumps({"backend": args.backend, "prompts": len(samples), "rows": rows}))


if __name__ == "__main__":
    main()
