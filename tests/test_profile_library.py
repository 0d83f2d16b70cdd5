"""Looking up a profile, showing one, and comparing two: decisions first, and a near match is never taken silently."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from commands.lookup import found_for
from commands.opening import open_pair
from profiles.config import TuneConfig
from profiles.difference import ABSENT, differences
from profiles.errors import BadInput, Inconclusive
from profiles.measurement import Interval
from profiles.policy_profile import PolicyProfile
from profiles.registry import load_pair_spec
from profiles.store import load_profile, save_profile
from runtime.pair import Pair, pair_record
from tests.samples import MACHINE, sample_profile
from tests.samples import pair_record as sample_pair
from tests.test_fuzz_profile import gated_profile
from tuner.library import SHIPPED_LIBRARY, best_match, planned_fingerprint, require_accepted
from tuner.machine import fingerprint
from tuner.plan import plan_pair
from tuner.profile_screens import difference_screen, profile_screen

ROOT = Path(__file__).resolve().parent.parent
FASTER = Interval(median=3.0, low=2.9, high=3.1, mark="measured", prompts=40)


def shelf(folder: Path, **profiles: PolicyProfile) -> Path:
    for name, profile in profiles.items():
        save_profile(profile, folder / f"{name}.sage.json")
    return folder


def on(**changes: object) -> PolicyProfile:
    """The sample profile, tuned on another machine."""
    return sample_profile().model_copy(update={"fingerprint": MACHINE.model_copy(update=changes)})


def test_the_profile_of_this_machine_is_tuned(tmp_path: Path) -> None:
    evidence = sample_profile().evidence.model_copy(update={"speedup": FASTER})
    faster = sample_profile().model_copy(update={"evidence": evidence})
    folder = shelf(tmp_path, a=sample_profile(), b=faster, c=on(threads=4), d=on(host="elsewhere"))
    found = best_match(sample_pair(name="called otherwise"), MACHINE, [folder])
    assert found.result == "tuned" and found.path == folder / "b.sage.json" and found.looked_at == 4
    assert found.differences == () and require_accepted(found, "tuned") == found.path


def test_a_near_match_is_named_and_needs_a_word(tmp_path: Path) -> None:
    folder = shelf(tmp_path, near=on(threads=4), far=on(threads=4, cpu="Other", governor="powersave"))
    found = best_match(sample_pair(), MACHINE, [folder])
    assert found.result == "nearest" and found.path == folder / "near.sage.json"
    assert [(row.field, row.saved, row.found) for row in found.differences] == [("threads", 4, 2)]
    with pytest.raises(Inconclusive, match=r"here threads differ.*--accept nearest takes it"):
        require_accepted(found, "tuned")
    assert require_accepted(found, "nearest") == found.path
    document = json.loads(json.dumps(found.document()))
    assert document["result"] == "nearest" and document["differences"][0]["kind"] == "soft"


def test_without_a_match_plain_decoding_is_what_is_left(tmp_path: Path) -> None:
    other = sample_profile().model_copy(update={"pair": sample_pair(draft_weights="x" * 64)})
    folder = shelf(tmp_path, engine=on(backend="torch"), other=other)
    (tmp_path / "broken.sage.json").write_text("{")
    found = best_match(sample_pair(), MACHINE, [folder])
    assert found.result == "default" and found.path is None and found.document()["policy"] == "off"
    reasons = " ".join(found.passed_over)
    assert "tuned with backend 'torch', this machine has 'onnx'" in reasons
    assert "draft weights differ" in reasons and "not valid JSON" in reasons
    with pytest.raises(Inconclusive, match="plain decoding is safe"):
        require_accepted(found, "default")
    assert found.accepted("default") and not found.accepted("nearest")
    with pytest.raises(BadInput, match="no such library folder"):
        best_match(sample_pair(), MACHINE, [tmp_path / "absent"])


def test_what_is_planned_is_what_is_loaded(onnx_pair: Pair) -> None:
    """A lookup loads no weights, and sees the same pair and the same machine."""
    assert pair_record(load_pair_spec("tiny-llava-ov")) == onnx_pair.record
    plan, _, device = plan_pair(TuneConfig(gpu="cpu", backend="onnx"))
    assert planned_fingerprint(plan, device) == fingerprint(onnx_pair.target, device, onnx_pair.threads)
    torch_plan, _, device = plan_pair(TuneConfig(gpu="cpu", backend="torch", threads=1))
    model = open_pair(torch_plan).target
    assert planned_fingerprint(torch_plan, device) == fingerprint(model, device, 1)


def test_differences_are_sorted_into_decisions_and_evidence() -> None:
    left = sample_profile().sealed()
    assert differences(left, left.model_copy(update={"signature": None})) == differences(left, left)
    assert not differences(left, left).decisions and not differences(left, left).evidence
    policy = left.policy.model_copy(update={"edges": (0.3,)})
    evidence = left.evidence.model_copy(update={"speedup": FASTER, "curves": ()})
    right = left.model_copy(update={"policy": policy, "evidence": evidence, "reason": "another"}).sealed()
    found = differences(left, right)
    assert [(row.path, row.left, row.right) for row in found.decisions] == [("policy.edges.0", 0.2, 0.3)]
    assert [row.path for row in found.evidence][:2] == ["reason", "evidence.speedup.median"]


def test_long_lists_are_one_row_and_missing_values_are_named() -> None:
    left, right = sample_profile().sealed(), gated_profile()
    table = left.evidence.cost_table
    passes = tuple(p.model_copy(update={"time_ns": 2e5}) for p in table.passes)
    changed = right.model_copy(
        update={
            "evidence": right.evidence.model_copy(update={"cost_table": table.model_copy(update={"passes": passes})})
        }
    ).sealed()
    rows = {row.path: row for row in differences(left, changed).evidence}
    assert "16 values differ" in rows["evidence.cost_table.passes"].right
    assert rows["gate"].left is None
    short = left.model_copy(update={"policy": left.policy.model_copy(update={"verify_sizes": (1, 2, 4)})})
    assert {row.path: row.right for row in differences(left, short).decisions} == {"policy.verify_sizes.3": ABSENT}


def screen(what: object) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()


def test_screens_show_decisions_first() -> None:
    profile = gated_profile()
    text = screen(profile_screen(profile))
    order = [text.index(part) for part in ("decisions", "policy: entropy, top 10", "speedup", "machine", "provenance")]
    assert order == sorted(order)
    assert "0.2–1" in text and "2,2,3" in text and "signed by cccc" in text and "1 prompts with counters" in text
    other = profile.model_copy(update={"policy": profile.policy.model_copy(update={"edges": (0.3,)})}).sealed()
    text = screen(difference_screen(differences(profile, other), profile, other))
    assert "they decide differently" in text and "policy.edges.0" in text and "evidence: no difference" in text
    same = screen(difference_screen(differences(profile, profile), profile, profile))
    assert "both decide the same" in same


@pytest.mark.parametrize("path", sorted(SHIPPED_LIBRARY.glob("*.json")), ids=lambda p: p.name)
def test_shipped_profiles_can_be_shown(path: Path) -> None:
    assert load_profile(path).name in screen(profile_screen(load_profile(path)))


def sage(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "sage_tune.py", *args]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=200)


def test_show_and_diff_from_the_command_line(tmp_path: Path) -> None:
    a, b = (str(tmp_path / f"{name}.sage.json") for name in "ab")
    profile = sample_profile()
    save_profile(profile, Path(a))
    save_profile(profile.model_copy(update={"reason": "another"}), Path(b))
    shown = sage("show", a, "--json")
    assert shown.returncode == 0 and json.loads(shown.stdout.splitlines()[-1])["name"] == profile.name
    same = sage("diff", a, b, "--json")
    assert same.returncode == 0 and json.loads(same.stdout.splitlines()[-1])["same_decisions"] is True
    changed = profile.model_copy(update={"regime": profile.regime.model_copy(update={"context_max": 99})})
    save_profile(changed, Path(b))
    different = sage("diff", a, b)
    assert different.returncode == 1 and "regime.context_max" in different.stdout


def test_lookup_from_the_command_line(tmp_path: Path) -> None:
    """The library as it is shipped, seen from this machine, and an empty one."""
    found = sage("lookup", "--model", "tiny-llava-ov", "--gpu", "cpu", "--json", "--accept", "nearest")
    document = json.loads(found.stdout.splitlines()[-1])
    assert document["result"] in ("tuned", "nearest", "default") and document["looked_at"] >= 1
    assert found.returncode == (4 if document["result"] == "default" else 0)
    run = sage("run", "--model", "tiny-llava-ov", "--library", str(tmp_path), "--prompt", "hello")
    assert run.returncode == 4 and "tune it here, or give --profile" in run.stderr
    assert sage("run", "--prompt", "hello").returncode == 2


def test_only_known_words_are_accepted() -> None:
    with pytest.raises(BadInput, match="--accept takes tuned, nearest, default, got 'any'"):
        found_for("tiny-llava-ov", "cpu", None, None, "any")
