"""Signatures of profiles: ed25519 over both digests, by the `cryptography` library; keys are PEM files.

openssl genpkey -algorithm ed25519 -out key.pem        the signer's own key
openssl pkey -in key.pem -pubout -out trusted.pem      what the fleet trusts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from profiles.errors import BadInput, HardwareMissing, ProfileError
from profiles.policy_profile import PolicyProfile, Signature, signed_bytes
from profiles.store import load_profile, write_profile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PEM_SUFFIX = ".pem"
SignatureStatus = Literal["trusted", "signed", "unsigned", "foreign", "forged"]


@dataclass(frozen=True)
class SignatureFinding:
    """What a profile's signature is worth: `signed` where nobody said whom to trust."""

    status: SignatureStatus
    text: str
    signer: str | None = None

    @property
    def holds(self) -> bool:
        return self.status in ("trusted", "signed")


def load_key(path: Path) -> Ed25519PrivateKey:
    """A private key. Raises BadInput for a file that is none, is encrypted, or is of another algorithm."""
    serialization, ed25519 = _library()
    data = _read(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError:
        raise BadInput(
            f"{path} is encrypted; sign with a decrypted key from a place that only the signer reads"
        ) from None
    except ValueError as error:
        raise BadInput(f"{path} holds no private key in PEM: {_first_line(error)}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise BadInput(f"{path} must be an ed25519 key, it is a {type(key).__name__.removesuffix('PrivateKey')} key")
    found: Ed25519PrivateKey = key
    return found


def trusted_keys(places: Sequence[Path]) -> dict[str, str]:
    """Public keys in hex, each with the file that it was read from. A place is a PEM file or a folder of them; a file
    may hold several keys. Raises BadInput when a place holds none."""
    found: dict[str, str] = {}
    for place in places:
        files = sorted(place.glob(f"*{PEM_SUFFIX}")) if place.is_dir() else [place]
        if not files:
            raise BadInput(f"{place} holds no *{PEM_SUFFIX} files")
        for file in files:
            found |= dict.fromkeys(_public_keys(file), file.name)
    return found


def sign(profile: PolicyProfile, key: Ed25519PrivateKey) -> PolicyProfile:
    """The profile, sealed and signed. The same key signs the same profile with the same bytes."""
    sealed = profile.sealed()
    value = key.sign(signed_bytes(sealed.model_dump(include={"digest", "evidence_digest"})))
    signature = Signature(public_key=key.public_key().public_bytes_raw().hex(), value=value.hex())
    return sealed.model_copy(update={"signature": signature})


def sign_file(path: Path, key: Ed25519PrivateKey) -> PolicyProfile:
    """Sign a profile where it lies. One of an older schema is written in today's. Raises ProfileError for a profile
    that was changed after it was frozen: what nobody can vouch for is not signed."""
    signed = sign(load_profile(path), key)
    write_profile(signed, path)
    return signed


def verify(profile: PolicyProfile, trusted: dict[str, str] | None) -> SignatureFinding:
    """What the signature of a loaded profile says. `trusted` None asks only whether it is whole."""
    signature = profile.signature
    if signature is None:
        return SignatureFinding("unsigned", f"'{profile.name}' is not signed")
    _, ed25519 = _library()
    from cryptography.exceptions import InvalidSignature

    signer = signature.public_key
    digests = profile.model_dump(include={"digest", "evidence_digest"})
    try:
        key: Ed25519PublicKey = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer))
        key.verify(bytes.fromhex(signature.value), signed_bytes(digests))
    except (InvalidSignature, ValueError):
        text = f"'{profile.name}' carries a signature that is not of this content by the key it names ({signer[:16]})"
        return SignatureFinding("forged", text, signer)
    if trusted is None:
        return SignatureFinding(
            "signed", f"'{profile.name}' is signed by {signer[:16]}; no --trust to compare with", signer
        )
    if signer not in trusted:
        text = f"'{profile.name}' is signed by {signer[:16]}, which is none of the {len(trusted)} trusted keys"
        return SignatureFinding("foreign", text, signer)
    return SignatureFinding("trusted", f"'{profile.name}' is signed by {signer[:16]} ({trusted[signer]})", signer)


def require_trusted(profile: PolicyProfile, places: Sequence[Path] | None) -> None:
    """Refuse a profile before it is used. Raises ProfileError for a signature that does not hold and, where somebody is
    trusted, for a profile that nobody trusted has signed."""
    if profile.signature is None and not places:
        return
    found = verify(profile, trusted_keys(places) if places else None)
    if not found.holds:
        raise ProfileError(found.text)


def _public_keys(file: Path) -> list[str]:
    serialization, ed25519 = _library()
    end = b"-----END PUBLIC KEY-----"
    blocks = [block + end for block in _read(file).split(end)[:-1]]
    keys = []
    for block in blocks:
        try:
            key: Any = serialization.load_pem_public_key(block[block.index(b"-----BEGIN") :])
        except ValueError as error:
            raise BadInput(f"{file} holds no public key in PEM: {_first_line(error)}") from error
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise BadInput(f"{file} must hold ed25519 keys only")
        keys.append(key.public_bytes_raw().hex())
    if not keys:
        raise BadInput(f"{file} holds no public key in PEM")
    return keys


def _library() -> tuple[Any, Any]:
    """The modules that read and use keys. Raises HardwareMissing when the library is not installed."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise HardwareMissing("signatures need the extra 'signing': pip install 'sage_tune[signing]'") from None
    return serialization, ed25519


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror}") from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
