"""The run folder: what `profile` leaves for `tune`, and what makes both resumable.

config.json       resolved configuration        pair.json         digests of models, tokenizer, processor
fingerprint.json  the machine                   trace/            manifest and one Parquet part per sample
costs.json        cost table                    cost_samples.parquet   every timing sample behind it
curves.json       entropy-acceptance curves     study.journal     the Optuna study, its locks beside it
confirm.json      live comparisons              confirm_runs.parquet   every round of every run behind them
NAME.sage.json    the frozen profile
"""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
from pydantic import TypeAdapter

from profiles.config import TuneConfig
from profiles.errors import ProfileError
from profiles.measurement import CostTable, Curve
from profiles.policy import PolicySource
from profiles.policy_profile import PairRecord
from profiles.provenance import Fingerprint
from profiles.store import atomic_path, parse, read_json, write_json
from tuner.costs import PassSamples

CURVES = TypeAdapter(tuple[Curve, ...])
RunRow = tuple[str, str, str, int, int, list[int]]
"""(split, prompt, arm, number of the run, prefill_ns, rounds_ns) of one run of a live comparison."""
MEASURED_FIELDS = (
    "model",
    "target",
    "draft",
    "gpu",
    "backend",
    "dtype",
    "device_map",
    "threads",
    "data",
    "sampling",
    "grid",
    "timing",
)
"""Parts of the configuration that a record and a cost table depend on; the rest may change between runs."""


def trace_location(config: TuneConfig, folder: Path) -> str | Path:
    """Where a run of this configuration in this folder keeps its record."""
    return config.data.trace_url or folder / "trace"


class RunFolder:
    """Paths and contents of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal = path / "study.journal"

    @property
    def trace(self) -> str | Path:
        """Where the record lies: in the folder, unless `data.trace_url` puts it elsewhere."""
        begun = (self.path / "config.json").exists()
        return trace_location(self.config(), self.path) if begun else self.path / "trace"

    def study_place(self, config: TuneConfig) -> str | Path:
        """Where the study lives: in the folder, unless `search.storage` puts it elsewhere."""
        return config.search.storage or self.journal

    def begin(self, config: TuneConfig, pair: PairRecord, machine: Fingerprint) -> None:
        """Claim the folder for these inputs. Raises ProfileError when it belongs to others."""
        saved = self.path / "config.json"
        if saved.exists():
            old = read_json(saved, TuneConfig)
            for name in MEASURED_FIELDS:
                if getattr(old, name) != getattr(config, name):
                    raise ProfileError(
                        f"{self.path} was made with {name} = {getattr(old, name)!r}, asked for "
                        f"{getattr(config, name)!r}; choose another folder with --out"
                    )
            if read_json(self.path / "pair.json", PairRecord) != pair:
                raise ProfileError(f"{self.path} belongs to another pair or other weights; choose another --out")
            hard = [row for row in self.fingerprint().differences(machine) if row[1] == "hard"]
            if hard:
                field, _, was, found = hard[0]
                raise ProfileError(f"{self.path} was measured with {field} {was!r}, found {found!r}")
        else:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / "pair.json", pair)
            write_json(self.path / "fingerprint.json", machine)
        write_json(saved, config)

    def config(self) -> TuneConfig:
        path = self.path / "config.json"
        if not path.exists():
            raise ProfileError(f"{self.path} is not a run folder (config.json is missing); run `sage_tune profile`")
        return read_json(path, TuneConfig)

    def pair(self) -> PairRecord:
        return read_json(self.path / "pair.json", PairRecord)

    def fingerprint(self) -> Fingerprint:
        return read_json(self.path / "fingerprint.json", Fingerprint)

    def has_costs(self) -> bool:
        return (self.path / "costs.json").exists()

    def costs(self) -> CostTable:
        if not self.has_costs():
            raise ProfileError(f"{self.path} has no cost table yet; run `sage_tune profile` to the end first")
        return read_json(self.path / "costs.json", CostTable)

    def save_costs(self, table: CostTable, samples: PassSamples) -> None:
        """Samples first: a table never stands without what it was derived from."""
        rows = [(kind, n, context, ns) for (kind, n), seen in samples.items() for context, ns in seen]
        frame = pl.DataFrame(rows, schema=["kind", "n", "context", "time_ns"], orient="row")
        with atomic_path(self.path / "cost_samples.parquet") as temporary:
            frame.write_parquet(temporary, compression="zstd")
        write_json(self.path / "costs.json", table)

    def save_curves(self, curves: list[Curve]) -> None:
        write_json(self.path / "curves.json", [curve.model_dump(mode="json") for curve in curves])

    def curves(self) -> tuple[Curve, ...]:
        path = self.path / "curves.json"
        if not path.exists():
            raise ProfileError(f"{self.path} has no curves yet; run `sage_tune profile` to the end first")
        return CURVES.validate_json(path.read_text(encoding="utf-8"))

    def save_confirmation(self, summary: dict[str, object], runs: list[RunRow]) -> None:
        """Runs first, as with costs."""
        frame = pl.DataFrame(runs, schema=["split", "prompt", "arm", "run", "prefill_ns", "rounds_ns"], orient="row")
        with atomic_path(self.path / "confirm_runs.parquet") as temporary:
            frame.write_parquet(temporary, compression="zstd")
        write_json(self.path / "confirm.json", summary)

    def compared_policies(self) -> dict[str, PolicySource]:
        """The policies of the last live report by name; none before `tune` ended."""
        path = self.path / "confirm.json"
        if not path.exists():
            return {}
        report = json.loads(path.read_text(encoding="utf-8"))["report"]
        return {name: parse(PolicySource, source, str(path)) for name, source in report["policies"].items()}
