"""Prompt lookup: a real distribution that depends on the visible prefix alone, through everything above it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.draft_kinds import LookupSettings
from profiles.errors import CapacityError
from profiles.policy import PolicySource, Tier
from profiles.sampling import GREEDY, SamplingRegime
from runtime.backends.base import causal
from runtime.decode import generate
from runtime.noise import GumbelNoise
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.policy.signals import compute
from runtime.prompt_lookup import LookupModel
from runtime.prompts import Prompt
from tests import conformance
from tests.fakes import EOS, VOCAB, FakeModel, fake_pair, fake_prompt
from tests.records import SAMPLED
from tests.strategies import VERIFY_SIZES, sources
from tests.test_replay import costs, recorded
from tuner.lossless import compare_rounds
from tuner.outcomes import Record
from tuner.replay import Replay

SMALL_VOCAB = 8
lookup_settings = st.builds(
    lambda low, more, prior, recency: LookupSettings(min_ngram=low, max_ngram=low + more, prior=prior, recency=recency),
    st.integers(1, 3),
    st.integers(0, 3),
    st.floats(0.05, 1.0),
    st.floats(0.1, 1.0),
)
texts = st.lists(st.integers(0, SMALL_VOCAB - 1), min_size=1, max_size=30)


def model(vocab: int = SMALL_VOCAB, **given: float) -> LookupModel:
    return LookupModel(LookupSettings.model_validate(given), vocab, 4096, "float32")


def probabilities(tokens: list[int], vocab: int = SMALL_VOCAB, **given: float) -> np.ndarray:
    rows = model(vocab, **given).open(prompt(tokens), len(tokens))[1]
    return np.exp(rows.logits()[0].astype(np.float64))


def prompt(tokens: list[int]) -> Prompt:
    return Prompt(np.array(tokens, dtype=np.int64), {}, "text")


def reference(tokens: list[int], settings: LookupSettings, vocab: int) -> np.ndarray:
    """The formula of the module, written down once more without arrays."""
    p = [1.0 / vocab] * vocab
    for n in range(settings.min_ngram, settings.max_ngram + 1):
        places = [i for i in range(n - 1, len(tokens) - 1) if tokens[i - n + 1 : i + 1] == tokens[len(tokens) - n :]]
        if n > len(tokens) or not places:
            break
        count = [0.0] * vocab
        for rank, i in enumerate(reversed(places)):
            count[tokens[i + 1]] += settings.recency**rank
        total = sum(count) + settings.prior
        p = [(c + settings.prior * q) / total for c, q in zip(count, p, strict=True)]
    return np.array(p)


@given(texts, lookup_settings)
def test_the_distribution_is_the_formula_and_sums_to_one(tokens: list[int], chosen: LookupSettings) -> None:
    found = probabilities(tokens, **chosen.model_dump())
    np.testing.assert_allclose(found, reference(tokens, chosen, SMALL_VOCAB), rtol=1e-6)
    assert found.sum() == pytest.approx(1.0, abs=1e-6) and (found > 0).all()


@given(texts, lookup_settings)
def test_sparse_rows_are_the_dense_ones(tokens: list[int], chosen: LookupSettings) -> None:
    """Any k, ties by id, as `NumpyRows` would read the same logits."""
    n = len(tokens)
    session, _ = LookupModel(chosen, SMALL_VOCAB, 4096, "float32").open(prompt(tokens[:1]), n)
    if n == 1:
        return
    rows = session.forward(tokens[1:], np.arange(1, n), causal(n - 1, 1))
    logits = rows.logits()
    order = np.argsort(-logits, axis=-1, kind="stable")
    for k in range(1, SMALL_VOCAB + 1):
        found, logprobs = rows.top(k)
        assert np.array_equal(found, order[:, :k])
        assert np.array_equal(logprobs, np.take_along_axis(logits, order[:, :k], axis=-1))
    assert np.array_equal(rows.argmax(), order[:, 0])
    assert np.array_equal(rows.row(n - 2).logits(), logits[-1:])


@given(texts, lookup_settings, st.data())
def test_rows_do_not_depend_on_what_else_is_in_a_pass(
    tokens: list[int], chosen: LookupSettings, data: st.DataObject
) -> None:
    """Bit for bit: one prefill, one pass of all tokens, token by token, and many trees at many places together."""
    lookup, n = LookupModel(chosen, SMALL_VOCAB, 4096, "float32"), len(tokens)
    alone = np.concatenate([lookup.open(prompt(tokens[:i]), i)[1].logits() for i in range(1, n + 1)])
    session, first = lookup.open(prompt(tokens[:1]), n + 24)
    rest = session.forward(tokens[1:], np.arange(1, n), causal(n - 1, 1)).logits() if n > 1 else alone[:0]
    assert np.array_equal(np.concatenate([first.logits(), rest]), alone)

    # branches of two drafted tokens at drawn places, all first tokens in one pass and all second ones in another
    places = data.draw(st.lists(st.integers(1, n), min_size=1, max_size=12))
    branch = [data.draw(st.tuples(*[st.integers(0, SMALL_VOCAB - 1)] * 2)) for _ in places]
    at = np.array(places)
    prefix = np.arange(n) < at[:, None]
    own = np.eye(len(at), dtype=np.bool_)
    session.forward([b[0] for b in branch], at, np.concatenate([prefix, own], axis=1))
    below = session.forward([b[1] for b in branch], at + 1, np.concatenate([prefix, own, own], axis=1)).logits()
    for i, place in enumerate(places):
        path = [*tokens[:place], *branch[i]]
        assert np.array_equal(below[i], lookup.open(prompt(path), len(path))[1].logits()[0])


def test_the_longest_match_wins() -> None:
    """`1 2 3` was followed by 4 once, long ago; `3` alone by 5 many times since."""
    tokens = [1, 2, 3, 4, *[6, 3, 5] * 5, 0, 1, 2, 3]
    assert probabilities(tokens).argmax() == 4
    assert probabilities(tokens, max_ngram=1).argmax() == 5


@given(texts, lookup_settings)
def test_the_best_child_followed_the_longest_match(tokens: list[int], chosen: LookupSettings) -> None:
    best = int(probabilities(tokens, **chosen.model_dump()).argmax())
    for n in range(chosen.max_ngram, chosen.min_ngram - 1, -1):
        places = [i for i in range(n - 1, len(tokens) - 1) if tokens[i - n + 1 : i + 1] == tokens[len(tokens) - n :]]
        if n <= len(tokens) and places:
            assert best in {tokens[i + 1] for i in places}
            return
    assert np.ptp(probabilities(tokens, **chosen.model_dump())) == 0


def test_ties_go_to_the_latest_follower_then_to_the_lower_id() -> None:
    assert probabilities([1, 5, 1, 3, 1]).argmax() == 3, "one occurrence each, 3 is later"
    assert probabilities([1, 3, 1, 5, 1]).argmax() == 5
    even = probabilities([1, 5, 1, 3, 1], recency=1.0)
    assert even[3] == even[5] and even.argmax() == 3
    # equal at the longest match, told apart by the shorter one
    assert probabilities([2, 1, 3, 2, 1, 5, 0, 1, 5, 2, 1], recency=1.0).argmax() == 5


def test_confidence_grows_with_length_and_agreement_and_is_least_without_a_match() -> None:
    """Every signal falls, and with it what a gate lets pass grows."""
    vocab = 1000
    ordered = [
        [1, 2, 3, 4, 5],  # no match
        [5, 6, 9, 5, 7, 8, 5],  # one token, two followers
        [5, 6, 9, 5],  # one token, one follower
        [4, 5, 6, 9, 4, 5],  # two tokens
        [4, 5, 6, 8, 4, 5, 6, 9, 4, 5],  # two of them, in agreement
        [2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5],  # four tokens
    ]
    rows = [model(vocab).open(prompt(tokens), 40)[1].top(20)[1] for tokens in ordered]
    for kind in ("entropy", "one_minus_top1", "one_minus_margin"):
        signals = [float(compute(kind, r, 10)[0]) for r in rows]
        assert all(a >= b for a, b in itertools.pairwise(signals)), (kind, signals)
        assert signals[0] == pytest.approx(1.0, abs=2e-3) and signals[0] > signals[1] > signals[2] > signals[3]
    assert np.exp(rows[2][0, 0]) == pytest.approx(1 - 1 / 2, abs=1e-3)
    assert np.exp(rows[5][0, 0]) == pytest.approx(1 - 1 / 16, abs=1e-3)


def test_ids_that_are_never_proposed_have_no_probability() -> None:
    lookup = model()
    lookup.token_limit = 6
    rows = lookup.open(prompt([1, 7, 2, 1]), 8)[1]
    assert rows.logits().shape == (1, 6) and np.exp(rows.logits()).sum() == pytest.approx(1.0, abs=1e-6)
    assert np.ptp(rows.logits()) == 0, "what followed is beyond the limit"


def test_it_passes_the_kit_of_the_backends() -> None:
    """All of it that applies: a lookup does not look at positions, so only a wrong mask must change its rows."""
    lookup, rng = model(), np.random.default_rng(3)
    text = prompt(rng.integers(3, SMALL_VOCAB, size=60).tolist())
    conformance.check_tree_equals_paths(lookup, text, rng)
    conformance.check_compaction(lookup, text, rng)
    conformance.check_rollback_walk(lookup, text, rng)
    conformance.check_rows_agree(lookup, text, rng)
    conformance.check_capacity(lookup, text)
    tokens = conformance.some_tokens(lookup, rng, len(conformance.PARENTS))
    right = conformance.tree_pass(conformance.open_session(lookup, text), tokens)
    everything = causal(len(tokens), 0)
    blind = conformance.tree_pass(conformance.open_session(lookup, text), tokens, mask=everything)
    assert np.abs(right[4:] - blind[4:]).max() > 0.1, "the mask has no effect"
    with pytest.raises(CapacityError):
        lookup.open(text, 10)


def test_shaped_rows_are_shaped_dense_ones() -> None:
    rows = model(40).open(prompt([1, 2, 3, 9, 1, 2, 3]), 9)[1]
    regime, noise = SamplingRegime(temperature=0.8, top_k=5), GumbelNoise(4, 40).rows(np.array([7]), 40)
    from runtime.backends.base import NumpyRows

    dense = NumpyRows(rows.logits())
    row, seen = np.array([0, 0]), np.array([9, 1])
    assert np.array_equal(
        rows.penalised(row, seen, 1.2).perturbed(regime, noise).logits(),
        dense.penalised(row, seen, 1.2).perturbed(regime, noise).logits(),
    )


# ---- through the drafter, the recorder and replay -------------------------------------------------------------------


class Repeating(FakeModel):
    """A target that tends to go on as its own text went on before, so that lookups are accepted to varied depth."""

    def logits(self, rows: list[tuple[int, int]]) -> np.ndarray:
        values = 0.5 * super().logits(rows)
        tokens = [token for _, token in sorted(rows)]
        for i in range(len(tokens) - 1):
            values[tokens[i + 1]] += 1.5 * (tokens[i] == tokens[-1])
        values[EOS] = min(values[EOS], -6.0)
        return values


def lookup_pair() -> Pair:
    chosen = LookupSettings(max_ngram=3)
    return replace(
        fake_pair(), target=Repeating(100, 0.0), draft=LookupModel(chosen, VOCAB, FakeModel.max_positions, "float32")
    )


PAIR = lookup_pair()
PROMPTS = [(fake_prompt(i, length=8), 14 + 6 * i) for i in range(5)]


@pytest.fixture(scope="module", params=["greedy", "sampled"])
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    sampling = GREEDY if request.param == "greedy" else SAMPLED
    return recorded(tmp_path_factory.mktemp(request.param), sampling, PAIR, PROMPTS)


@settings(max_examples=60)
@given(sources(), st.integers(0, len(PROMPTS) - 1))
def test_live_rounds_are_replayed_rounds(record: Record, source: PolicySource, which: int) -> None:
    policy = compile_policy(source, VERIFY_SIZES, context_max=record.context_max)
    sample = next(i for i, s in enumerate(record.samples) if s.id == f"s{which}")
    text, limit = PROMPTS[which]
    live = generate(PAIR, text, policy, max_new_tokens=limit, sampling=record.sampling(sample))
    assert live.tokens == list(record.samples[sample].output), "speculation changed the output"
    walk = Replay(record, costs()).walk(policy, np.array([sample]))
    comparison = compare_rounds(live.rounds, policy, walk, sample, record)
    assert comparison.equal == comparison.rounds == len(live.rounds)


def test_some_lookups_are_accepted_and_some_are_not(record: Record) -> None:
    """Or the property above would say little."""
    accepted = record.outcome(Tier(depth=3, nodes=3)).accepted
    assert (accepted == 0).any() and (accepted >= 1).sum() > 10
