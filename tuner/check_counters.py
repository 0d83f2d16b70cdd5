"""Stage two of `check`: the same prompts, decoded again, give the same tokens in the same rounds.

Greedy float32 decoding is a function of weights, code and prompt: the counters must be exactly those of the profile
(they are taken from prompts whose every decision is clear). In other dtypes passes round more coarsely: an output may
then leave the saved one where the target's first two choices lie close together, and tokens per round may move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.errors import LosslessError
from profiles.gate import GateLimits, PromptCounters
from profiles.policy import CompiledPolicy
from profiles.provenance import digest
from profiles.sampling import Sampling
from runtime.backends.base import causal
from runtime.decode import generate, plain_policy
from runtime.pair import Pair
from runtime.prompts import Prompt
from runtime.records import Generation
from runtime.sampling import shaped
from tuner.findings import Verdict, failed, passed, warned
from tuner.lossless import NEAR_TIE, require_equal


@dataclass(frozen=True)
class GateJob:
    """One prompt of a gate, ready to decode."""

    id: str
    prompt: Prompt
    max_new_tokens: int
    sampling: Sampling

    def decode(self, pair: Pair, policy: CompiledPolicy) -> Generation:
        return generate(pair, self.prompt, policy, max_new_tokens=self.max_new_tokens, sampling=self.sampling)


def check_counters(
    pair: Pair, policy: CompiledPolicy, saved: tuple[PromptCounters, ...], jobs: dict[str, GateJob], limits: GateLimits
) -> Verdict:
    """Decode every prompt with counters and compare. `fail` names the first prompt and round that differ."""
    exact = pair.target.dtype == pair.draft.dtype == "float32"
    then, now, ties = [], [], []
    for counters in saved:
        job = jobs[counters.id]
        found = job.decode(pair, policy)
        if (len(found.tokens), digest(found.tokens)) != (counters.output_tokens, counters.output_digest):
            lead, problem = _other_output(pair, job, found, NEAR_TIE if exact else limits.half_margin)
            if problem:
                return failed(f"{counters.id}: {problem}", (counters.id,))
            ties.append(f"{counters.id} (lead {lead:.1e} nats)")
            continue
        accepted = tuple(step.accepted for step in found.rounds)
        if exact and accepted != counters.accepted:
            return failed(f"{counters.id}: {_first_difference(counters.accepted, accepted)}", (counters.id,))
        then.append((counters.output_tokens - 1, len(counters.accepted)))
        now.append((len(found.tokens) - 1, len(accepted)))
    if not then:
        return failed(f"the outputs of all {len(saved)} prompts differ from the saved ones")
    was, found_length = (float(np.sum([t for t, _ in rows]) / np.sum([r for _, r in rows])) for rows in (then, now))
    text = (
        f"{len(then)} prompts, {sum(r for _, r in now)} rounds, {found_length:.2f} tokens per round (saved {was:.2f})"
    )
    if abs(found_length / was - 1) > limits.acceptance:
        return failed(f"{text}; they may differ by {limits.acceptance:.0%}")
    text += ", every round as saved" if exact else ""
    return warned(f"{text}; near ties: {', '.join(ties)}", tuple(ties)) if ties else passed(text)


def _other_output(pair: Pair, job: GateJob, found: Generation, closest: float) -> tuple[float, str | None]:
    """The smallest lead of the target's choices along an output that is not the saved one, and what is wrong when no
    tie explains it. Plain decoding says first whether it is the target's output at all."""
    plain = job.decode(pair, plain_policy()).tokens
    try:
        require_equal(pair, job.prompt, plain, found.tokens, "the policy", job.sampling)
    except LosslessError as error:
        return 0.0, str(error)
    lead = least_lead(pair, job, plain)
    if lead < closest:
        return lead, None
    return lead, (
        f"the target's own output is not the saved one, and its choices lead by {lead:.1e} nats or more, so this is no "
        f"near tie (below {closest:g})"
    )


def least_lead(pair: Pair, job: GateJob, output: list[int]) -> float:
    """The smallest lead of the target's first choice over its second along an output, in nats."""
    session, first = shaped(pair, job.sampling).target.open(job.prompt, len(job.prompt) + len(output))
    tops = [first.top(2)[1]]
    if len(output) > 1:
        start, n = session.length, len(output) - 1
        tops.append(session.forward(output[:-1], np.arange(start, start + n), causal(n, start)).top(2)[1])
    best = np.concatenate(tops)
    return float((best[:, 0] - best[:, 1]).min())


def _first_difference(saved: tuple[int, ...], found: tuple[int, ...]) -> str:
    """The first round that differs, in words."""
    at = next((i for i, (a, b) in enumerate(zip(saved, found, strict=False)) if a != b), None)
    if at is None:
        return f"{len(found)} rounds, saved {len(saved)}"
    return f"round {at + 1} accepted {found[at]} draft tokens, saved {saved[at]}; the output is the same"
