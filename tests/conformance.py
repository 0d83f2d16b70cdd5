"""The kit that every backend must pass: tree passes, compaction, rollback, capacity, honest logits.

`check_backend(model, prompt)` runs all of it on one prompt. A third party's backend can be held to it too.
"""

from __future__ import annotations

import numpy as np
import pytest

from profiles.errors import CapacityError
from profiles.sampling import SamplingRegime
from runtime import filters
from runtime.backends.base import Model, Session, causal
from runtime.noise import GumbelNoise
from runtime.policy.tree import ancestor_mask
from runtime.prompts import Prompt

TOLERANCE = 1e-5
"""Per unit of the largest logit, at least one. Random small models move by only 3e-3 on a wrong position, so
equality must be held tightly; float32 noise grows with the logits of a trained one."""
#          0: root, 1 2 3: level 1, 4 5 (of 1), 6 (of 3), 7 (of 5)
PARENTS = [-1, 0, 0, 0, 1, 1, 3, 5]
DEPTHS = [0, 1, 1, 1, 2, 2, 2, 3]


def check_backend(model: Model, prompt: Prompt, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    check_tree_equals_paths(model, prompt, rng)
    check_compaction(model, prompt, rng)
    check_rollback_walk(model, prompt, rng)
    check_controls_fail(model, prompt, rng)
    check_rows_agree(model, prompt, rng)
    check_capacity(model, prompt)


def assert_equal(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE * scale(expected), err_msg=what)


def scale(logits: np.ndarray) -> float:
    return max(1.0, float(np.abs(logits).max()))


def open_session(model: Model, prompt: Prompt, extra: int = 64) -> Session:
    return model.open(prompt, len(prompt) + extra)[0]


def continue_with(session: Session, tokens: np.ndarray) -> np.ndarray:
    """Logits after every token of a plain continuation."""
    past, n = session.length, len(tokens)
    return session.forward(tokens, np.arange(past, past + n), causal(n, past)).logits()


def tree_pass(session: Session, tokens: np.ndarray, shift: int = 0, mask: np.ndarray | None = None) -> np.ndarray:
    past = session.length
    visible = np.ones((len(tokens), past + len(tokens)), dtype=np.bool_)
    visible[:, past:] = ancestor_mask(PARENTS) if mask is None else mask
    return session.forward(tokens, past + np.array(DEPTHS) + shift, visible).logits()


def path_to(node: int) -> list[int]:
    path = [node]
    while PARENTS[path[0]] >= 0:
        path.insert(0, PARENTS[path[0]])
    return path


def some_tokens(model: Model, rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(3, model.token_limit, size=n)


def check_tree_equals_paths(model: Model, prompt: Prompt, rng: np.random.Generator) -> None:
    tokens = some_tokens(model, rng, len(PARENTS))
    tree = tree_pass(open_session(model, prompt), tokens)
    for node in range(len(PARENTS)):
        alone = continue_with(open_session(model, prompt), tokens[path_to(node)])[-1]
        assert_equal(tree[node], alone, f"node {node} of the tree pass")


def check_compaction(model: Model, prompt: Prompt, rng: np.random.Generator) -> None:
    tokens = some_tokens(model, rng, len(PARENTS) + 1)
    session = open_session(model, prompt)
    past = session.length
    tree_pass(session, tokens[:-1])
    kept = path_to(7)
    session.keep(past, kept)
    assert session.length == past + len(kept)
    after = continue_with(session, tokens[-1:])[-1]
    fresh = continue_with(open_session(model, prompt), np.append(tokens[kept], tokens[-1]))[-1]
    assert_equal(after, fresh, "next token after compaction")


def check_rollback_walk(model: Model, prompt: Prompt, rng: np.random.Generator) -> None:
    """Random accepts and rejects: at every step the cache equals a fresh one with the same tokens."""
    session, committed = open_session(model, prompt), np.empty(0, dtype=np.int64)
    for _ in range(4):
        tokens, base = some_tokens(model, rng, len(PARENTS)), session.length
        tree_pass(session, tokens)
        kept = path_to(int(rng.integers(0, len(PARENTS))))[: int(rng.integers(0, 4))]
        session.keep(base, kept)
        committed = np.append(committed, tokens[kept])
        probe = some_tokens(model, rng, 1)
        got = continue_with(session, probe)[-1]
        session.keep(session.length - 1, [])
        fresh = continue_with(open_session(model, prompt), np.append(committed, probe))[-1]
        assert_equal(got, fresh, f"after {len(committed)} accepted tokens")


def check_controls_fail(model: Model, prompt: Prompt, rng: np.random.Generator) -> None:
    """Wrong positions and a wrong mask must change the logits, or the checks above prove nothing."""
    tokens = some_tokens(model, rng, len(PARENTS))
    right = tree_pass(open_session(model, prompt), tokens)
    shifted = tree_pass(open_session(model, prompt), tokens, shift=1)
    blind = tree_pass(open_session(model, prompt), tokens, mask=causal(len(tokens), 0))
    assert np.abs(right - shifted).max() > 10 * TOLERANCE * scale(right), "positions have no effect"
    assert np.abs(right[4:] - blind[4:]).max() > 10 * TOLERANCE * scale(right), "the mask has no effect"


def check_rows_agree(model: Model, prompt: Prompt, rng: np.random.Generator) -> None:
    session = open_session(model, prompt)
    n, past = 5, session.length
    rows = session.forward(some_tokens(model, rng, n), np.arange(past, past + n), causal(n, past))
    logits = rows.logits()[:, : model.token_limit]
    tokens, logprobs = rows.top(6)
    assert np.array_equal(rows.argmax(), logits.argmax(-1)) and np.array_equal(tokens[:, 0], rows.argmax())
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1, keepdims=True)) + exact.max(-1, keepdims=True)
    np.testing.assert_allclose(logprobs, np.sort(exact, axis=-1)[:, ::-1][:, :6], atol=1e-5)
    assert (logprobs <= 0).all() and (np.diff(logprobs, axis=-1) <= 0).all()
    regime, noise = SamplingRegime(temperature=0.7, top_k=20, top_p=0.9), GumbelNoise(1, logits.shape[1])
    which, seen = np.repeat(np.arange(n), 3), some_tokens(model, rng, 3 * n)
    drawn = noise.rows(np.arange(n), logits.shape[1])
    expected = filters.perturbed(filters.penalised(logits, which, seen, 1.3), regime, drawn)
    shaped_rows = rows.penalised(which, seen, 1.3).perturbed(regime, drawn)
    np.testing.assert_allclose(shaped_rows.logits(), expected, rtol=1e-5, atol=1e-5)


def check_capacity(model: Model, prompt: Prompt) -> None:
    session, _ = model.open(prompt, len(prompt) + 2)
    with pytest.raises(CapacityError, match="cache rows <= capacity"):
        continue_with(session, np.array([3, 4, 5]))
    assert session.length == len(prompt), "a refused pass must leave the cache alone"
    with pytest.raises(CapacityError, match="the prompt has"):
        model.open(prompt, len(prompt) - 1)
    with pytest.raises(CapacityError, match="maximal positions"):
        model.open(prompt, model.max_positions + 1)
    with pytest.raises(ValueError, match="rows must ascend"):
        session.keep(0, [1, 0])
