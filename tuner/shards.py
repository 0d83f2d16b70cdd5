"""Shards: which recorder takes which sample, so that many machines make one record."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

from profiles.errors import BadInput

MAX_SHARDS = 4096


@dataclass(frozen=True)
class Shard:
    """Share `index` of `count`, counted from 1. A sample's shard depends on its id and `count` only."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, sample_id: str) -> bool:
        return shard_of(sample_id, self.count) == self.index


def parse_shard(text: str) -> Shard:
    """`2/8` as the second of eight shards. Raises BadInput for anything else."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal()):
        raise BadInput(f"--shard takes I/N, such as 1/4, got '{text}'")
    shard = Shard(int(index), int(count))
    if not 1 <= shard.index <= shard.count <= MAX_SHARDS:
        raise BadInput(f"1 <= I <= N <= {MAX_SHARDS} must hold in --shard I/N, got '{text}'")
    return shard


def shard_of(sample_id: str, count: int) -> int:
    """The shard of a sample among `count`, from 1."""
    return int.from_bytes(hashlib.sha256(f"shard:{sample_id}".encode()).digest()[:8], "big") % count + 1


def missing_by_shard(sample_ids: list[str], count: int) -> str:
    """`1/4: 12, 3/4: 9`: how many samples each shard still owes."""
    owed = Counter(shard_of(sample, count) for sample in sample_ids)
    return ", ".join(f"{index}/{count}: {owed[index]}" for index in sorted(owed))
