"""Sampling in the loop: filters as in transformers, the same tokens under every policy, settings never passed over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    GenerationConfig,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from profiles.errors import BadInput, LosslessError, ModelOutputError
from profiles.policy import PolicySource, Tier
from profiles.sampling import GREEDY, Sampling, SamplingRegime
from profiles.store import parse
from runtime import filters
from runtime.backends.base import NumpyRows
from runtime.backends.torch_backend import TorchRows
from runtime.decode import generate, plain_policy
from runtime.draft_prompts import OwnPromptModel
from runtime.noise import gumbel
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.processors import NEUTRAL, repetition_penalty
from runtime.prompts import Prompt
from runtime.sampling import ShapedModel, resolved, shaped
from tests.fakes import VOCAB, fake_pair, fake_prompt
from tests.strategies import VERIFY_SIZES, samplings, sources
from tuner.calibration import Sample
from tuner.lossless import NEAR_TIE, first_divergence, require_equal, sampled_margin

PAIR = fake_pair()
WIDE = compile_policy(PolicySource(tiers=(Tier(depth=4, width=3, nodes=11),)), VERIFY_SIZES, 10_000)
WARM = Sampling(temperature=0.8, top_p=0.95, seed=3)


@settings(max_examples=60)
@given(sources(), samplings(), st.integers(0, 10_000), st.integers(1, 30), st.booleans())
def test_any_policy_gives_the_tokens_of_plain_sampling(
    source: PolicySource, sampling: Sampling, seed: int, limit: int, stops: bool
) -> None:
    policy = compile_policy(source, VERIFY_SIZES, context_max=20)
    prompt, stop_strings = fake_prompt(seed), ["ab", "q"] if stops else []
    arguments: dict[str, Any] = {"max_new_tokens": limit, "stop_strings": stop_strings, "sampling": sampling}
    plain = generate(PAIR, prompt, plain_policy(), **arguments)
    tree = generate(PAIR, prompt, policy, **arguments)
    assert tree.tokens == plain.tokens and tree.finished == plain.finished and tree.text == plain.text


@settings(max_examples=60)
@given(samplings(sampled=True), st.integers(0, 10_000), st.sampled_from([5, 40]))
def test_filters_are_those_of_transformers(sampling: Sampling, seed: int, vocab: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (4 * rng.standard_normal((3, vocab))).astype(np.float32)
    seen = rng.integers(0, vocab, size=(3, 7))
    penalty = sampling.repetition_penalty or 1.0
    ids, scores = torch.from_numpy(seen), torch.from_numpy(logits.copy())
    chain: list[Any] = [RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(sampling.temperature)]
    chain += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    chain += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    for processor in chain:
        scores = processor(ids, scores)
    expected = scores.softmax(-1).numpy()

    rows, tokens = np.repeat(np.arange(3), 7), seen.reshape(-1)
    ours = filters.filtered(filters.penalised(logits, rows, tokens, penalty), sampling)
    np.testing.assert_allclose(torch.from_numpy(ours).softmax(-1).numpy(), expected, atol=2e-6)

    noise = np.stack([gumbel(seed, t, vocab) for t in range(3)])
    both = [
        kind.penalised(rows, tokens, penalty).perturbed(sampling, noise)
        for kind in (NumpyRows(logits), TorchRows(torch.from_numpy(logits)))
    ]
    np.testing.assert_allclose(both[0].logits(), both[1].logits(), rtol=1e-5, atol=1e-5)
    assert np.array_equal(both[0].argmax(), both[1].argmax())
    np.testing.assert_allclose(both[0].top(5)[1], both[1].top(5)[1], rtol=1e-5, atol=1e-5)


def test_of_equal_tokens_top_p_keeps_the_lower_ids() -> None:
    logits = np.zeros((1, 8), np.float32)
    kept = filters.filtered(logits, Sampling(temperature=1.0, top_p=0.5))
    assert np.isfinite(kept[0]).tolist() == [True] * 4 + [False] * 4
    by_torch = TorchRows(torch.from_numpy(logits)).perturbed(Sampling(temperature=1.0, top_p=0.5), logits)
    assert np.array_equal(kept, by_torch.logits())


def test_nan_logits_stop_sampling() -> None:
    broken = np.zeros((2, 5), np.float32)
    broken[1, 3] = np.nan
    for rows in (NumpyRows(broken), TorchRows(torch.from_numpy(broken))):
        with pytest.raises(ModelOutputError, match="not finite"):
            rows.perturbed(WARM, np.zeros_like(broken))


def test_greedy_decoding_takes_the_models_as_they_are() -> None:
    assert shaped(PAIR, GREEDY) is PAIR
    assert shaped(PAIR, Sampling(seed=9)) is PAIR


def test_a_seed_is_an_output() -> None:
    outputs = [
        tuple(
            generate(PAIR, fake_prompt(2), WIDE, max_new_tokens=12, sampling=WARM.model_copy(update={"seed": s})).tokens
        )
        for s in (1, 2, 3, 4, 1)
    ]
    assert outputs[0] == outputs[4] and len(set(outputs)) == 4


def test_a_small_temperature_is_nearly_greedy() -> None:
    greedy = generate(PAIR, fake_prompt(2), WIDE, max_new_tokens=20).tokens
    cold = generate(PAIR, fake_prompt(2), WIDE, max_new_tokens=20, sampling=Sampling(temperature=1e-4)).tokens
    assert cold == greedy


def test_the_repetition_penalty_follows_every_path() -> None:
    """A huge penalty leaves no token to come twice, wherever in a tree it was drafted."""
    never_twice = Sampling(repetition_penalty=1e6)
    shifted = PAIR.__class__(**{**fake_pair().__dict__, "eos_ids": frozenset()})
    for model in (shifted.target, shifted.draft):
        original = model.logits  # type: ignore[attr-defined]
        # positive logits throughout, so that a penalised one is the lowest
        model.logits = lambda rows, original=original: np.abs(original(rows)) + 1  # type: ignore[attr-defined]
    prompt = fake_prompt(4)
    got = generate(shifted, prompt, WIDE, max_new_tokens=15, sampling=never_twice)
    plain = generate(shifted, prompt, plain_policy(), max_new_tokens=15, sampling=never_twice)
    seen = [*prompt.input_ids.tolist(), *got.tokens]
    assert got.tokens == plain.tokens and got.acceptance_length > 1.5
    assert len(set(got.tokens)) == len(got.tokens) and len(set(seen)) == len(set(prompt.input_ids)) + len(got.tokens)


def test_prompt_ids_beyond_the_head_are_not_penalised() -> None:
    ids = np.array([3, VOCAB + 5, 4])
    model = ShapedModel(PAIR.target, Sampling(repetition_penalty=2.0), None)  # type: ignore[arg-type]
    rows = model.open(Prompt(ids, {}, "text"), 8)[1].logits()[0]
    raw = PAIR.target.open(Prompt(ids, {}, "text"), 8)[1].logits()[0]
    assert np.nonzero(rows != raw)[0].tolist() == [3, 4]


def test_the_pairs_own_penalty_is_used_unless_another_is_given() -> None:
    pair = PAIR.__class__(**{**PAIR.__dict__, "repetition_penalty": 1.3})
    arguments: dict[str, Any] = {"max_new_tokens": 20}
    asked = generate(PAIR, fake_prompt(1), WIDE, **arguments, sampling=Sampling(repetition_penalty=1.3)).tokens
    assert generate(pair, fake_prompt(1), WIDE, **arguments).tokens == asked
    without = generate(pair, fake_prompt(1), WIDE, **arguments, sampling=Sampling(repetition_penalty=1.0)).tokens
    assert without == generate(PAIR, fake_prompt(1), WIDE, **arguments).tokens != asked
    assert resolved(pair, GREEDY).repetition_penalty == 1.3
    assert shaped(shaped(pair, GREEDY), GREEDY).repetition_penalty == 1.0, "a shaped pair is not shaped twice"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_p": 0.9}, "top_p needs temperature > 0, got top_p = 0.9 at temperature 0"),
        ({"top_k": 5}, "top_k needs temperature > 0"),
        ({"draft_lambda": 0.5}, "draft_lambda needs temperature > 0"),
        ({"temperature": -1.0}, "greater than or equal to 0"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p: Input should be greater than 0"),
        ({"temperature": float("nan")}, "temperature: Input should be"),
        ({"temperature": 1.0, "seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({"temprature": 1.0}, "did you mean 'temperature'"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse(Sampling, fields, "flags")


IRRELEVANT = """
max_length max_new_tokens early_stopping max_time do_sample use_mtp use_cache cache_implementation
cache_config max_cache_len temperature top_k top_p length_penalty renormalize_logits num_return_sequences
output_attentions output_hidden_states output_scores output_logits return_dict_in_generate pad_token_id bos_token_id
eos_token_id decoder_start_token_id is_assistant num_assistant_tokens num_assistant_tokens_schedule
assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit
assistant_lookbehind target_lookbehind assistant_ensemble_weight speculation_type compile_config disable_compile
continuous_batching_config low_memory prefill_chunk_size _from_model_config transformers_version
"""
"""Limits, caches, assistants, output forms, beams' own parameters; and what this program is told in other ways."""


def test_every_setting_of_transformers_is_applied_refused_or_irrelevant() -> None:
    known = {"repetition_penalty", *NEUTRAL, *IRRELEVANT.split()}
    assert not set(GenerationConfig().to_dict()) - known, "decide what a new setting means here"


def test_settings_that_cannot_be_applied_are_refused_by_name() -> None:
    asked = GenerationConfig(repetition_penalty=1.05, top_k=1, temperature=0.1, do_sample=True).to_dict()
    assert repetition_penalty(asked, (), "p") == 1.05
    assert repetition_penalty(asked, ("repetition_penalty",), "p") == 1.0
    assert repetition_penalty({}, (), "p") == 1.0
    for name, value in (("no_repeat_ngram_size", 3), ("bad_words_ids", [[5]]), ("min_p", 0.1), ("num_beams", 4)):
        refused = GenerationConfig(**{name: value}).to_dict()
        with pytest.raises(BadInput, match=rf"settings of 'p' ask for {name} = .*put without = \[\"{name}\"\] into"):
            repetition_penalty(refused, (), "p")
        assert repetition_penalty(refused, (name,), "p") == 1.0
    with pytest.raises(BadInput, match="leaves out 'no_such'"):
        repetition_penalty({}, ("no_such",), "p")


def test_a_draft_without_the_noise_costs_acceptance_and_nothing_else() -> None:
    """The noise is shared to be accepted, not to be right."""

    class Silence:
        def rows(self, positions: np.ndarray, vocab: int) -> np.ndarray:
            return np.zeros((len(positions), vocab), np.float32)

    accepted = {"shared": 0.0, "silent": 0.0}
    for seed in range(12):
        sampling = Sampling(temperature=1.0, seed=seed)
        pair = shaped(PAIR, sampling)
        silent = PAIR.__class__(
            **{**PAIR.__dict__, "target": pair.target, "draft": ShapedModel(PAIR.draft, sampling, Silence())}
        )
        got = generate(PAIR, fake_prompt(seed), WIDE, max_new_tokens=25, sampling=sampling)
        other = generate(silent, fake_prompt(seed), WIDE, max_new_tokens=25)
        assert got.tokens == other.tokens
        accepted["shared"] += got.acceptance_length / 12
        accepted["silent"] += other.acceptance_length / 12
    assert accepted["shared"] > accepted["silent"] + 0.2


def test_a_draft_with_a_prompt_of_its_own_sees_the_noise_of_the_targets_positions() -> None:
    """So hot that the noise decides alone: drafts are taken only where both models see the same noise."""
    pair = replace(PAIR, draft=OwnPromptModel(PAIR.draft), eos_ids=frozenset())
    for seed in range(4):
        prompt = replace(fake_prompt(seed), draft=fake_prompt(seed + 50, length=9))
        sampling = Sampling(temperature=100.0, repetition_penalty=1.2, seed=seed)
        plain = generate(pair, prompt, plain_policy(), max_new_tokens=25, sampling=sampling)
        got = generate(pair, prompt, WIDE, max_new_tokens=25, sampling=sampling)
        assert got.tokens == plain.tokens and got.acceptance_length > 3


def test_a_difference_in_a_sampled_output_is_shown_with_its_margin() -> None:
    prompt = fake_prompt(9)
    plain = generate(PAIR, prompt, plain_policy(), max_new_tokens=20, sampling=WARM).tokens
    for at in (0, 7):
        wrong = [*plain[:at], plain[at] % (VOCAB - 1) + 1, *plain[at + 1 :]]
        found = first_divergence(PAIR, prompt, plain, wrong, WARM)
        assert found is not None and found.position == at and found.top2[0] == plain[at] and found.verdict == "bug"
        with pytest.raises(LosslessError, match=f"at token {at}; "):
            require_equal(PAIR, prompt, plain, wrong, "planted", WARM)
    # under another seed the same position has another best token: the noise is part of the check
    other = WARM.model_copy(update={"seed": 4})
    bests = [first_divergence(PAIR, prompt, plain, [*plain[:i], -1], other).top2[0] for i in range(19)]  # type: ignore[union-attr]
    assert bests != plain[:19]


def test_a_draw_that_a_tiny_move_changes_has_a_tiny_margin() -> None:
    """Rows with planted near ties: of logits, of the k-th with the next, of the mass with p."""
    rng, changed = np.random.default_rng(5), 0
    for seed in range(400):
        logits = np.repeat(2 * rng.standard_normal(6), 2) + 5e-7 * rng.standard_normal(12)
        noise = gumbel(seed, 1, 12)
        weights = np.sort(np.exp(logits - logits.max()))[::-1]
        mass = np.cumsum(weights) / weights.sum()
        top_p = float(mass[rng.integers(0, 8)] + 3e-7 * rng.standard_normal()) if seed % 2 else 1.0
        regime = SamplingRegime(
            temperature=1.0, top_k=0 if seed % 2 else int(rng.integers(1, 9)), top_p=min(top_p, 1.0)
        )
        margin, (best, _) = sampled_margin(logits.astype(np.float32), regime, noise)
        moved = (logits + 1e-6 * rng.choice([-1.0, 1.0], size=(30, 12))).astype(np.float32)
        draws = filters.perturbed(moved, regime, np.tile(noise, (30, 1))).argmax(axis=1)
        if (draws != best).any():
            changed += 1
            assert margin < NEAR_TIE, (seed, regime, margin)
    assert changed > 20


@pytest.mark.parametrize(
    ("logits", "noise", "regime", "margin"),
    [
        # the best token leads by the logits' half nat
        ([1.0, 0.5, 0.0], [0.0, 0.0, 0.0], {"temperature": 1.0}, 0.5),
        # a temperature scales the noise, not the margin of the logits
        ([1.0, 0.5, 0.0], [0.0, 0.0, 0.0], {"temperature": 0.5}, 0.5),
        # the third token would win, were it not cut by a hair
        ([1.0, 0.5, 0.499], [0.0, 0.0, 9.0], {"temperature": 1.0, "top_k": 2}, 0.001),
        # the same, but it could not win either way
        ([1.0, 0.5, 0.499], [0.0, 0.0, 0.0], {"temperature": 1.0, "top_k": 2}, 0.5),
    ],
)
def test_margins_know_the_edge_of_a_filter(
    logits: list[float], noise: list[float], regime: dict[str, Any], margin: float
) -> None:
    found, _ = sampled_margin(np.array(logits, np.float32), SamplingRegime(**regime), np.array(noise, np.float32))
    assert found == pytest.approx(margin, abs=1e-6)


TREES = [
    compile_policy(PolicySource(tiers=(tier,)), VERIFY_SIZES, 10_000)
    for tier in (Tier(depth=5, nodes=5), Tier(depth=4, width=3, nodes=11), Tier(depth=5, width=2, nodes=7, stop=0.2))
]


def same_tokens(pair: Pair, samples: list[Sample], sampling: Sampling, longest: int = 256) -> dict[str, float]:
    """Every tree against plain decoding. A difference that is no near tie raises."""
    counts = {"prompts": len(samples), "tokens": 0, "near_ties": 0, "rounds": 0}
    for sample in samples:
        prompt, mine = pair.encoder.encode(sample.request()), sampling.for_sample(sample.id)
        limit = min(sample.max_new_tokens, longest)
        plain = generate(pair, prompt, plain_policy(), max_new_tokens=limit, sampling=mine).tokens
        for policy in TREES:
            got = generate(pair, prompt, policy, max_new_tokens=limit, sampling=mine)
            counts["tokens"] += len(got.tokens)
            counts["rounds"] += len(got.rounds)
            counts["near_ties"] += not require_equal(pair, prompt, plain, got.tokens, "tree", mine)
    return {**counts, "acceptance_length": round((counts["tokens"] - 3 * len(samples)) / counts["rounds"], 3)}


def test_real_pairs_sample_the_tokens_of_plain_decoding(tiny_pair: Pair, calibration: list[Sample]) -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, top_k=50, seed=7, repetition_penalty=1.05)
    counts = same_tokens(tiny_pair, calibration[: 10 if tiny_pair.target.backend == "torch" else 3], sampling, 20)
    assert counts["near_ties"] == 0 and counts["acceptance_length"] > 1.5


def test_backends_sample_alike(onnx_pair: Pair, torch_pair: Pair, calibration: list[Sample]) -> None:
    """The noise is the same; a token may differ only in a near tie."""
    for sample in calibration[:3]:
        prompt, mine = onnx_pair.encoder.encode(sample.request()), Sampling(temperature=0.7).for_sample(sample.id)
        outputs = [
            generate(pair, prompt, TREES[1], max_new_tokens=sample.max_new_tokens, sampling=mine).tokens
            for pair in (onnx_pair, torch_pair)
        ]
        found = first_divergence(onnx_pair, prompt, outputs[0], outputs[1], mine)
        assert found is None or found.margin < 1e-3, found


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0.7, seed=7), Sampling(temperature=0.7, top_k=50, top_p=0.9, seed=7)],
    ids=SamplingRegime.label,
)
def test_two_hundred_prompts(onnx_pair: Pair, calibration: list[Sample], sampling: Sampling) -> None:
    counts = same_tokens(onnx_pair, calibration[:200], sampling)
    print(sampling.label(), counts)
    assert counts["prompts"] == 200 and counts["near_ties"] <= 0.0001 * counts["tokens"]
