"""Signatures: who signed, whether it is whole, and three different sentences when it is not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from profiles.errors import BadInput, HardwareMissing, ProfileError
from profiles.store import load_profile, save_profile, write_json
from tests.samples import sample_profile
from tuner import signing
from tuner.signing import load_key, require_trusted, sign, sign_file, trusted_keys, verify

ROOT = Path(__file__).resolve().parent.parent
PEM, PKCS8, SPKI = (
    serialization.Encoding.PEM,
    serialization.PrivateFormat.PKCS8,
    serialization.PublicFormat.SubjectPublicKeyInfo,
)
PLAIN = serialization.NoEncryption()


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    """Keys of two people, as openssl writes them."""
    found = {}
    for name, seed in (("ours", 1), ("theirs", 2)):
        key = ed25519.Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        found[name] = tmp_path / f"{name}.key"
        found[name].write_bytes(key.private_bytes(PEM, PKCS8, PLAIN))
        found[f"{name} public"] = tmp_path / f"{name}.pem"
        found[f"{name} public"].write_bytes(key.public_key().public_bytes(PEM, SPKI))
    return found


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.sage.json"
    save_profile(sample_profile(), path)
    return path


def test_a_signed_profile_is_trusted_and_keeps_its_digests(saved: Path, keys: dict[str, Path]) -> None:
    before = load_profile(saved)
    sign_file(saved, load_key(keys["ours"]))
    after = load_profile(saved)
    assert (after.digest, after.evidence_digest) == (before.digest, before.evidence_digest)
    found = verify(after, trusted_keys([keys["ours public"]]))
    assert found.status == "trusted" and "ours.pem" in found.text and found.holds
    assert verify(after, None).status == "signed"
    first = saved.read_bytes()
    sign_file(saved, load_key(keys["ours"]))
    save_profile(load_profile(saved), saved)
    assert saved.read_bytes() == first, "signing or saving again changes bytes"


def test_unsigned_foreign_and_altered_are_different_sentences(saved: Path, keys: dict[str, Path]) -> None:
    trusted = trusted_keys([keys["ours public"]])
    unsigned = verify(load_profile(saved), trusted)
    foreign = verify(sign(load_profile(saved), load_key(keys["theirs"])), trusted)
    assert (unsigned.status, foreign.status) == ("unsigned", "foreign")
    signed = sign(load_profile(saved), load_key(keys["ours"]))
    assert signed.signature is not None
    other = sign(signed.model_copy(update={"name": "other"}), load_key(keys["ours"]))
    moved = verify(signed.model_copy(update={"signature": other.signature}), trusted)
    claimed = signed.signature.model_copy(update={"public_key": "00" * 32})
    no_key = verify(signed.model_copy(update={"signature": claimed}), trusted)
    assert moved.status == no_key.status == "forged"
    write_json(saved, signed)
    raw = json.loads(saved.read_text())
    raw["evidence"]["speedup"]["median"] = 2.05
    write_json(saved, raw)
    with pytest.raises(ProfileError) as altered:
        load_profile(saved)
    sentences = {unsigned.text, foreign.text, moved.text, str(altered.value)}
    assert len(sentences) == 4 and not any(f.holds for f in (unsigned, foreign, moved))
    assert "is not signed" in unsigned.text and "none of the 1 trusted keys" in foreign.text


def test_a_changed_profile_loses_its_signature(saved: Path, keys: dict[str, Path]) -> None:
    signed = sign(load_profile(saved), load_key(keys["ours"]))
    assert signed.sealed().signature == signed.signature
    assert signed.model_copy(update={"reason": "another"}).sealed().signature is None


def test_what_a_command_refuses(saved: Path, keys: dict[str, Path]) -> None:
    profile, key = load_profile(saved), load_key(keys["theirs"])
    require_trusted(profile, None)
    with pytest.raises(ProfileError, match="is not signed"):
        require_trusted(profile, [keys["ours public"]])
    require_trusted(sign(profile, key), None)
    with pytest.raises(ProfileError, match="none of the 1 trusted keys"):
        require_trusted(sign(profile, key), [keys["ours public"]])
    require_trusted(sign(profile, key), [keys["ours public"], keys["theirs public"]])
    signed = sign(profile, key)
    forged = signed.model_copy(update={"signature": signed.signature.model_copy(update={"value": "0" * 128})})  # type: ignore[union-attr]
    with pytest.raises(ProfileError, match="not of this content"):
        require_trusted(forged, None)


def test_a_folder_and_a_bundle_of_keys(keys: dict[str, Path], tmp_path: Path) -> None:
    ours, theirs = (keys[f"{name} public"] for name in ("ours", "theirs"))
    assert set(trusted_keys([tmp_path]).values()) == {"ours.pem", "theirs.pem"}
    bundle = tmp_path / "bundle.crt"
    bundle.write_bytes(b"# the team\n" + ours.read_bytes() + b"\n" + theirs.read_bytes())
    assert set(trusted_keys([bundle])) == set(trusted_keys([ours, theirs]))
    with pytest.raises(BadInput, match="holds no public key"):
        trusted_keys([keys["ours"]])
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"holds no \*.pem files"):
        trusted_keys([tmp_path / "empty"])


def test_keys_that_cannot_sign(tmp_path: Path, keys: dict[str, Path]) -> None:
    path = tmp_path / "x.key"
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        load_key(path)
    path.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(PEM, PKCS8, PLAIN))
    with pytest.raises(BadInput, match="must be an ed25519 key"):
        load_key(path)
    locked = serialization.BestAvailableEncryption(b"secret")
    path.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(PEM, PKCS8, locked))
    with pytest.raises(BadInput, match="is encrypted"):
        load_key(path)
    with pytest.raises(BadInput, match="holds no private key"):
        load_key(keys["ours public"])


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, saved: Path) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(HardwareMissing, match=r"sage_tune\[signing\]"):
        load_key(saved)
    assert signing.verify(load_profile(saved), None).status == "unsigned", "an unsigned profile needs no library"


def sage(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "sage_tune.py", *args], capture_output=True, text=True, cwd=ROOT, timeout=100
    )


def test_the_commands_and_their_exit_codes(saved: Path, keys: dict[str, Path]) -> None:
    path, trust = str(saved), ["--trust", str(keys["ours public"])]
    unsigned = sage("verify", path, *trust)
    assert unsigned.returncode == 1 and "is not signed" in unsigned.stdout
    signed = sage("sign", path, "--key", str(keys["ours"]), "--json")
    assert signed.returncode == 0, signed.stderr
    trusted = sage("verify", path, *trust, "--json")
    assert trusted.returncode == 0 and json.loads(trusted.stdout.splitlines()[-1])["status"] == "trusted"
    foreign = sage("verify", path, "--trust", str(keys["theirs public"]), "--json")
    assert foreign.returncode == 1 and json.loads(foreign.stdout.splitlines()[-1])["status"] == "foreign"
    refused = sage("check", path, "--trust", str(keys["theirs public"]))
    assert refused.returncode == 2 and "none of the 1 trusted keys" in refused.stderr
    saved.write_bytes(saved.read_bytes().replace(b'"context_max": 200', b'"context_max": 201', 1))
    for command in ("verify", "check", "show", "sign"):
        extra = ["--key", str(keys["ours"])] if command == "sign" else []
        altered = sage(command, path, *extra)
        assert altered.returncode == 2 and "was changed after it was frozen" in altered.stderr, command
