"""Calibration files: splits that never move, mistakes that name their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles.config import DataConfig
from profiles.errors import BadInput
from tuner.calibration import SPLITS, Sample, data_digest, load_samples, split_of


def write(path: Path, lines: list[object]) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def texts(n: int) -> list[object]:
    return [{"id": f"p{i}", "prompt": f"question {i}", "kind": "ab"[i % 2]} for i in range(n)]


def test_splits_depend_on_the_id_alone(tmp_path: Path) -> None:
    few = load_samples(write(tmp_path / "a.jsonl", texts(60)), DataConfig())
    more = load_samples(write(tmp_path / "b.jsonl", texts(200)), DataConfig())
    split = {s.id: s.split for s in more}
    assert all(split[s.id] == s.split == split_of(s.id, DataConfig()) for s in few)
    shares = [sum(s.split == name for s in more) / len(more) for name in SPLITS]
    assert shares == pytest.approx([0.5, 0.2, 0.3], abs=0.1)


def test_a_limit_keeps_kinds_and_splits_in_proportion(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", texts(200))
    chosen = load_samples(path, DataConfig(prompts=40))
    assert len(chosen) == 40
    assert 15 <= sum(s.kind == "a" for s in chosen) <= 25
    again = load_samples(path, DataConfig(prompts=40))
    assert [s.id for s in again] == [s.id for s in chosen]
    assert {s.id for s in chosen} <= {s.id for s in load_samples(path, DataConfig(prompts=80))}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", r":61: not valid JSON"),
        ({"prompt": "x"}, r":61: a sample needs 'id'"),
        ({"id": "x"}, r"exactly one of 'prompt' and 'messages'"),
        ({"id": "p3", "prompt": "x"}, r":61: id 'p3' was used before"),
        ({"id": "x", "prompt": "x", "image": ["a.png"]}, r"unknown keys \['image'\]"),
        ({"id": "x", "prompt": "x", "images": ["a"], "video": ["b"]}, "images or a video, not both"),
        ({"id": "x", "prompt": "x", "max_new_tokens": 0}, "max_new_tokens >= 2 must hold, got 0"),
    ],
)
def test_mistakes_name_their_line(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load_samples(write(tmp_path / "a.jsonl", [*texts(60), line]), DataConfig())


def test_too_few_prompts_for_a_split(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="every split needs at least 3 prompts"):
        load_samples(write(tmp_path / "a.jsonl", texts(4)), DataConfig())
    with pytest.raises(BadInput, match="no such calibration file"):
        load_samples(tmp_path / "absent.jsonl", DataConfig())


def test_bad_pictures_name_sample_and_file(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    lines = [*texts(60), {"id": "bad", "prompt": "x", "images": ["broken.png"]}]
    samples = load_samples(
        write(tmp_path / "a.jsonl", [*lines, {"id": "gone", "prompt": "x", "images": ["no.png"]}]), DataConfig()
    )
    by_id = {s.id: s for s in samples}
    with pytest.raises(BadInput, match=r"sample 'bad': .*broken.png"):
        by_id["bad"].request()
    with pytest.raises(BadInput, match=r"sample 'gone': no such image"):
        by_id["gone"].request()


def test_the_data_digest_covers_the_pictures(tmp_path: Path, calibration: list[Sample]) -> None:
    before = data_digest(calibration[:5])
    assert data_digest(calibration[:5]) == before != data_digest(calibration[:4])


def test_the_shipped_set_is_sound(calibration: list[Sample]) -> None:
    assert len(calibration) >= 200
    assert {s.modality for s in calibration} == {"image", "video"}
    for sample in calibration:
        request = sample.request()
        assert request.images or request.videos
