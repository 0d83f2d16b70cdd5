"""`export` and `verify-applied` on the shipped profile, as a user meets them; nothing here loads a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from profiles.store import load_profile
from tests.test_cli import sage
from tests.test_exports import SHIPPED


def test_export_says_what_is_lost(tmp_path: Path) -> None:
    done = sage("export", str(SHIPPED), "--to", "vllm", "--out", str(tmp_path / "o"), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["numbers"] is None and document["from_profile"]["row"] == "best chain"
    assert "tiers.stop" in done.stdout and "--run RUN" in " ".join(done.stdout.split())
    tables = [line for line in done.stdout.splitlines()[:-1] if not line.startswith("wrote ")]
    assert max(map(len, tables)) <= 120


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--to", "vllm", "--engine-version", "0.1"), "0.33.0"),
        (("--to", "tgi"), "trtllm, sglang, vllm"),
        (("--to", "vllm", "--method", "eagle3"), "--draft"),
        (("--to", "vllm", "--run", "nowhere"), "not a run folder"),
    ],
)
def test_what_cannot_be_exported(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = sage("export", str(SHIPPED), *arguments, "--out", str(tmp_path / "o"))
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("change", "code", "verdict"),
    [
        ({}, 0, "applied"),
        ({"tier_rounds": {"5,2,5,stop 0.3": 900, "8,4,31": 100}}, 1, "not this policy"),
        ({"digest": "0" * 64}, 1, "not this policy"),
        ({"acceptance_length": 1.2, "digest": None}, 1, "not this policy"),
        ({"acceptance_length": 1.2}, 4, "inconclusive"),
        ({"digest": None, "rounds": 3, "tier_rounds": {"5,2,5,stop 0.3": 3}}, 4, "inconclusive"),
    ],
)
def test_a_log_of_our_own_runtime(tmp_path: Path, change: dict[str, object], code: int, verdict: str) -> None:
    log = {
        "rounds": 1000,
        "acceptance_length": 4.46,
        "tier_rounds": {"5,2,5,stop 0.3": 1000},
        "digest": load_profile(SHIPPED).digest,
    }
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({k: v for k, v in {**log, **change}.items() if v is not None}) + "\n")
    done = sage("verify-applied", str(SHIPPED), str(path), "--json")
    assert done.returncode == code, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["verdict"] == verdict


def test_counters_must_be_of_the_engine_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text("vllm:spec_decode_num_drafts_total 5\n")
    done = sage("verify-applied", str(SHIPPED), str(path), "--engine", "trtllm")
    assert done.returncode == 2 and "vllm" in done.stderr
