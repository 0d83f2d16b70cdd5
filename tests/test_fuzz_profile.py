"""Whatever a profile file has become, reading it gives the profile or one clear refusal."""

from __future__ import annotations

import copy
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import BadInput, ProfileError
from profiles.gate import Gate, PassBill, PassCount, PromptCounters, PromptTime
from profiles.migration import saved_digests
from profiles.policy_profile import PolicyProfile, Signature
from profiles.store import json_text, load_profile
from tests.samples import sample_profile

FIXTURES = Path(__file__).parent / "fixtures"
counts = pytest.mark.parametrize("mutations", [250, pytest.param(1_700, marks=pytest.mark.slow)])
"""Per file and kind: three files, two kinds."""
STRANGE: list[Any] = [
    None,
    True,
    0,
    -1,
    1 << 70,
    0.5,
    -0.0,
    1e308,
    "",
    "x" * 300,
    "\ud800",
    "\x00",
    [],
    {},
    [[]],
    {"": None},
    [1, 2, 3],
    "NaN",
]
TOKENS = [
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"9" * 5_000,
    b"[" * 3_000,
    b'{"a":' * 2_000,
    b"\\ud800",
    b"\xff",
]
TOKENS += [b"null", b"true", b"-", b'"', b"}", b"]", b",", b":", b"\\", b"\x00", b"\xef\xbb\xbf", b" " * 100]


def gated_profile() -> PolicyProfile:
    """A profile that has everything a profile can have."""
    gate = Gate(
        data={"path": "prompts.jsonl"},
        data_digest="a" * 64,
        counters=(PromptCounters(id="a", output_digest="b" * 64, output_tokens=4, accepted=(2, 0)),),
        times=(PromptTime(id="a", plain_ns=2e7, policy_ns=1e7),),
        bills=(
            PassBill(
                name="plain",
                plain_rounds=3,
                draft_rounds=0,
                levels=0,
                cold=(1, 1, 1, 0),
                passes=(PassCount(kind="plain", n=1, at=(1.5, 1.5)),),
            ),
        ),
    )
    sealed = sample_profile().model_copy(update={"gate": gate}).sealed()
    return sealed.model_copy(update={"signature": Signature(public_key="c" * 64, value="d" * 128)})


DOCUMENTS = {
    "today": json_text(gated_profile()),
    "version 1": (FIXTURES / "profile_v1.sage.json").read_text(),
    "without a gate": json_text(sample_profile().sealed()),
}


def read(path: Path, content: bytes, errors: list[str]) -> None:
    path.write_bytes(content)
    try:
        load_profile(path)
    except (ProfileError, BadInput) as error:
        errors.append(str(error))
        assert len(str(error)) > 10 and "\n" not in str(error)[:80], "a refusal is a sentence"


def byte_mutation(rng: random.Random, data: bytes) -> bytes:
    at, to = sorted(rng.randrange(len(data)) for _ in range(2))
    kind = rng.randrange(7)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[to:]
    if kind == 3:
        return data[:to] + data[at:]
    if kind == 4:
        return data[:at] + rng.choice(TOKENS) + data[at:]
    if kind == 5:
        return data[:at] + rng.choice(TOKENS) + data[to:]
    return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, part in inner for found in ((*path, key), *places(part, (*path, key)))]


def mutate_structure(rng: random.Random, changed: dict[str, Any], document: dict[str, Any]) -> None:
    """Change one thing in `changed`, which began as `document`."""
    spots = places(changed)
    path = rng.choice(spots)
    holder: Any = changed
    for key in path[:-1]:
        holder = holder[key]
    kind, last = rng.randrange(6), path[-1]
    if kind == 0:
        del holder[last]
    elif kind == 1:
        holder[last] = copy.deepcopy(rng.choice(STRANGE))
    elif kind == 2 and isinstance(holder, dict):
        holder[f"{last}x"] = holder.pop(last)
    elif kind == 3 and isinstance(holder, dict):
        holder[rng.choice(["extra", "schema_version", "digest", "", "__class__"])] = rng.choice(STRANGE)
    elif kind == 4 and isinstance(holder[last], (int, float)):
        holder[last] = rng.choice([-holder[last], holder[last] * 10**9, holder[last] + 0.5, str(holder[last])])
    else:
        other: Any = document
        for key in rng.choice(places(document)):
            other = other[key]
        holder[last] = copy.deepcopy(other)


@counts
@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_bytes_are_read_or_refused(tmp_path: Path, name: str, mutations: int) -> None:
    rng, data, path = random.Random(1), DOCUMENTS[name].encode(), tmp_path / "x.sage.json"
    errors: list[str] = []
    for _ in range(mutations):
        mutated = data
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            mutated = byte_mutation(rng, mutated) or b"{"
        read(path, mutated, errors)
    assert len(errors) > 0.95 * mutations


@counts
@pytest.mark.parametrize("name", DOCUMENTS)
def test_any_structure_is_read_or_refused(tmp_path: Path, name: str, mutations: int) -> None:
    """Half of the documents are sealed again, so that not only the digests stand in the way."""
    rng, document, path = random.Random(2), json.loads(DOCUMENTS[name]), tmp_path / "x.sage.json"
    errors: list[str] = []
    for number in range(mutations):
        changed = copy.deepcopy(document)
        for _ in range(rng.choice([1, 1, 2, 4])):
            mutate_structure(rng, changed, document)
        if number % 2:
            with suppress(BadInput):
                changed |= saved_digests(changed)
        read(path, json.dumps(changed, allow_nan=True).encode(), errors)
    assert len(errors) > 0.6 * mutations
    assert any("changed after it was frozen" in error for error in errors)
    assert any("unknown key" in error for error in errors) and any("Field required" in error for error in errors)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "not valid JSON"),
        (b'{"schema_version": 4, "schema_version": 4}', "names the key 'schema_version' twice"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[]", "should be a valid dictionary"),
        (b"3", "should be a valid dictionary"),
        (b"", "not valid JSON"),
        (b'{"schema_version": "4"}', "schema_version"),
    ],
)
def test_files_that_once_were_no_clear_refusal(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.sage.json"
    path.write_bytes(content)
    with pytest.raises((ProfileError, BadInput), match=message):
        load_profile(path)
