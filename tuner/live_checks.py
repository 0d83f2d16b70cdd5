"""Checks of a loaded pair: rounds that really draft, caches that really roll back, ends and tokens that are exact.

Every check takes a `Subject` and returns its verdict. `live_checks` is the list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from profiles.families import Modality
from runtime.backends.base import Model, Session
from runtime.decode import generate
from runtime.policy.tree import FloatArray, IntArray, ancestor_mask
from runtime.prompts import Prompt
from runtime.records import StepRecord
from tuner.findings import Verdict, failed, passed, skipped, warned
from tuner.lossless import Divergence, first_divergence
from tuner.probes import Probe, Subject

LiveCheck = Callable[[Subject], Verdict]
INERT_ACCEPTANCE = 1.02
"""Tokens per round, bonus included, up to which a draft proposes nothing that the target takes."""
ROUNDS = 3
WALK_STEPS = 5
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 6e-2}
"""Difference of logits between passes of another shape, as a share of the largest logit. A missing or misplaced row
moves a trained model's by far more."""
PARENTS = (-1, 0, 0, 1, 1, 2, 4)
DEPTHS = (0, 1, 1, 2, 2, 2, 3)
"""A root, two children, three grandchildren and a leaf at depth 3 below the second branch of the first child."""


def check_rounds(subject: Subject) -> Verdict:
    """A few rounds of the main probe: it decodes at all, drafts, and says something."""
    probe = subject.main
    got = subject.drafted(probe)
    rounds = got.rounds[:ROUNDS]
    if not rounds:
        return failed(f"'{probe.id}' ended after {len(got.tokens)} token, no round was needed; give longer prompts")
    if any(record.nodes == 0 for record in rounds):
        return failed(f"every round must draft; nodes were {[record.nodes for record in rounds]}")
    accepted = ", ".join(str(record.accepted) for record in rounds)
    return passed(
        f"{len(rounds)} rounds on {_article(probe.prompt.modality)} prompt of {got.prompt_tokens} tokens accepted "
        f"{accepted} of up to 4 drafted; it begins {got.text[:40]!r}"
    )


def check_acceptance(subject: Subject, modality: Modality) -> Verdict:
    """An inert draft costs time in every round; one that is inert on pictures alone is found here too."""
    outputs = [subject.drafted(probe) for probe in subject.of(modality)]
    rounds = sum(len(output.rounds) for output in outputs)
    if not rounds:
        return skipped(f"no {modality} prompt needed a round")
    length = sum(record.emitted for output in outputs for record in output.rounds) / rounds
    said = f"{length:.2f} tokens per round over {rounds} rounds of {len(outputs)} {modality} prompts"
    if length <= INERT_ACCEPTANCE:
        return failed(f"acceptance length > {INERT_ACCEPTANCE} must hold, got {said}: the draft is inert")
    return passed(said)


def check_tree_pass(subject: Subject) -> Verdict:
    """Every leaf of a tree pass has the logits that a plain prefill of its path has, on both models."""
    prompt, rng, worst = subject.main.prompt, np.random.default_rng(1), 0.0
    for role, model in _models(subject):
        tokens = rng.choice(subject.text_ids, size=len(PARENTS))
        session, _ = model.open(prompt, len(prompt) + len(PARENTS))
        rows = _tree_pass(session, tokens)
        for leaf in sorted(set(range(len(PARENTS))) - set(PARENTS)):
            error = _difference(rows[leaf], _prefill(model, prompt, tokens[_path(leaf)]))
            if not error <= _tolerance(model):
                return failed(
                    f"a tree pass must equal plain passes over its paths; the {role}'s logits at a leaf of depth "
                    f"{DEPTHS[leaf]} differ by {error:.1e} of the largest, allowed are {_tolerance(model):.0e}"
                )
            worst = max(worst, error)
    return passed(f"leaves of a tree have the logits of their paths on both models, within {worst:.0e}")


def check_rollback(subject: Subject) -> Verdict:
    """A walk of random accepts and rejects; after every step the cache equals a fresh prefill, on both models."""
    prompt, worst, committed_most = subject.main.prompt, 0.0, 0
    for role, model in _models(subject):
        rng = np.random.default_rng(2)
        committed = np.empty(0, dtype=np.int64)
        session, _ = model.open(prompt, len(prompt) + (WALK_STEPS + 1) * len(PARENTS))
        for step in range(1, WALK_STEPS + 1):
            base, tokens = session.length, rng.choice(subject.text_ids, size=len(PARENTS))
            _tree_pass(session, tokens)
            # the first step keeps the longest path, whose rows are not consecutive
            path = _path(len(PARENTS) - 1 if step == 1 else int(rng.integers(0, len(PARENTS))))
            kept = path if step == 1 else path[: int(rng.integers(0, len(path) + 1))]
            session.keep(base, kept)
            committed = np.append(committed, tokens[kept])
            probe = rng.choice(subject.text_ids, size=1)
            past = session.length
            rows = session.forward(probe, np.array([past]), np.ones((1, past + 1), dtype=np.bool_)).logits()
            session.keep(past, [])
            error = _difference(rows[0], _prefill(model, prompt, np.append(committed, probe)))
            if not error <= _tolerance(model):
                return failed(
                    f"after a rollback the cache must equal a fresh prefill; the {role}'s logits differ by {error:.1e} "
                    f"of the largest after step {step} ({len(kept)} of {len(PARENTS)} rows kept), allowed are "
                    f"{_tolerance(model):.0e}"
                )
            worst = max(worst, error)
        committed_most = len(committed)
    return passed(
        f"{WALK_STEPS} random steps, {committed_most} tokens kept: both caches equal fresh prefills, within {worst:.0e}"
    )


def check_exact_end(subject: Subject) -> Verdict:
    """Each token of an accepted path is made the end in turn; the output must stop at it, nothing after it."""
    probe, longest = _longest_round(subject)
    if longest is None or longest.accepted == 0:
        return skipped("no round accepted a drafted token, so no end can fall inside a path")
    output = subject.drafted(probe)
    for offset in range(1, longest.emitted + 1):
        end = output.tokens[longest.position + offset]
        expected = output.tokens[: output.tokens.index(end) + 1]
        pair = replace(subject.pair, eos_ids=frozenset({end}))
        got = generate(
            pair,
            probe.prompt,
            subject.policy,
            max_new_tokens=len(output.tokens),
            sampling=subject.sampling(probe),
        )
        if got.tokens != expected or got.finished != "eos":
            return failed(
                f"an output must stop at its end token; with id {end} as the end, at offset {offset} of an accepted "
                f"path, it must have {len(expected)} tokens and finish by 'eos', got {len(got.tokens)} and "
                f"'{got.finished}'"
            )
    return passed(f"the output stops exactly there at all {longest.emitted} offsets of an accepted path")


def check_lossless(subject: Subject) -> Verdict:
    """Speculative output equals plain output, token for token."""
    ties: list[str] = []
    for probe in subject.probes:
        plain, drafted = subject.plain(probe).tokens, subject.drafted(probe).tokens
        found = first_divergence(subject.pair, probe.prompt, plain, drafted, subject.sampling(probe))
        if found is None:
            continue
        said = f"'{probe.id}' differs at token {found.position}: {_shown(subject, found)}"
        if found.verdict == "bug":
            return failed(f"speculative output must equal plain output; {said}: a bug, not a tie", (probe.id,))
        ties.append(said)
    if ties:
        return warned(f"{len(ties)} of {len(subject.probes)} outputs differ from plain decoding by a tie; {ties[0]}")
    tokens = sum(len(subject.plain(probe).tokens) for probe in subject.probes)
    return passed(f"{tokens} tokens of {len(subject.probes)} prompts equal plain decoding")


def live_checks(subject: Subject) -> dict[str, LiveCheck]:
    """Names and checks, in the order in which they are worth reading; acceptance once per modality."""
    return {
        "live rounds": check_rounds,
        **{f"acceptance, {m}": partial(check_acceptance, modality=m) for m in subject.modalities()},
        "tree pass": check_tree_pass,
        "cache rollback": check_rollback,
        "exact end": check_exact_end,
        "losslessness": check_lossless,
    }


def _models(subject: Subject) -> tuple[tuple[str, Model], tuple[str, Model]]:
    return ("target", subject.pair.target), ("draft", subject.pair.draft)


def _longest_round(subject: Subject) -> tuple[Probe, StepRecord | None]:
    """The round that accepted most, with its probe; None when no probe needed a round."""
    rounds = [(probe, record) for probe in subject.probes for record in subject.drafted(probe).rounds]
    return max(rounds, key=lambda pair: pair[1].accepted, default=(subject.main, None))


def _tree_pass(session: Session, tokens: IntArray) -> FloatArray:
    """[n, vocab] logits of the tree `PARENTS` over n tokens; its rows stay in the cache."""
    past = session.length
    visible = np.ones((len(tokens), past + len(tokens)), dtype=np.bool_)
    visible[:, past:] = ancestor_mask(list(PARENTS))
    return session.forward(tokens, past + np.array(DEPTHS), visible).logits()


def _path(node: int) -> list[int]:
    """Nodes from the root to `node`."""
    path = [node]
    while PARENTS[path[0]] >= 0:
        path.insert(0, PARENTS[path[0]])
    return path


def _prefill(model: Model, prompt: Prompt, tokens: IntArray) -> FloatArray:
    """[vocab] logits after prompt and tokens, by the model's own prefill, positions included."""
    longer = prompt.extended(tokens)
    logits: FloatArray = model.open(longer, len(longer))[1].logits()[-1]
    return logits


def _difference(got: FloatArray, expected: FloatArray) -> float:
    """Largest difference as a share of the largest logit, at least 1; infinite when something is not a number."""
    error = float(np.abs(got - expected).max()) / max(1.0, float(np.abs(expected).max()))
    return error if np.isfinite(error) else np.inf


def _tolerance(model: Model) -> float:
    return TOLERANCES[model.dtype]


def _shown(subject: Subject, found: Divergence) -> str:
    first, second = (f"{i} {subject.pair.decode([i])!r}" for i in found.top2)
    return f"margin {found.margin:.1e} nats between {first} and {second}"


def _article(modality: Modality) -> str:
    return "an image" if modality == "image" else f"a {modality}"
