"""The report: what its sections say, and that nothing a profile says can become markup."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from profiles.errors import HardwareMissing, ProfileError
from profiles.growth import GO_ON, GrowthTree
from profiles.measurement import PolicyResult
from profiles.policy import BEAM, HistorySpec, PolicySource, SignalSpec, Tier
from profiles.policy_profile import PolicyProfile
from profiles.registry import HERE
from profiles.store import load_profile, save_profile
from runtime.policy.compile import compile_policy
from sage_tune import app
from tests.records import chance_costs, chance_record
from tests.samples import sample_profile
from tests.strategies import SIGNAL_LOGPROBS, VERIFY_SIZES, WIDTHS
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.report import evidence, plots
from tuner.report.build import Subject, build_report, open_subject
from tuner.report.page import html
from tuner.report.policy import policy_map
from tuner.report.replayed import example, level_nodes, neighbours, sensitivity
from tuner.report.view import Curves, Dots, Section

SHIPPED = HERE / "library" / "tiny-llava-ov-cpu.sage.json"
SECTIONS = ["summary", "signals", "costs", "policy", "yardsticks", "prediction", "example", "sensitivity", "provenance"]
HOSTILE = '<script>alert(1)</script>"><img src=https://example.org/x onerror=alert(2)> $\\frac{1'
SOURCE = PolicySource(
    name="two bins",
    signal=SignalSpec(top_k=SIGNAL_LOGPROBS),
    edges=(0.5,),
    tiers=(Tier(depth=3, width=2, nodes=5), Tier(depth=1, width=2, nodes=2)),
    history=HistorySpec(window=4, low=0.5, high=1.5, max_depth=3),
)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    rules = [BEAM.model_copy(update={"width": width}) for width in WIDTHS]
    return chance_record(tmp_path_factory.mktemp("trace"), rules, ["tune", *["report"] * 6], 3)


def hostile_profile() -> PolicyProfile:
    profile = sample_profile()
    row = profile.evidence.results[0].model_copy(update={"name": HOSTILE, "tiers": (HOSTILE,)})
    proof = profile.evidence.model_copy(update={"results": (row,), "shipped_name": HOSTILE})
    made = profile.provenance.model_copy(update={"command_line": HOSTILE, "versions": {HOSTILE: HOSTILE}})
    return profile.model_copy(
        update={"name": HOSTILE, "reason": HOSTILE, "evidence": proof, "provenance": made}
    ).sealed()


def section(sections: tuple[Section, ...], key: str) -> Section:
    return next(s for s in sections if s.key == key)


def test_every_section_is_there_and_says_why_it_is_empty() -> None:
    made = build_report(Subject(None, load_profile(SHIPPED), None), "sage_tune report P")
    assert [s.key for s in made.sections] == SECTIONS
    missing = {s.key: s.missing for s in made.sections if s.missing}
    assert list(missing) == ["example"] and "record is needed" in missing["example"]
    text = html(made)
    for key in SECTIONS:
        assert f'<section id="{key}">' in text and f'href="#{key}"' in text
    assert load_profile(SHIPPED).digest in text
    assert text.count('role="img"') == text.count("<svg viewBox") == len([c for s in made.sections for c in s.charts])


def test_the_page_refers_to_nothing_outside_and_runs_nothing() -> None:
    text = html(build_report(Subject(None, load_profile(SHIPPED), None), "x"))
    assert not re.findall(r"<script|@import|https?://(?!www\.w3\.org)", text)
    assert not [link for link in re.findall(r'(?:href|src)="([^"]*)"', text) if not link.startswith(("#", "data:"))]
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "every drawing has ids of its own"
    assert not [colour for colour in plots.VARIABLES if colour in text], "a placeholder colour was left"


def test_names_of_a_profile_are_text_and_never_markup() -> None:
    text = html(build_report(Subject(None, hostile_profile(), None), HOSTILE))
    assert "<script" not in text and "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_page_without_escaping_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: autoescape off. The check above must see it."""
    from tuner.report import page

    real = page.Environment
    monkeypatch.setattr(page, "Environment", lambda **options: real(**{**options, "autoescape": False}))
    assert "<script" in html(build_report(Subject(None, hostile_profile(), None), ""))


def test_the_same_profile_gives_the_same_bytes() -> None:
    subject = Subject(None, load_profile(SHIPPED), None)
    assert html(build_report(subject, "x")) == html(build_report(subject, "x"))


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HardwareMissing, match=r"sage_tune\[report\]"):
        html(build_report(Subject(None, load_profile(SHIPPED), None), "x"))


def test_the_policy_map_holds_every_cell_and_every_leaf() -> None:
    policy = compile_policy(SOURCE, VERIFY_SIZES, 100)
    found = policy_map(policy).policy
    assert found is not None and found.states == ("low", "mid", "high")
    assert [name for name, _ in found.rows] == ["0 – 0.5", "0.5 – 1"]
    for (_, cells), row in zip(found.rows, policy.table, strict=True):
        assert [cell.label for cell in cells] == [policy.tiers[i].label() for i in row]
    tree = GrowthTree(features=("best",), thresholds=(-0.5,), left=(-1,), right=(-2,), leaves=(2, GO_ON), top_k=5)
    grown = compile_policy(SOURCE.model_copy(update={"growth": tree}), VERIFY_SIZES, 100)
    assert policy_map(grown).tables[-1].rows == (
        ("best ≤ -0.5", "verify 2 tokens, root counted"),
        ("best > -0.5", "draft another level"),
    )


def test_the_oracle_is_a_line_and_not_a_contestant() -> None:
    profile = sample_profile()
    bound = PolicyResult(
        name="oracle", tiers=(), verdict="adaptive", kind="bound", acceptance_length=4, rounds=9, speedup_replayed=3.0
    )
    results = (*profile.evidence.results, bound)
    profile = profile.model_copy(update={"evidence": profile.evidence.model_copy(update={"results": results})})
    chart = evidence.yardsticks(profile).charts[0]
    assert isinstance(chart, Dots) and (3.0, "oracle") in chart.lines
    assert [dot.name for dot in chart.dots] == ["tuned"] and len(chart.numbers.rows) == 2


def test_costs_mark_the_free_width() -> None:
    made = build_report(Subject(None, load_profile(SHIPPED), None), "x")
    chart = section(made.sections, "costs").charts[0]
    assert isinstance(chart, Curves) and chart.mark == load_profile(SHIPPED).evidence.cost_table.free_width()


def test_the_example_shows_the_rounds_of_the_walk(record: Record) -> None:
    policy = compile_policy(SOURCE, VERIFY_SIZES, record.context_max)
    replay, samples = Replay(record, chance_costs(1)), record.split_samples("report")
    rounds = example(policy, replay, samples).rounds
    walk = replay.walk(policy, samples)
    starts = {s.id: i for i, s in enumerate(record.samples)}
    shown = next(i for name, i in starts.items() if f"'{name}'" in example(policy, replay, samples).text[0])
    mine = walk.samples == shown
    assert [r.accepted for r in rounds] == walk.accepted[mine].tolist()
    assert [sum(r.rows) for r in rounds] == walk.nodes[mine].tolist()
    assert [len(r.rows) for r in rounds] == walk.levels[mine].tolist()
    for made in rounds:
        assert all(nodes >= 1 for nodes in made.rows[: made.accepted]), "an accepted level holds the accepted node"


def test_nodes_of_a_level_are_those_that_the_runtime_selects(record: Record) -> None:
    tier = Tier(depth=3, width=2, nodes=5)
    for at in range(record.positions):
        scores = record.draft(tier.draft_rule).scores[at, :3].astype(float)
        taken = sorted((-s, level) for level, row in enumerate(scores) for s in row if np.isfinite(s))[:5]
        expected = [sum(level == i for _, level in taken) for i in range(3)]
        assert level_nodes(record, tier, at, 3, 5) == expected


def test_neighbours_differ_in_one_setting_and_are_policies() -> None:
    names = [near.name for near in neighbours(SOURCE, VERIFY_SIZES)]
    assert {"depth - 1", "depth + 1", "width + 1", "edges × 0.8", "without history"} <= set(names)
    assert len(names) == len(set(names))
    for near in neighbours(SOURCE, VERIFY_SIZES):
        assert near.source != SOURCE and len(near.source.tiers) == 2


def test_sensitivity_is_relative_to_what_ships(record: Record) -> None:
    policy = compile_policy(SOURCE, VERIFY_SIZES, record.context_max)
    replay, samples = Replay(record, chance_costs(1)), record.split_samples("report")
    chart = sensitivity(SOURCE, policy, replay, samples).charts[0]
    assert isinstance(chart, Dots)
    shipped = replay.walk(policy, samples).time_ns.sum()
    for near in neighbours(SOURCE, VERIFY_SIZES):
        found = [dot for dot in chart.dots if dot.name == near.name]
        if found:  # others are beyond the record
            other = replay.walk(compile_policy(near.source, VERIFY_SIZES, record.context_max), samples).time_ns.sum()
            assert found[0].replayed is not None and found[0].replayed.value == pytest.approx(shipped / other)


def test_a_folder_that_is_no_run_and_one_with_two_profiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="not a run folder"):
        open_subject(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    for name in ("a", "b"):
        save_profile(sample_profile(), tmp_path / f"{name}.sage.json")
    with pytest.raises(ProfileError, match="holds 2 profiles"):
        open_subject(tmp_path)


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.html"
    app(["report", str(SHIPPED), "--out", str(path), "--json"], standalone_mode=False)
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["bytes"] == path.stat().st_size and set(document["sections"]) | set(document["missing"]) == set(
        SECTIONS
    )
