"""Small records for tests, made by the recorder itself: of the fake pair, and of models that answer by chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from profiles.measurement import PASS_KINDS, CostTable, HostTime, PassTime
from profiles.policy import DraftRule
from profiles.sampling import AS_MADE, Sampling
from profiles.trace_schema import SampleRecord, TraceManifest
from runtime.decode import generate, plain_policy
from runtime.pair import Pair
from runtime.records import Generation
from tests.fakes import VOCAB, FakeModel, fake_pair, fake_prompt
from tests.strategies import MAX_DEPTH, SIGNAL_LOGPROBS, VERIFY_SIZES, WIDTHS
from tuner.calibration import Split
from tuner.outcomes import Record
from tuner.traces import Recorder

SAMPLED = Sampling(temperature=0.8, top_k=12, top_p=0.9, repetition_penalty=1.2, draft_lambda=1.4, seed=11)
"""A regime in which everything is used at once."""
LIKELY = 4
"""Tokens that chance models and chance outputs prefer, so that drafts are accepted now and then."""


class ChanceModel(FakeModel):
    """Logits that depend on nothing: what is drafted from neighbouring positions does not fit together, as it would
    for real models, so nothing that real drafts have in common can hide a mistake."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0.0)
        self._rng = np.random.default_rng(seed)

    def logits(self, rows: list[tuple[int, int]]) -> np.ndarray:
        values = self._rng.normal(0.0, 2.0, VOCAB)
        values[1:LIKELY] += 4.0
        return values.astype(np.float32)


def record_of(
    folder: Path,
    rules: Sequence[DraftRule],
    splits: Sequence[Split],
    seeds: Sequence[int],
    sampling: Sampling = AS_MADE,
) -> Record:
    """The fake pair's outputs on one prompt per split and seed."""
    pair = fake_pair()
    outputs = [
        generate(
            pair,
            fake_prompt(seed),
            plain_policy(),
            max_new_tokens=9 + 4 * (seed % 5),
            sampling=sampling.for_sample(_id(split, seed)),
        ).tokens
        for split, seed in zip(splits, seeds, strict=True)
    ]
    return _record(pair, folder, rules, splits, seeds, outputs, sampling)


def chance_record(folder: Path, rules: Sequence[DraftRule], splits: Sequence[Split], seed: int) -> Record:
    """Outputs and drafts by chance."""
    rng = np.random.default_rng(seed)
    pair = replace(fake_pair(), target=ChanceModel(seed + 1), draft=ChanceModel(seed + 2))
    outputs = [rng.integers(1, LIKELY, size=rng.integers(4, 14)).tolist() for _ in splits]
    return _record(pair, folder, rules, splits, range(len(splits)), outputs, AS_MADE)


def chance_costs(seed: int) -> CostTable:
    """Times by chance, larger passes not always slower; three cold rounds."""
    rng = np.random.default_rng(seed)
    sizes = {"plain": (1,), "verify": VERIFY_SIZES, "catch_up": (1, 2), "frontier": WIDTHS}
    scale = {"plain": 9.0, "verify": 12.0, "catch_up": 2.0, "frontier": 1.5}
    passes = tuple(
        PassTime(kind=kind, n=n, context=c, time_ns=scale[kind] * rng.uniform(0.5, 2), p10_ns=1, p90_ns=99, samples=5)
        for kind in PASS_KINDS
        for n in sizes[kind]
        for c in (1, 60, 200)
    )
    plain_ns, round_ns, level_ns, *cold = rng.uniform(0.0, 1.0, 8).tolist()
    host = HostTime(
        plain_ns=plain_ns,
        round_ns=round_ns,
        level_ns=level_ns,
        plain_cold_ns=cold[:2],
        draft_cold_ns=cold[2:],
        rounds=9,
    )
    return CostTable(mark="measured", threads=1, passes=passes, host=host)


def _id(split: Split, seed: int) -> str:
    return f"{split} {seed}"


def _record(
    pair: Pair,
    folder: Path,
    rules: Sequence[DraftRule],
    splits: Sequence[Split],
    seeds: Sequence[int],
    outputs: Sequence[list[int]],
    sampling: Sampling,
) -> Record:
    manifest = TraceManifest(
        pair_digest="fake",
        data_digest="fake",
        backend="fake",
        dtype="float32",
        depth=MAX_DEPTH,
        rules=tuple(rules),
        signal_logprobs=SIGNAL_LOGPROBS,
        versions={},
        sampling=sampling,
    )
    recorder, samples, frames = Recorder(pair, folder, manifest), [], []
    for split, seed, output in zip(splits, seeds, outputs, strict=True):
        prompt = fake_prompt(seed)
        generation = Generation(output, "", "length", len(prompt), 0, 0)
        _, columns = recorder._columns(prompt, generation, sampling.for_sample(_id(split, seed)))
        flat = {
            name: column.reshape(len(column), -1) if column.ndim > 2 else column for name, column in columns.items()
        }
        if flat:
            frames.append(pl.DataFrame({name: pl.Series(name, column) for name, column in flat.items()}))
        samples.append(
            SampleRecord(
                id=_id(split, seed),
                kind="text",
                modality="text",
                split=split,
                prompt_tokens=len(prompt),
                output=tuple(output),
                finished="length",
            )
        )
    return Record(manifest, samples, pl.concat(frames))
