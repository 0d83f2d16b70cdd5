"""Shards and stores: recorded by many, in any place, a record is the one that a single recorder makes, bit for bit."""

from __future__ import annotations

import dataclasses
import io
import json
import uuid
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from profiles.config import TuneConfig, load_config
from profiles.errors import BadInput, HardwareMissing, ProfileError
from runtime.pair import Pair
from runtime.prompts import Prompt, PromptEncoder, Request
from tests.fakes import FakeTokenizer, fake_pair, fake_prompt
from tuner.files import open_files
from tuner.machine import Device
from tuner.profiling import PartlyRecorded, Profiled, estimate, manifest_of, profile, profile_shard, samples_of
from tuner.progress import Progress
from tuner.run_folder import RunFolder
from tuner.shards import Shard, missing_by_shard, parse_shard, shard_of
from tuner.timing import Budget
from tuner.trace_store import TraceStore, load_record, part_name, trace_digest
from tuner.traces import Recorder

DEVICE = Device("cpu", "cpu", "Test CPU", "x86_64")
BAD = "sample 13"
EVERYTHING = Shard(1, 1)
MOVED: list[tuple[str, str]] = []


class FakeEncoder(PromptEncoder):
    """The prompt is a function of the question's number; one of them cannot be read."""

    def __init__(self) -> None:
        super().__init__(FakeTokenizer(), None)

    def encode(self, request: Request) -> Prompt:
        text = request.messages[0]["content"][-1]["text"]
        if text == BAD:
            raise BadInput("cannot be read")
        return fake_prompt(int(text.split()[-1]))


PAIR: Pair = dataclasses.replace(fake_pair(), encoder=FakeEncoder())


def configuration(folder: Path, **changes: object) -> TuneConfig:
    path = folder / "prompts.jsonl"
    if not path.exists():
        lines = [{"id": f"p/{i}", "prompt": f"sample {i}", "max_new_tokens": 8 + i % 5} for i in range(24)]
        path.write_text("\n".join(json.dumps(line) for line in lines))
    return load_config(
        None,
        {
            "data.path": str(path),
            "data.skip_bad": True,
            "data.allow_synthetic": True,
            "gpu": "cpu",
            "grid.depth": 3,
            "grid.widths": [1, 2],
            "grid.verify_sizes": [1, 2, 3, 4],
            "grid.signal_logprobs": 10,
            "search.top_ks": [5, 10],
            "grid.contexts": 2,
            "timing.samples": 5,
            **changes,
        },
    )


def quiet() -> Progress:
    return Progress(Console(file=io.StringIO()))


def record_into(location: str | Path, config: TuneConfig, shard: Shard = EVERYTHING) -> TraceStore:
    samples = samples_of(config, PAIR.spec)
    recorder = Recorder(PAIR, location, manifest_of(PAIR, config, samples))
    recorder.record_all([s for s in samples if shard.holds(s.id)], Budget(None), skip_bad=True)
    return recorder.store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TraceStore:
    folder = tmp_path_factory.mktemp("whole")
    return record_into(folder / "trace", configuration(folder))


class MovingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A remote store without whole objects: every file must be written aside and moved."""

    protocol = "moving"
    broken = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).removeprefix("moving://")))

    def mv(self, path1: str, path2: str, **kwargs: object) -> None:
        if self.broken:
            raise ConnectionResetError("the line went dead")
        MOVED.append((path1, path2))
        super().mv(path1, path2, **kwargs)


fsspec.register_implementation("moving", MovingFileSystem, clobber=True)


def test_two_shards_merged_are_the_whole_record(tmp_path: Path, whole: TraceStore) -> None:
    config = configuration(tmp_path)
    first = record_into(tmp_path / "a", config, Shard(1, 2))
    second = record_into(tmp_path / "b", config, Shard(2, 2))
    counts = len(first.parts()), len(second.parts())
    assert sum(counts) == 23 and min(counts) >= 5, "one of 24 samples is unreadable"
    assert first.merge(second) == counts[1] and first.merge(second) == 0
    assert trace_digest(tmp_path / "a") == whole.digest()
    merged, record = load_record(tmp_path / "a"), load_record(whole.location)
    assert merged.samples == record.samples and merged._frame.equals(record._frame)


@pytest.mark.parametrize("scheme", ["memory", "file", "moving"])
def test_shards_write_one_record_behind_any_url(scheme: str, tmp_path: Path, whole: TraceStore) -> None:
    url = f"{scheme}://{tmp_path}/{uuid.uuid4().hex}"
    for index in (1, 2, 3):
        record_into(url, configuration(tmp_path), Shard(index, 3))
    assert trace_digest(url) == whole.digest()
    assert load_record(url).samples == load_record(whole.location).samples
    assert not [name for name in open_files(url).names("parts") if not name.endswith(".parquet")]
    if scheme == "moving":
        assert len(MOVED) == 24 and all(source.endswith(".tmp") for source, _ in MOVED)


def test_a_part_that_did_not_arrive_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"moving://{tmp_path}/trace"
    store = record_into(url, configuration(tmp_path), Shard(1, 24))
    before = store.parts()
    monkeypatch.setattr(MovingFileSystem, "broken", True)
    with pytest.raises(ProfileError, match=r"moving://.*ConnectionResetError: the line went dead"):
        record_into(url, configuration(tmp_path))
    assert store.parts() == before and not list(tmp_path.rglob("*.tmp"))
    monkeypatch.undo()
    assert len(record_into(url, configuration(tmp_path)).parts()) == 23


def test_another_record_is_neither_continued_nor_merged(tmp_path: Path, whole: TraceStore) -> None:
    other = configuration(tmp_path, **{"grid.depth": 2})
    with pytest.raises(ProfileError, match="holds another record: depth saved 3, asked 2"):
        record_into(whole.location, other)
    mine = record_into(tmp_path / "other", other, Shard(1, 8))
    with pytest.raises(ProfileError, match="is another record: depth saved 2, asked 3"):
        mine.merge(whole)
    with pytest.raises(ProfileError, match=r"holds no record \(manifest.json is missing\)"):
        whole.merge(TraceStore(tmp_path / "nothing"))


def test_a_sample_in_two_parts_is_found(tmp_path: Path) -> None:
    store = record_into(tmp_path / "a", configuration(tmp_path), Shard(1, 8))
    part = tmp_path / "a" / store.parts()[0]
    part.with_name("copy.parquet").write_bytes(part.read_bytes())
    with pytest.raises(ProfileError, match="in two parts"):
        load_record(tmp_path / "a")


def test_a_damaged_part_is_not_merged(tmp_path: Path, whole: TraceStore) -> None:
    config = configuration(tmp_path)
    source, into = record_into(tmp_path / "a", config, Shard(1, 8)), record_into(tmp_path / "b", config, Shard(2, 8))
    (tmp_path / "a" / source.parts()[0]).write_bytes(b"not parquet")
    before = into.parts()
    with pytest.raises(ProfileError, match="cannot be read"):
        into.merge(source)
    assert into.parts() == before


def test_a_shard_says_what_is_missing_and_the_last_one_measures(tmp_path: Path, whole: TraceStore) -> None:
    """Three machines with folders of their own and one shared record; the second has two goes at it."""
    config = configuration(tmp_path, **{"data.trace_url": f"memory://shards/{uuid.uuid4().hex}"})

    def shard(index: int, seconds: float | None = None) -> Profiled | PartlyRecorded:
        run = RunFolder(tmp_path / f"machine_{index}")
        return profile_shard(PAIR, config, DEVICE, run, Budget(seconds), quiet(), Shard(index, 3))

    by_shard = {i: [s for s in samples_of(config, PAIR.spec) if Shard(i, 3).holds(s.id)] for i in (1, 2, 3)}
    bad = shard_of("p/13", 3)
    order = [i for i in (1, 2, 3) if i != bad] + [bad]
    first = shard(order[0])
    assert isinstance(first, PartlyRecorded) and first.recorded == len(by_shard[order[0]])
    assert len(first.others_missing) == 24 - first.recorded
    assert f"{order[1]}/3: {len(by_shard[order[1]])}" in first.summary()
    assert first.document()["missing"] == 24 - first.recorded
    cut = shard(order[1], 0.0)
    assert isinstance(cut, PartlyRecorded) and cut.own_missing == len(by_shard[order[1]])
    assert "the same command" in cut.summary()
    assert isinstance(shard(order[1]), PartlyRecorded)
    assert not RunFolder(tmp_path / f"machine_{order[1]}").has_costs()
    last = shard(order[2])
    assert isinstance(last, Profiled) and last.missing == 0 and len(last.skipped) == 1
    run = RunFolder(tmp_path / f"machine_{order[2]}")
    assert run.has_costs() and run.trace == config.data.trace_url
    assert trace_digest(run.trace) == whole.digest()
    again = profile(PAIR, config, DEVICE, run, Budget(None), quiet())
    assert again.costs == last.costs, "measured once"


def test_the_plan_of_a_shard_counts_its_own_share(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    mine = sum(Shard(2, 3).holds(s.id) for s in samples_of(config, PAIR.spec))
    text = estimate(PAIR, config, tmp_path / "run", Shard(2, 3))
    assert f"record {mine} of 24 prompts as shard 2/3 (of 24 that are missing)" in text
    assert not (tmp_path / "run").exists()


@given(st.lists(st.text(min_size=1), unique=True, max_size=30), st.integers(1, 9))
def test_every_sample_is_in_exactly_one_shard_and_one_part(ids: list[str], count: int) -> None:
    shards = [Shard(i, count) for i in range(1, count + 1)]
    assert all(sum(shard.holds(name) for shard in shards) == 1 for name in ids)
    assert len({part_name(name) for name in ids}) == len(ids), "two samples share a file"
    assert all(len(part_name(name).encode()) < 500 and "/" not in part_name(name)[6:] for name in ids)


def test_ids_that_differ_in_signs_only_keep_parts_of_their_own() -> None:
    assert part_name("plain-id_1.x") == "parts/plain-id_1.x.parquet"
    assert len({part_name(name) for name in ("a/b", "a_b", "a b", "a:b")}) == 4
    assert missing_by_shard(["p/1", "p/2", "p/3"], 1) == "1/1: 3"


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "-1/2", "a/b", "1/2/3", "1/99999"])
def test_shards_are_written_i_of_n(text: str) -> None:
    with pytest.raises(BadInput, match="--shard"):
        parse_shard(text)


def test_places_that_cannot_be_opened_are_named() -> None:
    with pytest.raises(BadInput, match="Protocol not known: warp"):
        open_files("warp://x/y")
    with pytest.raises(BadInput, match=r"a password does not belong.*got 'ftp://me:\*\*\*@host/x'"):
        load_config(None, {"data.trace_url": "ftp://me:secret@host/x"})
    missing = next((p for p in ("gs", "abfs", "s3") if not _driver_is_here(p)), None)
    if missing is None:
        pytest.skip("every driver is installed")
    with pytest.raises(HardwareMissing, match=f"{missing}://bucket/x: .*[Ii]nstall"):
        open_files(f"{missing}://bucket/x")


def _driver_is_here(protocol: str) -> bool:
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError:
        return False
    return True
