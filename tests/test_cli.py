"""The command line as a user meets it: exit codes, one clear line per mistake, JSON last, resuming."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import polars as pl
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from PIL import Image

from profiles.config import TuneConfig
from profiles.store import load_profile, write_json
from tuner.trace_store import load_record

ROOT = Path(__file__).resolve().parent.parent
SMALL = [
    f"--set={field}"
    for field in (
        "data.prompts=30",
        "data.max_new_tokens=24",
        "grid.depth=4",
        "grid.widths=[1,2]",
        "grid.verify_sizes=[1,2,3,4,5,6,8]",
        "grid.contexts=2",
        "timing.samples=5",
    )
]
SIGNER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TUNE = [
    "--trials=25",
    "--set=confirm.repeats=1",
    "--set=confirm.report_prompts=5",
    "--set=confirm.select_prompts=4",
]


def sage(*args: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "sage_tune.py"), *args], capture_output=True, text=True, cwd=cwd, timeout=500
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object], dict[str, object]]:
    """profile, then tune, one by one: the run folder and both JSON documents."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    profiled = sage("profile", "--model", "tiny-llava-ov", "--gpu", "cpu", "--out", str(folder), "--json", *SMALL)
    assert profiled.returncode == 0, profiled.stderr
    key = folder.with_name("signer.key")
    key.write_bytes(SIGNER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    done = sage("tune", str(folder), "--json", "--sign", str(key), *TUNE)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(profiled.stdout.splitlines()[-1]), json.loads(done.stdout.splitlines()[-1])


def test_profile_then_tune_freezes_a_profile(tuned: tuple[Path, dict[str, object], dict[str, object]]) -> None:
    folder, profiled, document = tuned
    assert profiled["prompts"] == 30 and profiled["cost_ratio"] > 1  # type: ignore[operator]
    assert document["lossless"] is True and document["trials"] == 25
    assert document["shipped"] in ("adaptive", "static", "off")
    assert set(document["speedup"]) == {"median", "low", "high"}  # type: ignore[arg-type]
    profile = load_profile(Path(str(document["profile"])))
    assert profile.digest == document["digest"] and profile.shipped == document["shipped"]
    rows = {result.name: result for result in profile.evidence.results}
    assert list(rows)[:2] == ["plain", "best chain"] and list(rows)[-1] == "oracle"
    assert {"best static", "sage-paper", "calibrated gates", "growth tree"} <= set(rows)
    assert profile.evidence.shipped_name in rows and document["shipped_policy"] == profile.evidence.shipped_name
    for name, row in rows.items():
        share = row.share_of_oracle
        assert share is not None and share.median <= 1.0 + 1e-9, f"{name} is faster than the oracle"
    for name in (
        "config.json",
        "costs.json",
        "cost_samples.parquet",
        "curves.json",
        "confirm.json",
        "confirm_runs.parquet",
        "study.journal",
    ):
        assert (folder / name).exists(), name
    assert TuneConfig.model_validate_json((folder / "config.json").read_text()).backend == "onnx"


def test_run_decodes_with_the_profile(tuned: tuple[Path, dict[str, object], dict[str, object]]) -> None:
    profile = str(tuned[2]["profile"])
    picture = next((ROOT / "profiles/pairs/tiny-llava-ov/calibration").glob("*.png"))
    arguments = ["run", "--profile", profile, "--image", str(picture), "--prompt", "Describe the image."]
    done = sage(*arguments, "--stats", "--json", "--max-new-tokens", "20")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["digest"] == tuned[2]["digest"] and 1 <= document["tokens"] <= 20
    assert document["text"].split()[0] in done.stdout
    assert "acceptance length" in done.stdout and str(tuned[2]["digest"])[:12] in done.stdout


def test_the_profile_is_signed_and_checked(
    tuned: tuple[Path, dict[str, object], dict[str, object]], tmp_path: Path
) -> None:
    """Timings on a shared machine may come out any way; what does not depend on them must hold."""
    profile, junit = str(tuned[2]["profile"]), tmp_path / "report.xml"
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(SIGNER.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    assert sage("verify", profile, "--trust", str(trusted)).returncode == 0
    done = sage("check", profile, "--trust", str(trusted), "--budget", "5s", "--junit", str(junit), "--json")
    document = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == document["exit_code"] == {"pass": 0, "inconclusive": 4}.get(document["verdict"], 1)
    stages = {stage["check"]: stage["status"] for stage in document["stages"]}
    assert stages["fingerprint"] == stages["counters"] == "pass" and stages["costs"] in (
        "pass",
        "warn",
        "fail",
        "skipped",
    )
    assert document["verdict"] in done.stdout and document["digest"] == tuned[2]["digest"]
    assert {case.get("name") for case in ElementTree.parse(junit).getroot()} >= {"counters", "verdict"}


@pytest.mark.slow
def test_a_killed_tune_leaves_nothing_half_written(
    tuned: tuple[Path, dict[str, object], dict[str, object]], tmp_path: Path
) -> None:
    """SIGKILL at many moments of the whole command; then the same command ends well."""
    folder = tmp_path / "run"
    shutil.copytree(tuned[0], folder)
    command = [sys.executable, str(ROOT / "sage_tune.py"), "tune", str(folder), *TUNE]
    start = time.monotonic()
    subprocess.run(command, capture_output=True, cwd=ROOT, timeout=500, check=True)
    whole_s = time.monotonic() - start
    for share in (0.3, 0.5, 0.7, 0.85, 0.93, 0.97, 0.99):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
        time.sleep(share * whole_s)
        process.kill()
        process.wait()
        for path in folder.glob("*.json"):
            json.loads(path.read_text())
        load_profile(next(folder.glob("*.sage.json")))
        for path in folder.glob("*.parquet"):
            pl.read_parquet(path)
    assert subprocess.run(command, capture_output=True, cwd=ROOT, timeout=500).returncode == 0


def test_a_modality_outside_the_regime_uses_the_safe_tier(
    tuned: tuple[Path, dict[str, object], dict[str, object]],
) -> None:
    done = sage("run", "--profile", str(tuned[2]["profile"]), "--prompt", "hello", "--json", "--max-new-tokens", "8")
    assert done.returncode == 0 and "safe tier" in done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1])["tier_rounds"]) <= {"off"}


def test_sampling_with_a_greedy_profile_uses_the_safe_tier(
    tuned: tuple[Path, dict[str, object], dict[str, object]],
) -> None:
    picture = next((ROOT / "profiles/pairs/tiny-llava-ov/calibration").glob("*.png"))
    arguments = ["run", "--profile", str(tuned[2]["profile"]), "--image", str(picture), "--prompt", "What is this?"]
    flags = ["--temperature", "0.9", "--top-p", "0.95", "--top-k", "50", "--seed", "7", "--max-new-tokens", "12"]
    done = sage(*arguments, *flags, "--json")
    assert done.returncode == 0, done.stderr
    assert "tuned for greedy, this request is temperature 0.9, top-k 50, top-p 0.95; using the safe" in done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert set(document["tier_rounds"]) <= {"off"} and document["sampling"]["seed"] == 7
    alone = sage(*arguments, "--top-p", "0.9")
    assert alone.returncode == 2 and "top_p needs temperature > 0" in alone.stderr


@pytest.mark.slow
def test_tuning_asks_for_no_size_that_ran_out_of_memory(
    tuned: tuple[Path, dict[str, object], dict[str, object]], tmp_path: Path
) -> None:
    """A cost table whose larger sizes were dropped, as `profile` writes it where they did not fit memory."""
    folder = tmp_path / "run"
    shutil.copytree(tuned[0], folder)
    table = json.loads((folder / "costs.json").read_text())
    table["passes"] = [p for p in table["passes"] if p["kind"] != "verify" or p["n"] <= 4]
    write_json(folder / "costs.json", {**table, "dropped_sizes": [5, 6, 8]})
    done = sage("tune", str(folder), "--json", *TUNE)
    assert done.returncode == 0, done.stderr
    profile = load_profile(Path(str(json.loads(done.stdout.splitlines()[-1])["profile"])))
    assert profile.evidence.cost_table.dropped_sizes == (5, 6, 8)
    assert all(int(tier.split(",")[2]) <= 3 for r in profile.evidence.results for tier in r.tiers if tier != "off")


def test_profiling_again_with_other_inputs_is_refused(tuned: tuple[Path, dict[str, object], dict[str, object]]) -> None:
    done = sage("profile", "--out", str(tuned[0]), "--gpu", "cpu", *SMALL, "--set", "grid.depth=3")
    assert done.returncode == 2 and "was made with grid" in done.stderr and "choose another folder" in done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.write_bytes(p.read_bytes().replace(b'"depth": ', b'"depth":  1', 1)), "sage.json"),
        (lambda p: write_json(p, json.loads(p.read_text()) | {"polcy": {}}), "did you mean 'policy'"),
        (lambda p: p.write_bytes(p.read_bytes()[:500]), "not valid JSON"),
    ],
)
def test_a_damaged_profile_is_refused(
    tuned: tuple[Path, dict[str, object], dict[str, object]], tmp_path: Path, change: object, message: str
) -> None:
    copy = tmp_path / "copy.sage.json"
    copy.write_bytes(Path(str(tuned[2]["profile"])).read_bytes())
    change(copy)  # type: ignore[operator]
    done = sage("run", "--profile", str(copy), "--prompt", "x")
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_requests_get_one_clear_error(
    tuned: tuple[Path, dict[str, object], dict[str, object]], tmp_path: Path
) -> None:
    profile = str(tuned[2]["profile"])
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nonsense")
    picture = tmp_path / "p.png"
    Image.new("RGB", (84, 84), "blue").save(picture)
    for arguments, message in (
        (["--prompt", "x", "--image", str(tmp_path / "absent.png")], "no such image"),
        (["--prompt", "x", "--image", str(broken)], "not an image"),
        (["--prompt", "  ", "--image", str(picture)], "the prompt is empty"),
        (["--prompt", "x", "--image", str(picture), "--max-new-tokens", "100000"], "maximal positions"),
        (["--prompt", "word " * 3000, "--image", str(picture)], "maximal positions"),
    ):
        done = sage("run", "--profile", profile, *arguments)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert done.stderr.count("error:") == 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["profile", "--model", "nonesuch"], 2, "unknown model 'nonesuch'"),
        (["profile", "--model", "llava-ov-72b", "--gpu", "h100"], 3, "this machine has"),
        (["profile", "--gpu", "warp9"], 2, "unknown gpu 'warp9'"),
        (["profile", "--set", "grid.dephth=3"], 2, "did you mean 'depth'"),
        (["profile", "--config", "absent.toml"], 2, "no such file"),
        (["profile", "--budget", "soon"], 2, "90s, 10m or 1h"),
        (["profile", "--data", "absent.jsonl", "--gpu", "cpu"], 2, "no such calibration file"),
        (["tune", "absent"], 2, "is not a run folder"),
        (["run", "--profile", "absent.sage.json", "--prompt", "x"], 2, "no such file"),
        (["run", "--prompt", "x"], 2, "--profile"),
        (["frobnicate"], 2, "No such command"),
    ],
)
def test_mistakes_have_their_exit_code(arguments: list[str], code: int, message: str) -> None:
    if "h100" in arguments and Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an accelerator")
    done = sage(*arguments)
    assert done.returncode == code, done.stderr
    assert message in done.stderr and "Traceback" not in done.stderr


def test_init_writes_what_profile_reads(tmp_path: Path) -> None:
    path = tmp_path / "sage.toml"
    assert sage("init", str(path), "--model", "tiny-llava-ov", "--gpu", "cpu").returncode == 0
    again = sage("init", str(path))
    assert again.returncode == 2 and "exists" in again.stderr
    plan = sage("profile", "--config", str(path), "--out", str(tmp_path / "run"), "--dry-run", *SMALL)
    assert plan.returncode == 0, plan.stderr
    assert "record 30 of 30 prompts" in plan.stdout and "MB" in plan.stdout
    assert not (tmp_path / "run").exists(), "a dry run leaves nothing behind"


def test_lists_show_what_is_known() -> None:
    assert "llava-ov-72b" in sage("models").stdout
    gpus = sage("gpus").stdout
    assert "h100-sxm" in gpus and "this machine" in gpus


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupted_profile_loses_nothing_and_resumes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, str(ROOT / "sage_tune.py"), "profile", "--gpu", "cpu", "--out", str(folder), *SMALL]
    for wanted in (3, 8):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        deadline = time.monotonic() + 200
        while len(list(folder.glob("trace/parts/*.parquet"))) < wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130 and "the same command goes on" in errors, errors
        assert "Traceback" not in errors
    kept = {p.name: p.stat().st_mtime_ns for p in folder.glob("trace/parts/*.parquet")}
    assert len(kept) >= 8 and not list(folder.rglob("*.tmp"))
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500)
    assert done.returncode == 0, done.stderr
    after = {p.name: p.stat().st_mtime_ns for p in folder.glob("trace/parts/*.parquet")}
    assert len(after) == 30 and all(after[name] == when for name, when in kept.items()), "a sample was recorded twice"


def test_a_budget_stops_cleanly_and_the_same_command_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["profile", "--gpu", "cpu", "--out", str(folder), *SMALL]
    first = sage(*arguments, "--budget", "0.5s")
    assert first.returncode == 4, first.stderr
    assert "run the command again to go on" in first.stderr
    assert sage(*arguments).returncode == 0


@pytest.mark.parametrize(("backend", "temperature"), [("onnx", 0.0), ("torch", 0.8)])
def test_a_users_own_text_pair_goes_all_the_way(
    own_pair_file: Path, tmp_path: Path, backend: str, temperature: float
) -> None:
    """Random weights: whatever ships, greedy or sampled, its output and its rounds are those of the record."""
    data = tmp_path / "prompts.jsonl"
    lines = [{"id": f"p{i}", "prompt": f"question {i}", "max_new_tokens": 16} for i in range(40)]
    data.write_text("\n".join(json.dumps(line) for line in lines))
    run, common = tmp_path / "run", ["--model", str(own_pair_file), "--gpu", "cpu", "--backend", backend]
    sampling = ["--set", f"sampling.temperature={temperature}"] if temperature else []
    done = sage("profile", *common, "--data", str(data), "--out", str(run), *SMALL, *sampling)
    assert done.returncode == 0, done.stderr
    assert load_record(run / "trace").manifest.sampling.temperature == temperature
    done = sage("tune", str(run), "--json", *TUNE)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout.splitlines()[-1])
    assert document["lossless"] is True and document["rounds_equal_share"] == 1.0
    ask = ["run", "--profile", str(document["profile"]), "--model", str(own_pair_file), "--prompt", "hello"]
    ask += ["--max-new-tokens", "16", "--json"]
    done = sage(*ask)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["sampling"]["temperature"] == temperature
    if temperature:
        greedy = sage(*ask, "--temperature", "0")
        assert "tuned for temperature 0.8, this request is greedy; using the safe tier" in greedy.stderr
        warmer = sage(*ask, "--temperature", "1")
        assert "tuned for temperature 0.8, decoding temperature 1; output is right" in warmer.stderr


def test_an_export_of_a_run_and_its_proof(
    tuned: tuple[Path, dict[str, object], dict[str, object]], tmp_path: Path
) -> None:
    """Searched on the record, its loss replayed; then counters that fit, and counters that do not."""
    folder, _, document = tuned
    profile, out = str(document["profile"]), tmp_path / "vllm"
    done = sage("export", profile, "--to", "vllm", "--run", str(folder), "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["numbers"]["tried"] >= 5 and report["numbers"]["loss"]["mark"] == "replayed"
    depth = report["lowered"]["source"]["tiers"][0]["depth"]
    length = report["numbers"]["lowered"]["acceptance_length"]["median"]
    rounds = 20_000
    for per_round, code, word in ((depth, 0, "applied"), (depth + 3, 1, "not this policy")):
        counters = {
            "spec_decode_num_drafts": rounds,
            "spec_decode_draft_tokens": rounds * per_round,
            "spec_decode_accepted_tokens": rounds * (length - 1),
        }
        metrics = tmp_path / "bench.json"
        metrics.write_text(json.dumps(counters))
        proof = sage("verify-applied", profile, str(metrics), "--export", str(out), "--json")
        assert proof.returncode == code, proof.stderr
        assert json.loads(proof.stdout.splitlines()[-1])["verdict"] == word
