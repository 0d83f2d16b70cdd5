"""The profile as a thing of its own: `sage_tune show`, `diff`, `sign` and `verify`. None of them needs a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from commands.options import Json, ProfilePath, Trust, out, print_json
from profiles.store import load_profile


def show(profile_path: ProfilePath, as_json: Json = False) -> None:
    """What a profile decides, then the evidence behind it."""
    from tuner.profile_screens import profile_screen

    frozen = load_profile(profile_path)
    out.print(profile_screen(frozen))
    if as_json:
        print_json(frozen.model_dump(mode="json"))


def diff(
    left_path: Annotated[Path, typer.Argument(metavar="P", help="policy profile (*.sage.json)")],
    right_path: Annotated[Path, typer.Argument(metavar="Q", help="policy profile (*.sage.json)")],
    as_json: Json = False,
) -> None:
    """What differs between two profiles, decisions first. Exit code 1 when they decide differently."""
    from profiles.difference import differences
    from tuner.profile_screens import difference_screen

    left, right = load_profile(left_path), load_profile(right_path)
    found = differences(left, right)
    out.print(difference_screen(found, left, right))
    if as_json:
        print_json(
            {
                "same_decisions": left.digest == right.digest,
                "digests": [left.digest, right.digest],
                "decisions": [vars(row) for row in found.decisions],
                "evidence": [vars(row) for row in found.evidence],
            }
        )
    raise typer.Exit(int(left.digest != right.digest))


def sign(
    profile_path: ProfilePath,
    key: Annotated[Path, typer.Option("--key", help="ed25519 private key, PEM")],
    as_json: Json = False,
) -> None:
    """Sign a profile where it lies. It is read and proven whole first."""
    from tuner.signing import load_key, sign_file, verify

    signed = sign_file(profile_path, load_key(key))
    found = verify(signed, None)
    out.print(f"signed {profile_path} with {found.signer}", soft_wrap=True)
    if as_json:
        print_json({"profile": str(profile_path), "digest": signed.digest, "signer": found.signer})


def verify(profile_path: ProfilePath, trust: Trust = None, as_json: Json = False) -> None:
    """Prove that a profile is whole and who signed it. Exit code 1: unsigned or not by a trusted key; 2: altered."""
    from tuner.signing import trusted_keys
    from tuner.signing import verify as verified

    trusted = trusted_keys(trust) if trust else None
    frozen = load_profile(profile_path)
    found = verified(frozen, trusted)
    out.print(f"{found.text}; digest {frozen.digest[:12]}", soft_wrap=True, markup=False)
    if as_json:
        print_json({"status": found.status, "signer": found.signer, "digest": frozen.digest, "text": found.text})
    raise typer.Exit(int(not found.holds))
