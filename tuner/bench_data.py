"""Prompts of a bench: a user's own, or those of the pair's set that a profile only reported on."""

from __future__ import annotations

from profiles.config import DataConfig
from profiles.errors import BadInput
from profiles.registry import PairSpec
from tuner.calibration import Sample, parse_rows
from tuner.inputs import hash_share, open_source


def bench_samples(data: str | None, spec: PairSpec, limit: int) -> list[Sample]:
    """At most `limit` samples in an order by their ids. Without `data` the report split of the pair's own set: the
    default split, which a profile saw only in its final table. Raises BadInput for a malformed row, and for fewer than
    two samples."""
    config = DataConfig()
    given = data or spec.calibration_path()
    if given is None:
        raise BadInput(f"'{spec.name}' ships no calibration set; give prompts with --data")
    source = open_source(str(given), config)
    samples, problems = parse_rows(source, config)
    if problems:
        raise BadInput(problems[0])
    kept = [sample for sample in samples if data is not None or sample.split == "report"]
    chosen = sorted(kept, key=lambda sample: hash_share(f"order:{sample.id}"))[:limit]
    if len(chosen) < 2:
        raise BadInput(f"a bench needs at least 2 prompts, {source.name} gives {len(chosen)}")
    source.fetch([sample.line for sample in chosen])
    return chosen
