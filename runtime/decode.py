"""The decode loop: draft a tree, select, verify it in one target pass, accept, commit. Read this first.

Plain decoding is the same loop under a policy whose every tier is `off`, so both arms of a comparison run the
same code and differ in nothing but the tree.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from profiles.errors import BadInput
from profiles.policy import CompiledPolicy, PolicySource, Tier
from profiles.sampling import GREEDY, Sampling
from runtime.backends.base import Rows, Session
from runtime.drafting import Drafter
from runtime.output import Output, TextCallback
from runtime.pair import Pair
from runtime.policy.accept import accept
from runtime.policy.compile import compile_policy
from runtime.policy.controller import Controller
from runtime.policy.growth import Growth
from runtime.policy.guard import Guarding
from runtime.policy.signals import needs_target, of_round
from runtime.policy.tree import Pool, Tree, ancestor_mask, padded_size, select
from runtime.prompts import Prompt
from runtime.pruning import pruned
from runtime.records import Generation, StepRecord
from runtime.sampling import shaped

OFF = Tier(depth=0, nodes=0)


def plain_policy() -> CompiledPolicy:
    """Plain autoregressive decoding, as a policy."""
    return compile_policy(PolicySource(name="plain", tiers=(OFF,)), verify_sizes=(1,), context_max=1 << 30)


def generate(
    pair: Pair,
    prompt: Prompt,
    policy: CompiledPolicy,
    *,
    max_new_tokens: int,
    stop_strings: Sequence[str] = (),
    on_text: TextCallback | None = None,
    sampling: Sampling = GREEDY,
    guard: Guarding | None = None,
) -> Generation:
    """Decode one request. The tokens are those of plain decoding under the same sampling and seed, whatever the
    policy. `guard` is the state of the policy's guard where it shall outlive the request.

    Raises BadInput for impossible limits, CapacityError when prompt, output and tree do not fit the model.
    """
    pair = shaped(pair, sampling)
    output = Output(pair.encoder.tokenizer, pair.eos_ids, max_new_tokens, stop_strings, on_text)
    controller = Controller(policy, guard)
    held, trips = (controller.guard.guarded, controller.guard.trips) if controller.guard else (0, 0)
    signal_k, ask_target = _signal_k(policy, pair), needs_target(policy)

    start = time.perf_counter_ns()
    capacity = len(prompt) + max_new_tokens + policy.verify_sizes[-1]
    positions = len(prompt) + max_new_tokens + policy.max_depth
    target, rows = pair.target.open(prompt, capacity, positions)
    unseen = rows.argmax().tolist()
    certainty = rows.top(signal_k)[1][0] if ask_target else None
    target_prefill_ns = time.perf_counter_ns() - start
    drafter, draft_prefill_ns, draft_dropped = None, 0, 0
    if controller.drafts:
        drafted = policy.max_width * max(policy.max_depth - 1, 0)
        start = time.perf_counter_ns()
        read = pruned(prompt, policy.pruning, lambda: target.prompt_attention(prompt))
        drafter = Drafter(pair.draft, read, len(prompt) + max_new_tokens + drafted + 2, positions, signal_k)
        draft_prefill_ns, draft_dropped = time.perf_counter_ns() - start, read.draft_dropped
    generation = Generation(
        tokens=output.tokens,
        text="",
        finished="length",
        prompt_tokens=len(prompt),
        target_prefill_ns=target_prefill_ns,
        draft_prefill_ns=draft_prefill_ns,
    )
    output.take(unseen)
    output.stream()

    while output.finished is None:
        start = time.perf_counter_ns()
        position, context, signal = len(output.tokens) - 1, target.length + 1, math.nan

        # draft: the root distribution gives the signal, the signal gives the tier
        tier, pool, nodes, caught_up = OFF, Pool(), 0, 0
        if drafter is not None:
            caught_up = len(unseen)
            signal, tree_signals = of_round(policy, drafter.root_logprobs(unseen), certainty)
            tier = controller.choose(signal, context)
            growth = Growth(policy, tier, tree_signals)
            pool = drafter.grow(tier, growth)
            nodes = growth.nodes()
        tree = select(pool, nodes, root_token=output.tokens[-1])

        # verify and accept
        rows, verify_ns = verify(target, tree, policy.verify_sizes)
        path, bonus = accept(tree, rows.argmax()[: len(tree)].tolist())
        if ask_target:
            certainty = rows.row(path[-1] if path else 0).top(signal_k)[1][0]

        # commit: keep accepted rows in both caches, emit
        target.keep(context - 1, [0, *path])
        accepted_tokens = [tree.tokens[node] for node in path]
        kept = drafter.commit(pool, [tree.pool_index[node] for node in path]) if drafter else 0
        unseen = [*accepted_tokens[kept:], bonus]
        emitted = output.take([*accepted_tokens, bonus])
        accepted = min(len(path), emitted)
        controller.observe(tier, accepted, len(drafter.passes_ns) if drafter else 0, len(tree) - 1)

        end = time.perf_counter_ns()
        generation.rounds.append(
            StepRecord(
                position=position,
                context=context,
                draft_context=context - draft_dropped,
                tier=tier,
                signal=signal,
                caught_up=caught_up,
                nodes=len(tree) - 1,
                accepted=accepted,
                emitted=emitted,
                draft_passes_ns=tuple(drafter.passes_ns) if drafter else (),
                verify_ns=verify_ns,
                round_ns=end - start,
            )
        )
        output.stream()

    generation.finished = output.finished
    generation.text = output.text()
    generation.outside_hull = controller.outside_hull
    if controller.guard is not None:
        generation.guarded = controller.guard.guarded - held
        generation.guard_trips = controller.guard.trips - trips
    return generation


def verify(target: Session, tree: Tree, verify_sizes: tuple[int, ...]) -> tuple[Rows, int]:
    """One target pass over a tree, padded to its verify size. Returns its rows, tree nodes first, and the time of
    the pass. Padding nodes see only the root and themselves; nothing sees them."""
    past, n = target.length, len(tree)
    size = padded_size(n - 1, verify_sizes)
    visible = np.zeros((size, past + size), dtype=np.bool_)
    visible[:, : past + 1] = True
    visible[:n, past : past + n] = ancestor_mask(tree.parents)
    padding = np.arange(n, size)
    visible[padding, past + padding] = True
    positions = np.full(size, past)
    positions[:n] += tree.depths
    start = time.perf_counter_ns()
    rows = target.forward(tree.tokens + tree.tokens[:1] * (size - n), positions, visible)
    verify_ns = time.perf_counter_ns() - start
    return rows, verify_ns


def _signal_k(policy: CompiledPolicy, pair: Pair) -> int:
    """Children of the root that are read every round. Raises BadInput when the vocabulary is smaller."""
    tree_k = policy.growth.top_k if policy.growth else 0
    needed = max(policy.max_width, policy.signal.top_k, tree_k)
    if needed > pair.draft.token_limit:
        raise BadInput(f"width and signal k <= vocabulary must hold, got {needed} > {pair.draft.token_limit}")
    return needed
