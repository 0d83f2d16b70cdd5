"""Inputs: folders and data sets become the same samples as a file, and the lint names every planted bad sample."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from profiles.config import DataConfig, TuneConfig
from profiles.errors import BadInput
from profiles.registry import PairSpec, load_pair_spec
from runtime.model_side import ModelSide, read_side
from runtime.pair import Pair
from sage_tune import app
from tests.samples import MACHINE
from tuner.calibration import Sample, data_digest, load_samples, split_of
from tuner.findings import Finding, Status
from tuner.inputs import hash_share, open_source
from tuner.lint import Reader, check_language, effective_tokens, lint_data, require_sound
from tuner.machine import Device
from tuner.profiling import profile
from tuner.progress import Progress
from tuner.run_folder import RunFolder
from tuner.timing import Budget

ROOT = Path(__file__).resolve().parent.parent
SPEC = load_pair_spec("tiny-llava-ov")
SET = SPEC.calibration_path()
LONG = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture(scope="module")
def sides() -> tuple[ModelSide, ModelSide]:
    return read_side(SPEC, "target"), read_side(SPEC, "draft")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """40 small pictures, a few of them in a subfolder."""
    folder = tmp_path / "pictures"
    (folder / "more").mkdir(parents=True)
    for i in range(40):
        place = folder / "more" if i % 10 == 0 else folder
        Image.new("RGB", (28, 28), (6 * i, 0, 0)).save(place / f"{i:02}.png")
    return folder


# folders


def test_every_picture_of_a_folder_is_asked_the_default_prompt(pictures: Path) -> None:
    (pictures / ".hidden").mkdir()
    Image.new("RGB", (8, 8)).save(pictures / ".hidden" / "x.png")
    (pictures / "notes.txt").write_text("not a picture")
    samples = load_samples(pictures, DataConfig(default_prompt="What is it?"))
    assert len(samples) == 40 and {s.modality for s in samples} == {"image"}
    assert "more/00.png" in {s.id for s in samples}
    request = samples[0].request()
    assert request.images[0].size == (28, 28)
    assert request.messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "What is it?"}]


def test_the_prompt_of_a_picture_does_not_move_when_others_are_added(pictures: Path) -> None:
    (pictures / "prompts.txt").write_text("Describe it.\n\nCount the objects.\nName the colors.\n")
    before = {s.id: s.text() for s in load_samples(pictures, DataConfig())}
    for i in range(40, 80):
        Image.new("RGB", (28, 28), (0, 3 * i, 0)).save(pictures / f"a{i}.png")
    after = {s.id: s.text() for s in load_samples(pictures, DataConfig())}
    assert len(after) == 80 and before.items() <= after.items()
    assert set(before.values()) == {"Describe it.", "Count the objects.", "Name the colors."}


def test_metadata_lists_the_samples_of_a_folder(pictures: Path) -> None:
    lines: list[dict[str, Any]] = [{"file_name": f"{i:02}.png", "prompt": f"q {i}"} for i in range(40) if i % 10]
    lines[0] = {"file_name": "01.png", "id": "first", "max_new_tokens": 7, "kind": "own"}
    (pictures / "metadata.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    samples = {s.id: s for s in load_samples(pictures, DataConfig())}
    assert len(samples) == 36 and "more/00.png" not in samples
    first = samples["first"]
    assert (first.max_new_tokens, first.kind, first.text()) == (7, "own", DataConfig().default_prompt)
    assert samples["02.png"].text() == "q 2" and samples["02.png"].request().images


def test_a_folder_that_says_too_much_or_nothing_is_refused(pictures: Path, tmp_path: Path) -> None:
    (pictures / "prompts.txt").write_text("\n")
    with pytest.raises(BadInput, match=r"prompts.txt holds no prompt"):
        load_samples(pictures, DataConfig())
    (pictures / "metadata.jsonl").write_text('{"prompt": "x"}')
    with pytest.raises(BadInput, match=r"must hold one of metadata\.jsonl and prompts\.txt, it holds both"):
        load_samples(pictures, DataConfig())
    (pictures / "prompts.txt").unlink()
    with pytest.raises(BadInput, match=r"metadata.jsonl:1: a line of metadata.jsonl needs 'file_name'"):
        load_samples(pictures, DataConfig())
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"empty holds no pictures \(.png, .jpg"):
        load_samples(tmp_path / "empty", DataConfig())


# data sets


@pytest.fixture
def saved(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set of 40 rows, written by `save_to_disk`; the caches of this test stay in its folder."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("SAGE_TUNE_CACHE", str(tmp_path / "cache"))
    paths = sorted(pictures.rglob("*.png"))
    made = datasets.Dataset.from_dict(
        {
            "picture": [str(path) for path in paths],
            "question": [f"What is in picture {i}?" for i in range(40)],
            "key": [f"k{i}" for i in range(40)],
        }
    ).cast_column("picture", datasets.Image())
    made.save_to_disk(tmp_path / "saved")
    return f"hf:{tmp_path / 'saved'}"


COLUMNS = {"image_column": "picture", "prompt_column": "question", "id_column": "key"}


def test_a_saved_data_set_gives_samples_with_its_own_bytes(saved: str, pictures: Path, tmp_path: Path) -> None:
    samples = load_samples(saved, DataConfig(prompts=20, **COLUMNS))
    assert len(samples) == 20 and all(s.modality == "image" for s in samples)
    by_id = {s.id: s for s in samples}
    some = sorted(by_id)[0]
    row = int(some[1:])
    path = sorted(pictures.rglob("*.png"))[row]
    assert by_id[some].paths()[0].read_bytes() == path.read_bytes(), "pictures are not encoded again"
    assert by_id[some].text() == f"What is in picture {row}?"
    assert len(list((tmp_path / "cache").rglob("*.picture"))) == 20, "only what is used is written"
    assert data_digest(load_samples(saved, DataConfig(prompts=20, **COLUMNS))) == data_digest(samples)


def test_rows_stand_for_ids_where_no_column_is_named(saved: str) -> None:
    samples = load_samples(saved, DataConfig(**{**COLUMNS, "id_column": ""}))
    assert {s.id for s in samples} == {str(i) for i in range(40)}


def test_a_local_imagefolder_is_loaded_by_its_split(pictures: Path, saved: str, tmp_path: Path) -> None:
    lines = [{"file_name": p.relative_to(pictures).as_posix(), "prompt": "x y"} for p in pictures.rglob("*.png")]
    (pictures / "metadata.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    import datasets

    datasets.config.HF_DATASETS_CACHE = tmp_path / "hf"
    assert len(load_samples(f"hf:{pictures}:train", DataConfig())) == 40
    with pytest.raises(BadInput, match="cannot be loaded: Unknown split"):
        load_samples(f"hf:{pictures}:absent", DataConfig())


def test_a_missing_column_names_those_that_are_there(saved: str) -> None:
    with pytest.raises(BadInput, match=r"no column 'image', it has picture, question, key; name them in data\.image"):
        load_samples(saved, DataConfig())
    with pytest.raises(BadInput, match="one picture per row, 'question' holds"):
        load_samples(saved, DataConfig(image_column="question", prompt_column="key"))
    text = load_samples(saved, DataConfig(**{**COLUMNS, "image_column": ""}))
    assert {s.modality for s in text} == {"text"}


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"needs the package 'datasets'.*pip install 'sage_tune\[datasets\]'"):
        open_source("hf:someone/something", DataConfig())


# the lint


def lines_of(n: int = 40) -> list[dict[str, Any]]:
    """The first samples of the shipped set, with absolute paths so that they may stand anywhere."""
    assert SET is not None
    lines = [json.loads(text) for text in SET.read_text().splitlines()[:n]]
    for line in lines:
        for key in ("images", "video"):
            if key in line:
                line[key] = [str(SET.parent / name) for name in line[key]]
    return lines


def linted(
    tmp_path: Path, sides: tuple[ModelSide, ModelSide], lines: list[Any], spec: PairSpec = SPEC, **data: Any
) -> dict[str, Finding]:
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    report = lint_data(path, TuneConfig(data=DataConfig(**data)), spec, *sides)
    return {finding.check: finding for finding in report.findings}


def random_tokens(sides: tuple[ModelSide, ModelSide], seed: int, n: int = 200) -> str:
    """What a serving benchmark's random data set holds: uniform token ids, decoded."""
    ids = np.random.default_rng(seed).integers(5, 889, size=n)
    return str(sides[0].tokenizer.decode(ids.tolist()))


def two_splits(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A copy of the first sample under an id of another split."""
    own = split_of(lines[0]["id"], DataConfig())
    other = next(f"copy{i}" for i in range(99) if split_of(f"copy{i}", DataConfig()) != own)
    return {**lines[0], "id": other}


def same_split(lines: list[dict[str, Any]]) -> dict[str, Any]:
    own = split_of(lines[0]["id"], DataConfig())
    return {**lines[0], "id": next(f"copy{i}" for i in range(99) if split_of(f"copy{i}", DataConfig()) == own)}


def user(text: str, places: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*[{"type": "image"}] * places, {"type": "text", "text": text}]}]


def test_the_shipped_set_passes(sides: tuple[ModelSide, ModelSide]) -> None:
    assert SET is not None
    report = lint_data(SET, TuneConfig(), SPEC, *sides)
    assert {f.check: f.text for f in report.findings if f.status != "pass"} == {}
    assert {f.check for f in report.findings} >= {"rows", "splits", "pictures", "placeholders", "lengths", "language"}


@pytest.mark.parametrize(
    ("plant", "check", "status", "sentence"),
    [
        (lambda lines, _: "{broken", "rows", "fail", r"1 rows are no samples, first"),
        (lambda lines, _: {"id": "x"}, "rows", "fail", "exactly one of 'prompt' and 'messages'"),
        (lambda lines, _: {"id": "x", "messages": "hello"}, "rows", "fail", "'messages' is a list of"),
        (lambda lines, _: {"id": "x", "prompt": "x", "images": "a.png"}, "rows", "fail", "are lists of paths"),
        (lambda lines, _: lines[0], "rows", "fail", "id 'calibration-0000' was used before"),
        (
            lambda lines, _: {**lines[0], "id": "bad", "images": ["gone.png"]},
            "pictures",
            "fail",
            "no such image",
        ),
        (lambda lines, _: {**lines[0], "id": "bad", "images": ["cut.png"]}, "pictures", "fail", "cannot be decoded"),
        (
            lambda lines, _: {**lines[0], "id": "bad", "messages": user("hm?", 2)},
            "placeholders",
            "fail",
            "first 'bad': every image needs one place in the messages, got 1 for 2 places",
        ),
        (
            lambda lines, _: {"id": "bad", "messages": user("hm?", 1)},
            "placeholders",
            "fail",
            "first 'bad': every image needs one place in the messages, got 0 for 1 places",
        ),
        (
            lambda lines, _: {**lines[0], "id": "bad", "messages": user(" \n", 1)},
            "empty prompts",
            "fail",
            "first 'bad': a prompt needs at least one character",
        ),
        (lambda lines, _: two_splits(lines), "duplicates", "fail", "no sample may stand in two splits; 1 do"),
        (lambda lines, _: same_split(lines), "duplicates", "warn", "1 samples repeat another one, first '"),
        (
            lambda lines, s: {**lines[0], "id": "bad", "messages": user(random_tokens(s, 1), 1)},
            "language",
            "fail",
            "prompts must be language; 1 sample, first 'bad':",
        ),
        (
            lambda lines, _: {**lines[0], "id": "bad", "messages": user("hello" * 300, 1)},
            "language",
            "fail",
            "tokens are 3 over and over",
        ),
        (
            lambda lines, _: {**lines[0], "id": "bad", "messages": user(LONG, 1)},
            "lengths",
            "fail",
            "+ 128 new + depth 8 > 2048 positions",
        ),
    ],
)
def test_a_planted_bad_sample_is_named(
    tmp_path: Path, sides: tuple[ModelSide, ModelSide], plant: Any, check: str, status: Status, sentence: str
) -> None:
    lines: list[Any] = lines_of()
    Image.new("RGB", (84, 84), "red").save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:90])
    found = linted(tmp_path, sides, [*lines, plant(lines, sides)])
    assert found[check].status == status and sentence in found[check].text, found[check]
    assert found[check].items and {c for c, f in found.items() if f.status != "pass"} == {check}


def test_text_alone_is_refused_for_a_pair_that_sees(tmp_path: Path, sides: tuple[ModelSide, ModelSide]) -> None:
    lines = [{"id": f"p{i}", "prompt": f"What is the color of thing {i}?"} for i in range(40)]
    found = linted(tmp_path, sides, lines)["modalities"]
    assert found.status == "fail" and "text only, but 'tiny-llava-ov' is profiled for image, video" in found.text
    text_pair = SPEC.model_copy(update={"modalities": ("text",)})
    assert linted(tmp_path, sides, lines, text_pair)["modalities"].status == "pass"


class WordTokenizer:
    """One id per word of a large vocabulary."""

    def __len__(self) -> int:
        return 50_000

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [int(hash_share(word) * len(self)) for word in text.split()]}


def test_short_random_prompts_are_found_together_and_may_be_allowed(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    samples = texts_of(tmp_path, [" ".join(f"w{i}" for i in rng.integers(0, 50_000, size=12)) for _ in range(60)])
    verdict = check_language(samples, Reader(TuneConfig(), SPEC, WordTokenizer()))
    assert verdict.status == "fail" and "60 samples, first 'p" in verdict.text and "over all prompts" in verdict.text
    allowed = TuneConfig(data=DataConfig(allow_synthetic=True))
    assert check_language(samples, Reader(allowed, SPEC, WordTokenizer())).status == "warn"


def test_prose_and_code_are_language(tmp_path: Path) -> None:
    """Paragraphs of the project's own prose and source, alone and together."""
    paragraphs = (ROOT / "CONTRIBUTING.md").read_text().split("\n\n")
    code = [(ROOT / "tuner" / name).read_text() for name in ("lint.py", "live_checks.py", "replay.py")]
    samples = texts_of(tmp_path, [*paragraphs, *code])
    verdict = check_language(samples, Reader(TuneConfig(), SPEC, WordTokenizer()))
    assert verdict.status == "pass", verdict.text


def texts_of(tmp_path: Path, prompts: list[str]) -> list[Sample]:
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(json.dumps({"id": f"p{i}", "prompt": text}) for i, text in enumerate(prompts)))
    return load_samples(path, DataConfig())


@given(st.integers(2, 400), st.integers(1, 40))
def test_effective_tokens_of_uniform_draws_is_their_number(vocabulary: int, times: int) -> None:
    ids = list(range(vocabulary)) * (times + 1)
    n = len(ids)
    assert effective_tokens(ids) == pytest.approx((n - 1) / times)
    assert effective_tokens(list(range(vocabulary))) == float("inf")


def test_profiling_refuses_bad_samples_before_it_records_one(
    torch_pair: Pair, tmp_path: Path, sides: tuple[ModelSide, ModelSide]
) -> None:
    lines = lines_of()
    path = tmp_path / "set.jsonl"
    bad = {**lines[0], "id": "bad", "images": [str(tmp_path / "gone.png")]}
    path.write_text("\n".join(json.dumps(line) for line in [*lines, bad]))
    config = TuneConfig(gpu="cpu", data=DataConfig(path=str(path)))
    run = RunFolder(tmp_path / "run")
    device = Device("cpu", "cpu", MACHINE.cpu, MACHINE.device_arch)
    from rich.console import Console

    with pytest.raises(BadInput, match="pictures: 1 sample, first 'bad': no such image"):
        profile(torch_pair, config, device, run, Budget(None), Progress(Console()))
    assert not (tmp_path / "run").exists()
    skipping = config.model_copy(update={"data": DataConfig(path=str(path), skip_bad=True)})
    require_sound(load_samples(path, skipping.data), skipping, SPEC, sides[0].tokenizer)


def test_the_command_answers_with_a_table_json_and_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of()
    path = tmp_path / "set.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in [*lines, same_split(lines)]))
    assert app(["lint", str(path), "--json"], standalone_mode=False) == 0
    assert app(["lint", str(path), "--json", "--strict"], standalone_mode=False) == 1
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[-1])["status"] == "warn" and "duplicates" in printed
