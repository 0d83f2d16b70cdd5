"""The noise is what its recipe says, and tokens follow the target's distribution; planted faults are found."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import chi2, kstest

from profiles.policy import PolicySource, Tier
from profiles.sampling import MAX_SEED, Sampling
from runtime import filters
from runtime.decode import generate
from runtime.noise import GumbelNoise, gumbel
from runtime.policy.compile import compile_policy
from tests.fakes import VOCAB, fake_pair, fake_prompt
from tests.reference import logprobs, next_logits
from tests.strategies import VERIFY_SIZES

WIDE = compile_policy(PolicySource(tiers=(Tier(depth=3, width=3, nodes=7),)), VERIFY_SIZES, 10_000)
MASK = (1 << 64) - 1


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 from its paper (Salmon et al. 2011), in plain integers."""
    for _ in range(10):
        high, low = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
        counter = [(low >> 64) ^ counter[1] ^ key[0], low & MASK, (high >> 64) ^ counter[3] ^ key[1], high & MASK]
        key = [(key[0] + 0x9E3779B97F4A7C15) & MASK, (key[1] + 0xBB67AE8584CAA73B) & MASK]
    return counter


@pytest.mark.parametrize(
    ("seed", "position", "first"),
    [
        (0, 0, [4.45554972, 1.28562641, 2.13590884, 0.18504792, 0.35965401]),
        (7, 41, [2.46200013, -0.47809780, 1.01490247, 0.06153437, 0.30425543]),
        (MAX_SEED, 8191, [-0.50323457, 0.33860937, 1.15177310, 2.15583467, -0.98297840]),
    ],
)
def test_the_recipe_gives_these_numbers_everywhere(seed: int, position: int, first: list[float]) -> None:
    noise = gumbel(seed, position, 19)
    assert noise.dtype == np.float32
    np.testing.assert_allclose(noise[:5], first, rtol=1e-6)
    words = [word for b in range(5) for word in philox([b + 1, position, 0, 0], [seed, 0])]
    expected = [-math.log(max(-math.log1p(-((w >> 11) * 2.0**-53)), 2.0**-54)) for w in words[:19]]
    np.testing.assert_allclose(noise, expected, rtol=2e-6)


def test_a_request_sees_the_same_noise_whatever_it_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.noise.CACHE_BYTES", 3 * 4 * 50)
    noise = GumbelNoise(5, 50)
    for positions in ([4, 5, 4], [9, 1, 2, 3], [4, 4, 9]):
        rows = noise.rows(np.array(positions), 40)
        assert np.array_equal(rows, np.stack([gumbel(5, p, 50)[:40] for p in positions]))
    with pytest.raises(ValueError, match="made for 50 tokens, 51 asked"):
        noise.rows(np.array([1]), 51)


def test_noise_is_gumbel_and_independent_of_its_neighbours() -> None:
    here, there, other = gumbel(1, 10, 50_000), gumbel(1, 11, 50_000), gumbel(2, 10, 50_000)
    assert kstest(here, lambda x: np.exp(-np.exp(-x))).pvalue > 1e-4
    for second in (there, other, np.roll(here, 1)):
        assert abs(np.corrcoef(here, second)[0, 1]) < 0.02


def test_samples_of_a_run_have_seeds_of_their_own() -> None:
    sampling = Sampling(temperature=1.0, seed=7)
    assert sampling.for_sample("vqa-3").seed == 2270816442372028656
    seeds = {sampling.for_sample(f"s{i}").seed for i in range(500)} | {Sampling(seed=8).for_sample("s0").seed}
    assert len(seeds) == 501 and max(seeds) <= MAX_SEED


Noise = Callable[[int, int], np.ndarray]
"""(seed, position) to [VOCAB] noise."""
SAMPLING = Sampling(temperature=0.9, top_k=6, top_p=0.9)
DRAWS = 100_000
PROMPT = fake_prompt(21)


class Target:
    """The fake pair's first two tokens: filtered logits by hand, so that any noise can be put to the test."""

    def __init__(self) -> None:
        self.pair = fake_pair()
        self._second: dict[int, np.ndarray] = {}
        self.first = self._filtered([])

    def _filtered(self, tokens: list[int]) -> np.ndarray:
        logits = next_logits(self.pair.target, PROMPT, tokens).astype(np.float32)
        return filters.filtered(logits[None], SAMPLING)[0]

    def second(self, token: int) -> np.ndarray:
        if token not in self._second:
            self._second[token] = self._filtered([token])
        return self._second[token]

    def expected(self) -> np.ndarray:
        """[VOCAB, VOCAB] probability of the first two tokens."""
        table = np.zeros((VOCAB, VOCAB))
        for token in np.nonzero(np.isfinite(self.first))[0]:
            table[token] = np.exp(logprobs(self.first)[token] + logprobs(self.second(int(token))))
        return table

    def drawn(self, noise: Noise, draws: int) -> np.ndarray:
        """[VOCAB, VOCAB] how often each two tokens were drawn, over seeds 0 .. draws - 1."""
        counts = np.zeros((VOCAB, VOCAB), dtype=np.int64)
        at = len(PROMPT)
        first = (self.first + np.stack([noise(seed, at) for seed in range(draws)])).argmax(axis=1)
        below = np.stack([noise(seed, at + 1) for seed in range(draws)])
        for token in np.unique(first):
            mine = first == token
            counts[token] = np.bincount((self.second(int(token)) + below[mine]).argmax(axis=1), minlength=VOCAB)
        return counts


def p_value(counts: np.ndarray, expected: np.ndarray) -> float:
    """Of the G-test. Cells that are expected less than five times are taken together."""
    draws = counts.sum()
    rare = expected * draws < 5
    assert not counts[expected == 0].any(), "a token that the filters leave out was drawn"
    observed = np.append(counts[~rare], counts[rare].sum()).astype(np.float64)
    wanted = np.append(expected[~rare], expected[rare].sum()) * draws
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    seen = observed > 0
    g = 2 * (observed[seen] * np.log(observed[seen] / wanted[seen])).sum()
    return float(chi2.sf(g, len(wanted) - 1))


@pytest.fixture(scope="module")
def target() -> Target:
    return Target()


def test_the_first_two_tokens_follow_the_targets_distribution(target: Target) -> None:
    expected = target.expected()
    assert expected.sum() == pytest.approx(1.0) and (expected > 1e-3).sum() >= 8
    assert p_value(target.drawn(lambda seed, at: gumbel(seed, at, VOCAB), DRAWS), expected) > 1e-4


def test_the_drawn_tokens_are_those_that_decoding_gives(target: Target) -> None:
    """The check above draws by hand; speculative decoding must give the very same tokens."""
    by_hand = np.zeros((VOCAB, VOCAB), dtype=np.int64)
    for seed in range(150):
        tokens = generate(
            target.pair, PROMPT, WIDE, max_new_tokens=2, sampling=SAMPLING.model_copy(update={"seed": seed})
        ).tokens
        if len(tokens) == 2:
            by_hand[tokens[0], tokens[1]] += 1
        else:
            by_hand[tokens[0]] += target.drawn(lambda s, at: gumbel(seed, at, VOCAB), 1)[tokens[0]]  # noqa: B023
    assert np.array_equal(by_hand, target.drawn(lambda seed, at: gumbel(seed, at, VOCAB), 150))


def test_noise_without_the_position_is_found(target: Target) -> None:
    """Each token alone follows its distribution; only the two together give it away."""
    counts = target.drawn(lambda seed, at: gumbel(seed, 0, VOCAB), DRAWS // 5)
    expected = target.expected()
    assert p_value(counts.sum(axis=1)[:, None], expected.sum(axis=1)[:, None]) > 1e-4
    assert p_value(counts, expected) < 1e-12


def test_the_drafts_choice_in_the_targets_place_is_found(target: Target) -> None:
    """What the draft ranks first under the shared noise follows the draft's distribution, not the target's."""
    logits = next_logits(target.pair.draft, PROMPT, []).astype(np.float32)
    draft = filters.filtered(logits[None], SAMPLING.model_copy(update={"top_k": 0, "top_p": 1.0}))[0]
    draft[~np.isfinite(target.first)] = -np.inf
    first = (draft + np.stack([gumbel(seed, len(PROMPT), VOCAB) for seed in range(DRAWS // 5)])).argmax(axis=1)
    counts = np.bincount(first, minlength=VOCAB)
    assert p_value(counts[:, None], np.exp(logprobs(target.first))[:, None]) < 1e-12
