"""Pairs and devices on the command line: what is missing is said at once, what is estimated is marked, and a vision
pair of one's own goes all the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from profiles.registry import model_names
from profiles.store import load_profile
from tests.families import build_pair, picture
from tests.test_cli import SMALL, TUNE, sage

NO_DRIVER = not Path("/proc/driver/nvidia/version").exists()
without_accelerator = pytest.mark.skipif(not NO_DRIVER, reason="this machine has an accelerator")


def profile_and_tune(folder: Path, data: Path, *pair: str) -> dict[str, Any]:
    run = folder / "run"
    arguments = ["--gpu", "cpu", "--data", str(data), "--out", str(run), "--set=threads=1", *SMALL]
    done = sage("profile", *pair, *arguments)
    assert done.returncode == 0, done.stderr
    done = sage("tune", str(run), "--json", *TUNE)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def calibration(folder: Path) -> Path:
    """Prompts with none, one and two pictures, at the first and at a later turn."""
    for i in range(4):
        picture(i, 50 + 20 * i, 60).save(folder / f"{i}.png")
    lines = []
    for i in range(30):
        first = [{"type": "image"}] * (i % 3) + [{"type": "text", "text": f"question {i}"}]
        later = [{"role": "assistant", "content": [{"type": "text", "text": "well"}]}]
        later += [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "and this?"}]}]
        line = {"id": f"p{i}", "messages": [{"role": "user", "content": first}], "max_new_tokens": 14}
        line["messages"] += later if i % 2 else []  # type: ignore[operator]
        pictures = [f"{(i + k) % 4}.png" for k in range(i % 3 + i % 2)]
        lines.append(line | ({"images": pictures} if pictures else {}))
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_two_folders_are_a_pair(tmp_path: Path) -> None:
    build_pair("qwen3_vl", tmp_path)
    pair = ["--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--device-map", "cpu"]
    data = ["--data", str(calibration(tmp_path)), "--out", str(tmp_path / "run")]
    done = sage("profile", *pair, "--gpu", "cpu", *data, "--dry-run", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "plan: target+draft on cpu (torch float32" in done.stdout and "record 30 of 30 prompts" in done.stdout


@pytest.mark.slow
def test_two_folders_of_a_vision_family_go_all_the_way(tmp_path: Path) -> None:
    """Profiled by --target and --draft, each of which reads pictures by its own rules; decoded without naming them."""
    build_pair("smolvlm", tmp_path)
    pair = ("--target", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--device-map", "cpu")
    document = profile_and_tune(tmp_path, calibration(tmp_path), *pair)
    assert document["lossless"] is True and document["rounds_equal_share"] == 1.0
    profile = load_profile(Path(str(document["profile"])))
    assert profile.fingerprint.device_map == "cpu" and profile.pair.name == "target+draft"
    question = ["--image", str(tmp_path / "1.png"), "--prompt", "what?", "--max-new-tokens", "8", "--json"]
    done = sage("run", "--profile", str(document["profile"]), *question)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["tokens"] <= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llava_next", "qwen2_5_vl", "qwen3_vl_moe"])
def test_a_users_own_vision_pair_goes_all_the_way(tmp_path: Path, name: str) -> None:
    build_pair(name, tmp_path)
    document = profile_and_tune(tmp_path, calibration(tmp_path), "--model", str(tmp_path / "pair.toml"))
    assert document["lossless"] is True and document["rounds_equal_share"] == 1.0


@without_accelerator
@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["--gpu", "h100"], ["--gpu h100 asks for NVIDIA H100 SXM", "this machine has no accelerator", "--estimate"]),
        (["--gpu", "auto"], ["needs 151 GiB for its weights alone (bfloat16), cpu has"]),
        (["--gpu", "cpu", "--device-map", "auto", "--backend", "torch"], ["device map 'auto' has"]),
    ],
)
def test_what_is_missing_is_said_before_anything_is_loaded(arguments: list[str], messages: list[str]) -> None:
    done = sage("profile", "--model", "llava-ov-72b", *arguments)
    assert done.returncode == 3 and all(message in done.stderr for message in messages), done.stderr
    assert done.stderr.count("error:") == 1 and "Traceback" not in done.stderr


def test_an_estimate_is_marked_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = sage("profile", "--model", "llava-ov-72b", "--gpu", "h100", "--estimate", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *screen, last = done.stdout.splitlines()
    document = json.loads(last)
    assert document["mark"] == "estimated" and document["gpu"] == "h100-sxm" and document["devices"] == 2
    text = "\n".join(screen)
    for part in (
        "NVIDIA H100 SXM 80GB, bfloat16: ESTIMATED from its data sheet, nothing was measured",
        "ESTIMATED cost ratio target/draft 10.0",
        "ESTIMATED free width",
        "151 GiB of weights need 2 such devices",
    ):
        assert part in text, text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "llava-ov-72b", "--gpu", "cpu", "--estimate"], "'cpu' has no published figures"),
        (["--gpu", "h100", "--estimate"], "estimates are made for bfloat16 and float16"),
        (["--target", "./absent"], "'./absent' is neither a folder that is here nor a hub id"),
        (["--device-map", "everywhere"], "device_map: String should match pattern"),
    ],
)
def test_mistakes_with_pairs_have_their_exit_code(arguments: list[str], message: str) -> None:
    done = sage("profile", *arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_the_lists_say_what_fits_and_what_is_here() -> None:
    models = sage("models").stdout
    assert all(name in models for name in model_names())
    assert "fits" in models and "this machine: " in models and "gated" in models
    gpus = sage("gpus").stdout
    assert "rtx-pro-6000" in gpus and "h100-sxm, h100" in gpus and "whitepaper" in gpus
