"""Curves and associations cover the truth of a known generator, and every part of the positions has its own."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from scipy.stats import spearmanr

from profiles.measurement import Curve
from profiles.policy import SignalKind
from tests.test_replay import record  # noqa: F401  # a fixture
from tuner.association import association, bins_of, count_tables, mutual_information, rank_correlation
from tuner.curves import acceptance_curves, curve_points, reference_tier
from tuner.outcomes import Record
from tuner.screens import curve_screen, explained

DEPTH = 6
STUDIES = 300


@dataclass(frozen=True)
class Drawn:
    """Positions of some prompts: a signal, what was accepted, whether the first guess was right."""

    prompt_of: np.ndarray
    signal: np.ndarray
    accepted: np.ndarray

    @property
    def hit(self) -> np.ndarray:
        return (self.accepted > 0).astype(np.float64)


def draw(rng: np.random.Generator, prompts: int, slope: float = 3.0, prompt_effect: float = 0.6) -> Drawn:
    """A generator with effects of the prompt on both sides: prompts differ in length, in how uncertain the draft
    is on them, and in how much is accepted whatever the signal says."""
    lengths = rng.choice([8, 25, 60], prompts)
    prompt_of = np.repeat(np.arange(prompts), lengths)
    level, ease = rng.normal(0, 0.5, (2, prompts))
    signal = 1 / (1 + np.exp(1.5 - 1.3 * rng.standard_normal(len(prompt_of)) - level[prompt_of]))
    chance = 1 / (1 + np.exp(-(1.2 + prompt_effect * ease[prompt_of] / 0.5 - slope * signal)))
    steps = rng.random((DEPTH, len(prompt_of))) < chance
    return Drawn(prompt_of, signal, np.cumprod(steps, axis=0).sum(axis=0))


def truth(slope: float = 3.0) -> Drawn:
    return draw(np.random.default_rng(99), 30_000, slope)


def test_curves_cover_the_truth() -> None:
    """300 studies of 80 prompts; the truth of a bin is the mean of a huge population between its edges."""
    population, rng = truth(), np.random.default_rng(0)
    order = np.argsort(population.signal)
    ordered = population.signal[order]
    sums = np.concatenate([[0], np.cumsum(population.accepted[order])])
    hits = np.concatenate([[0], np.cumsum(population.hit[order])])
    covered = np.zeros((2, 8))
    for _ in range(STUDIES):
        mine = draw(rng, 80)
        points = list(curve_points(mine.signal, mine.accepted, mine.hit, mine.prompt_of, DEPTH, 8))
        edges = [0.0, *(np.array([p.high_edge for p in points[:-1]]) + [p.low_edge for p in points[1:]]) / 2, 1.0]
        at = np.searchsorted(ordered, edges)
        for i, point in enumerate(points):
            count = at[i + 1] - at[i]
            accepted, top1 = (sums[at[i + 1]] - sums[at[i]]) / count, (hits[at[i + 1]] - hits[at[i]]) / count
            covered[0, i] += point.accepted_low <= accepted <= point.accepted_high
            covered[1, i] += point.top1_low <= top1 <= point.top1_high
    share = covered / STUDIES
    print(f"\naccepted by bin {share[0].round(3)}, mean {share[0].mean():.3f}")
    print(f"top-1 by bin {share[1].round(3)}, mean {share[1].mean():.3f}")
    assert np.all((share.mean(axis=1) >= 0.93) & (share.mean(axis=1) <= 0.97))
    assert share.min() >= 0.91, "a single bin in 300 studies"


@pytest.mark.parametrize(
    "slope", [pytest.param(0.7, marks=pytest.mark.slow), 3.0, pytest.param(6.0, marks=pytest.mark.slow)]
)
def test_associations_cover_the_truth(slope: float) -> None:
    population, rng = truth(slope), np.random.default_rng(1)
    expected = association(population.signal, population.accepted, population.prompt_of)
    assert expected is not None
    covered, found_nats = np.zeros(3), []
    for _ in range(STUDIES):
        mine = draw(rng, 80, slope)
        found = association(mine.signal, mine.accepted, mine.prompt_of)
        assert found is not None
        found_nats.append(found.information_nats.median)
        for i, name in enumerate(("rank_correlation", "information_nats", "share")):
            interval, true = getattr(found, name), getattr(expected, name).median
            covered[i] += interval.low <= true <= interval.high
    share, bias = covered / STUDIES, np.mean(found_nats) - expected.information_nats.median
    print(
        f"\nslope {slope}: rank correlation {expected.rank_correlation.median:.3f} covered in {share[0]:.1%}, "
        f"information {expected.information_nats.median:.4f} nats in {share[1]:.1%} (bias {bias:+.4f}), its share in "
        f"{share[2]:.1%}"
    )
    assert np.all((share >= 0.93) & (share <= 0.985))
    assert abs(bias) < 0.003


def test_a_signal_of_nothing_is_told_from_chance() -> None:
    """Above chance in about one study of twenty, although positions of a prompt are alike."""
    rng, above, intervals = np.random.default_rng(2), 0, 0
    for _ in range(STUDIES):
        mine = draw(rng, 80, slope=0.0)
        found = association(mine.signal, mine.accepted, mine.prompt_of)
        assert found is not None
        above += found.information_nats.median > found.chance_nats
        intervals += found.rank_correlation.low <= 0 <= found.rank_correlation.high
    print(f"\nno signal: above chance in {above / STUDIES:.1%}, rank correlation covers 0 in {intervals / STUDIES:.1%}")
    assert above / STUDIES <= 0.09 and 0.93 <= intervals / STUDIES <= 0.97


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3)), min_size=3, max_size=80))
def test_statistics_of_tables_are_those_of_the_values(rows: list[tuple[int, int, int]]) -> None:
    signal, accepted, prompt_of = (np.array(column) for column in zip(*rows, strict=True))
    table = count_tables(bins_of(signal.astype(float), 256), accepted, prompt_of).sum(axis=0)
    if len(set(signal)) > 1 and len(set(accepted)) > 1:
        assert float(rank_correlation(table)) == pytest.approx(spearmanr(signal, accepted).statistic, abs=1e-9)
    else:
        assert float(rank_correlation(table)) == 0.0
    joint = table / table.sum()
    outer = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    expected = (joint[joint > 0] * np.log(joint[joint > 0] / outer[joint > 0])).sum()
    assert float(mutual_information(table)) == pytest.approx(expected, abs=1e-9)


def test_information_sees_what_ranks_do_not() -> None:
    """A signal whose middle is accepted best: no rank correlation, but much information."""
    rng = np.random.default_rng(0)
    signal, prompt_of = rng.random(4000), np.repeat(np.arange(80), 50)
    found = association(signal, (np.abs(signal - 0.5) < 0.25).astype(np.int64), prompt_of)
    assert found is not None and abs(found.rank_correlation.median) < 0.1
    assert found.share.median > 0.9 and found.entropy_nats == pytest.approx(np.log(2), abs=0.01)


def test_bins_hold_equal_counts_and_never_part_equal_values() -> None:
    values = np.concatenate([np.zeros(500), np.linspace(0.1, 1, 500)])
    codes = bins_of(values, 8)
    assert set(codes) == set(range(codes.max() + 1)) and len(set(codes[:500])) == 1
    assert np.bincount(codes)[1:].max() <= 126
    assert bins_of(np.ones(5), 8).tolist() == [0] * 5


def test_two_prompts_make_no_interval() -> None:
    assert association(np.arange(10.0), np.arange(10) % 3, np.repeat([0, 1], 5)) is None


def parts(curves: list[Curve], signal: str) -> Iterator[str]:
    return (f"{c.modality} {c.part}" for c in curves if c.signal == signal)


def test_every_signal_has_a_curve_for_every_part(record: Record) -> None:  # noqa: F811
    curves = acceptance_curves(record)
    assert {c.signal for c in curves} == set(get_args(SignalKind))
    assert list(parts(curves, "entropy")) == [f"text {p}" for p in ("all", "early", "late", "short", "middle", "long")]
    assert curves[0].signal == "entropy" and curves[0].part == "all" and curves[0].bounds is None
    by_part = {c.part: c for c in curves if c.signal == "entropy"}
    early, late = by_part["early"].bounds, by_part["late"].bounds
    assert early is not None and late is not None and early[0] == 0 and early[1] < late[0]
    for names in (("early", "late"), ("short", "middle", "long")):
        assert sum(p.positions for name in names for p in by_part[name].points) == record.positions
    accepted = record.outcome(reference_tier(record)).accepted
    mean = sum(p.accepted_mean * p.positions for p in curves[0].points) / record.positions
    assert mean == pytest.approx(accepted.mean())


def test_the_reference_is_the_deepest_tree_of_the_narrowest_width(record: Record) -> None:  # noqa: F811
    assert reference_tier(record).label() == "5,1,5"
    rules = tuple(rule for rule in record.manifest.rules if rule.width > 1)
    wide = Record(record.manifest.model_copy(update={"rules": rules}), record.samples, record._frame)
    assert reference_tier(wide).label() == "5,2,18"
    assert acceptance_curves(wide)[0].points


def test_a_position_without_a_signal_is_left_out(record: Record) -> None:  # noqa: F811
    values = record.signal("entropy", 8).copy()
    values[::3] = np.nan
    curves = acceptance_curves(record, {"own": values, "never": np.full(record.positions, np.nan)})
    assert {c.signal for c in curves} == {"own"}
    assert sum(p.positions for p in curves[0].points) == np.isfinite(values).sum()


def test_curves_of_older_documents_still_parse(record: Record) -> None:  # noqa: F811
    old = acceptance_curves(record)[0].model_dump(exclude={"part", "bounds", "association"})
    assert Curve.model_validate(old).association is None


def drawn_curve(name: str, slope: float, prompts: int = 60) -> Curve:
    mine = draw(np.random.default_rng(4), prompts, slope)
    found = association(mine.signal, mine.accepted, mine.prompt_of)
    return Curve(
        signal=name,
        modality="text",
        reference_tier="6,1,6",
        rank_correlation=found.rank_correlation.median if found else 0.0,
        points=tuple(curve_points(mine.signal, mine.accepted, mine.hit, mine.prompt_of, DEPTH, 8)),
        association=found,
    )


def test_a_sentence_says_whether_a_signal_helps() -> None:
    helps, better, luck = (drawn_curve(n, s) for n, s in (("entropy", 3.0), ("margin", 6.0), ("noise", 0.0)))
    assert "fewer tokens are accepted; margin explains most" in explained([helps, better, luck])
    assert explained([luck]) == "noise explains no more of what acceptance varies by than luck would"
    assert "the more tokens are accepted" in explained([drawn_curve("odd", -3.0)])
    assert explained([drawn_curve("entropy", 3.0, prompts=2)]) == "too few prompts to say what entropy explains"


def test_the_screen_shows_one_curve_and_every_signal() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(curve_screen([drawn_curve("entropy", 3.0), drawn_curve("noise", 0.0)]))
    text = console.export_text()
    assert "what tier 6,1,6 accepts" in text and "█" in text and "…" not in text
    assert any(line.split()[:1] == ["noise"] and "~" in line for line in text.splitlines())
    assert "~ no more than luck" in text and "entropy explains" in text
