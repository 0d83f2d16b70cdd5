"""Configuration: one default, one home; closed against typos; TOML that reads back as itself."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.config import TuneConfig, load_config, parse_seconds, parse_set, retuned
from profiles.config_text import to_toml
from profiles.errors import BadInput
from profiles.locations import redacted, study_location, without_password
from profiles.registry import gpu_names, load_gpu_spec, load_pair_spec, model_names
from profiles.store import parse


def test_written_configuration_reads_back_as_itself(tmp_path: Path) -> None:
    config = load_config(None, {"grid.depth": 6, "data.path": 'a "quoted"\\path', "budget_s": 60.0})
    text = to_toml(config)
    assert parse(TuneConfig, tomllib.loads(text), "text") == config
    path = tmp_path / "sage.toml"
    path.write_text(text)
    assert load_config(path, {}) == config


def test_every_field_is_explained() -> None:
    text = to_toml(TuneConfig())
    for line, after in zip(text.splitlines(), text.splitlines()[1:], strict=False):
        if " = " in after and not after.startswith("#"):
            assert line.startswith("# ") and len(line) > 8, after


def test_flags_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sage.toml"
    path.write_text("[grid]\ndepth = 3\nwidths = [1, 2]\n")
    config = load_config(path, {"grid.depth": 5, "search.trials": None})
    assert (config.grid.depth, config.grid.widths) == (5, (1, 2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[grid]\ndephth = 3\n", r"unknown key 'grid.dephth', did you mean 'depth'\?"),
        ("modle = 'x'\n", r"unknown key 'modle', did you mean 'model'\?"),
        ("[grid]\nwidths = [2, 1]\n", r"widths must ascend within \[1, 32\], got \(2, 1\)"),
        ("[grid]\nverify_sizes = [2, 4]\n", "verify_sizes must begin with 1, 2"),
        ("[grid]\ndepth = 32\n", "a chain of depth 32 needs verify size 33"),
        ("[search]\ntrials = 0\n", "search.trials: Input should be greater than or equal to 1"),
        ("[data]\ntune_share = 0.8\n", "must leave at least 0.1 to report on"),
        ("grid = 3\n", "grid: Input should be a valid dictionary"),
        ("[grid\n", "is not valid TOML"),
    ],
)
def test_mistakes_get_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sage.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        load_config(path, {})
    assert "\n" not in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no such file: .*absent.toml"):
        load_config(tmp_path / "absent.toml", {})


def test_set_takes_toml_values_and_bare_words() -> None:
    assert parse_set("grid.widths=[1, 2]") == ("grid.widths", [1, 2])
    assert parse_set("model=tiny-llava-ov") == ("model", "tiny-llava-ov")
    with pytest.raises(BadInput, match="KEY=VALUE"):
        parse_set("grid.depth")


def test_budgets() -> None:
    assert [parse_seconds(t) for t in ("90s", "10m", "1h", "45")] == [90, 600, 3600, 45]
    for text in ("soon", "-5s", "0", ""):
        with pytest.raises(BadInput, match="time budget"):
            parse_seconds(text)


def test_tuning_again_may_not_change_the_record() -> None:
    recorded = TuneConfig()
    assert retuned(recorded, None, {"search.trials": 5}).search.trials == 5
    assert retuned(recorded, None, {}) == recorded
    with pytest.raises(BadInput, match=r"'grid\.depth' is part of the record"):
        retuned(recorded, None, {"grid.depth": 3})


def test_node_counts_leave_no_verify_slot_idle() -> None:
    grid = TuneConfig().grid
    for depth in (1, 3, 8):
        for width in grid.widths:
            assert all(n + 1 in grid.verify_sizes and n >= depth for n in grid.node_counts(depth, width))


def test_every_registered_file_parses() -> None:
    assert {"tiny-llava-ov", "llava-ov-72b"} <= set(model_names())
    assert all(load_pair_spec(name).name == name for name in model_names())
    assert all(load_gpu_spec(name).name == name for name in gpu_names())


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'tiny-llava-ov'"):
        load_pair_spec("tiny-lava-ov")
    with pytest.raises(BadInput, match="unknown gpu 'h101'"):
        load_gpu_spec("h101")


SECRET = "hunter2-4711"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@db.example:5432/studies",
        f"postgresql+psycopg://me:{SECRET}@db/studies?sslmode=require",
        f"postgresql://me@db/studies?password={SECRET}&sslmode=require",
        f"postgresql://db/studies?sslmode=require&password={SECRET}",
        f"postgresql://:{SECRET}@db/studies",
    ],
)
def test_a_password_is_used_and_never_written_down(url: str, tmp_path: Path) -> None:
    config = load_config(None, {"search.storage": url})
    assert config.search.storage == url, "the driver needs it"
    for text in (config.model_dump_json(), to_toml(config), redacted(url), redacted(f"tune RUN --storage '{url}'")):
        assert SECRET not in text and "db" in text
    stored = parse(TuneConfig, config.model_dump(mode="json"), "stored").search.storage
    assert stored is not None and stored == without_password(url) and study_location(stored)[0] == "postgresql"
    assert without_password(stored) == stored
    for wrong in (url.replace("postgresql", "mysql"), url.replace("postgresql", "postgres")):
        with pytest.raises(BadInput) as caught:
            load_config(None, {"search.storage": wrong})
        assert SECRET not in str(caught.value)


@given(st.text(st.characters(exclude_characters="@/?#&", exclude_categories=["Cs"]), min_size=4))
def test_no_password_survives(password: str) -> None:
    written = f"postgresql://me:<{password}>@host:5432/db?sslmode=require"
    assert without_password(written) == "postgresql://me@host:5432/db?sslmode=require"
    assert redacted(written) == "postgresql://me:***@host:5432/db?sslmode=require"


@pytest.mark.parametrize(
    "text",
    [
        "runs/x/study.journal",
        "journal:/tmp/a:b@c",
        "s3://bucket/a@b",
        "postgresql://me@h/d",
        "s3://b/w?",
        "s3://b/?a=1&",
    ],
)
def test_places_without_a_password_stay_as_they_are(text: str) -> None:
    assert redacted(text) == without_password(text) == text
