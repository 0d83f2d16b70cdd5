"""The artefact: same bytes for the same content, any change found, old files still read."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from profiles.admission import admit, outside_regime, sampling_notes, sampling_of
from profiles.errors import BadInput, ProfileError
from profiles.policy_profile import PolicyProfile
from profiles.provenance import canonical_json
from profiles.pruning import NO_PRUNING
from profiles.sampling import AS_MADE, Sampling, SamplingRegime
from profiles.store import atomic_path, load_profile, save_profile, write_json
from tests.samples import MACHINE, pair_record, sample_profile

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.sage.json"
    save_profile(sample_profile(), path)
    return path


def test_what_was_saved_is_what_is_loaded(saved: Path) -> None:
    assert load_profile(saved) == sample_profile().sealed()


def test_freezing_again_gives_the_same_bytes(saved: Path) -> None:
    before = saved.read_bytes()
    save_profile(load_profile(saved), saved)
    assert saved.read_bytes() == before


@pytest.mark.parametrize("version", [1, 2, 3])
def test_old_profiles_are_still_read(version: int) -> None:
    """Written by an older schema. A newer one must keep reading this very file."""
    profile = load_profile(FIXTURES / f"profile_v{version}.sage.json")
    assert profile.shipped in ("adaptive", "static") and profile.regime.sampling == AS_MADE.regime()
    assert profile.policy.pruning == profile.source.pruning == NO_PRUNING


def test_any_flipped_byte_is_found(saved: Path) -> None:
    data = saved.read_bytes()
    unchanged, rng = load_profile(saved), random.Random(0)
    for _ in range(400):
        at = rng.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ (1 << rng.randrange(7))]) + data[at + 1 :]
        saved.write_bytes(flipped)
        try:
            # white space between tokens may change; content may not
            assert load_profile(saved) == unchanged, f"byte {at}: {data[at - 20 : at + 20]!r}"
        except (ProfileError, BadInput) as error:
            assert str(saved) in str(error)


def test_a_changed_decision_names_the_digest(saved: Path) -> None:
    raw = json.loads(saved.read_text())
    raw["policy"]["edges"] = [0.3]
    write_json(saved, raw)
    with pytest.raises(ProfileError, match=r"changed after it was frozen: digest is [0-9a-f]{12}"):
        load_profile(saved)


def test_a_changed_number_names_the_evidence(saved: Path) -> None:
    raw = json.loads(saved.read_text())
    raw["evidence"]["speedup"]["median"] = 3.0
    write_json(saved, raw)
    with pytest.raises(ProfileError, match="evidence_digest"):
        load_profile(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["policy"].update(egdes=[0.2]), r"unknown key 'policy.egdes', did you mean 'edges'\?"),
        (lambda raw: raw["policy"]["tiers"][0].update(widht=2), r"'policy.tiers.0.widht', did you mean 'width'\?"),
        (lambda raw: raw.update(schema_version=5), "schema version 5, newer than the 4"),
        (lambda raw: raw.pop("policy"), "policy: Field required"),
    ],
)
def test_foreign_content_is_refused(saved: Path, change: object, message: str) -> None:
    raw = json.loads(saved.read_text())
    change(raw)  # type: ignore[operator]
    write_json(saved, raw)
    with pytest.raises((ProfileError, BadInput), match=message):
        load_profile(saved)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no such file"):
        load_profile(tmp_path / "absent.sage.json")
    with pytest.raises(ProfileError, match="is a folder"):
        load_profile(tmp_path)
    broken = tmp_path / "x.sage.json"
    broken.write_bytes(b"\xff\xfe{")
    with pytest.raises(ProfileError, match="not valid JSON"):
        load_profile(broken)
    with pytest.raises(BadInput, match=r"named \*.sage.json"):
        save_profile(sample_profile(), tmp_path / "profile.json")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError("killed")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_only_finite_numbers_are_written() -> None:
    with pytest.raises(BadInput, match="only finite numbers"):
        canonical_json({"x": float("nan")})


def test_admission_takes_its_own_pair_and_machine() -> None:
    profile = sample_profile().sealed()
    moved = pair_record(name="elsewhere")
    assert admit(profile, moved, MACHINE) == []
    assert admit(profile, moved, MACHINE.model_copy(update={"host": "other", "versions": {}})) == []


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("device_arch", "aarch64", "hard"),
        ("backend", "torch", "hard"),
        ("backend_version", "2.0.0", "hard"),
        ("backend_version", "1.33.0", "soft"),
        ("dtype", "bfloat16", "hard"),
        ("tensor_parallel", 4, "hard"),
        ("cpu", "Other CPU", "soft"),
        ("threads", 1, "soft"),
        ("cores", 64, "soft"),
        ("simd", ("avx512f",), "soft"),
        ("driver", "999", "soft"),
        ("governor", "powersave", "soft"),
    ],
)
def test_machine_differences_are_classed(field: str, value: object, kind: str) -> None:
    profile: PolicyProfile = sample_profile().sealed()
    found = MACHINE.model_copy(update={field: value})
    assert [row[:2] for row in MACHINE.differences(found)] == [(field, kind)]
    if kind == "hard":
        with pytest.raises(ProfileError, match=f"tuned with {field}"):
            admit(profile, pair_record(), found)
    else:
        assert admit(profile, pair_record(), found)[0].startswith(field)


def test_admission_refuses_other_weights() -> None:
    with pytest.raises(ProfileError, match="draft weights saved dddddddddddd, found xxxxxxxxxxxx"):
        admit(sample_profile().sealed(), pair_record(draft_weights="x" * 64), MACHINE)


TUNED_AT = SamplingRegime(temperature=0.7, top_p=0.9, repetition_penalty=1.0, draft_lambda=0.5)


def sampled_profile() -> PolicyProfile:
    profile = sample_profile()
    return profile.model_copy(update={"regime": profile.regime.model_copy(update={"sampling": TUNED_AT})})


def test_a_request_samples_as_the_profile_was_tuned_unless_told() -> None:
    none: dict[str, float | None] = dict.fromkeys(("temperature", "top_k", "top_p", "seed"))
    assert sampling_of(sample_profile(), **none) == AS_MADE
    assert sampling_of(sampled_profile(), **none).regime() == TUNED_AT
    warmer = sampling_of(sampled_profile(), **{**none, "temperature": 1.0, "seed": 3})
    assert (warmer.temperature, warmer.top_p, warmer.draft_lambda, warmer.seed) == (1.0, 0.9, 0.5, 3)
    assert sampling_of(sampled_profile(), temperature=0.0) == AS_MADE
    with pytest.raises(BadInput, match="flags: document: Value error, top_p needs temperature > 0"):
        sampling_of(sampled_profile(), temperature=0.0, top_p=0.5)


def test_another_class_of_sampling_is_outside_the_regime() -> None:
    sampled, greedy = Sampling(**TUNED_AT.model_dump()), AS_MADE
    assert (
        outside_regime(sampled_profile(), "image", sampled) == outside_regime(sample_profile(), "image", greedy) == []
    )
    assert outside_regime(sample_profile(), "text", sampled) == [
        "tuned for image, this request is text",
        "tuned for greedy, this request is temperature 0.7, top-p 0.9",
    ]
    assert outside_regime(sampled_profile(), "image", greedy)[0].endswith("this request is greedy")
    assert sampling_notes(sampled_profile(), sampled, 1.0) == []
    other = sampled.model_copy(update={"temperature": 0.8})
    assert "decoding temperature 0.8" in sampling_notes(sampled_profile(), other, 1.0)[0]
    assert sampling_notes(sample_profile(), greedy, 1.05) == [
        "the pair's own settings ask for repetition penalty 1.05, decoding with 1"
    ]
