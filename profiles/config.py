"""Everything a command takes, as one frozen document. TOML by hand, JSON when resolved (`sage_tune init`).

A default lives here and nowhere else; command-line flags override single fields by their dotted path.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_serializer, field_validator, model_validator

from profiles.errors import BadInput
from profiles.frozen import Frozen
from profiles.gate import GateLimits
from profiles.locations import has_password, study_location, without_password
from profiles.policy import MAX_DEPTH, MAX_NODES, MAX_WIDTH, DraftRule, SignalKind, pool_size
from profiles.pruning import PruningGrid
from profiles.sage_paper import SagePaper
from profiles.sampling import Sampling
from profiles.store import parse, read_toml


class DataConfig(Frozen):
    """Calibration prompts and their split."""

    path: Annotated[
        str | None,
        Field(description="JSONL, folder of pictures, or hf:NAME[:SPLIT]; unset takes the pair's own calibration set"),
    ] = None
    default_prompt: Annotated[
        str, Field(min_length=1, description="asked about pictures of a folder that come without a prompt")
    ] = "Describe the image in detail."
    subset: Annotated[str | None, Field(description="configuration of an hf: data set that has several")] = None
    image_column: Annotated[str, Field(description="hf: column of the picture; '' for a text-only set")] = "image"
    prompt_column: Annotated[str, Field(min_length=1, description="hf: column of the prompt")] = "prompt"
    id_column: Annotated[str, Field(description="hf: column of the id that fixes a split; '' takes the row")] = ""
    allow_synthetic: Annotated[
        bool, Field(description="take prompts that are no language, such as random tokens; their acceptance is false")
    ] = False
    trace_url: Annotated[
        str | None,
        Field(description="folder of the record: a path or an fsspec URL (s3://...); unset is the run folder"),
    ] = None
    prompts: Annotated[int, Field(ge=9, description="use at most this many prompts, spread over kinds")] = 240
    max_new_tokens: Annotated[int, Field(ge=1, le=8192, description="cap on each sample's own limit")] = 256
    skip_bad: Annotated[bool, Field(description="skip unreadable samples with a count instead of stopping")] = False
    tune_share: Annotated[float, Field(gt=0, lt=1, description="share of prompts that the search sees")] = 0.5
    select_share: Annotated[float, Field(gt=0, lt=1, description="share that chooses among finalists")] = 0.2

    @field_validator("trace_url")
    @classmethod
    def _no_password(cls, place: str | None) -> str | None:
        if place is not None and has_password(place):
            raise ValueError("a password does not belong into a trace URL, which is written down; configure fsspec")
        return place

    @model_validator(mode="after")
    def _something_left(self) -> Self:
        if self.tune_share + self.select_share > 0.9:
            raise ValueError(
                "tune_share + select_share must leave at least 0.1 to report on, got "
                f"{self.tune_share} + {self.select_share}"
            )
        return self


class GridConfig(Frozen):
    """What is recorded and measured. A policy outside it cannot be replayed, so it is refused."""

    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH, description="deepest recorded tree")] = 8
    widths: Annotated[tuple[int, ...], Field(min_length=1, description="beam widths that are recorded")] = (
        1,
        2,
        3,
        4,
    )
    verify_sizes: Annotated[
        tuple[int, ...],
        Field(min_length=2, description="verification pass sizes, root counted; a tree is padded to the next"),
    ] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32)
    contexts: Annotated[int, Field(ge=2, le=8, description="context lengths at which passes are timed")] = 3
    signal_logprobs: Annotated[
        int, Field(ge=2, le=64, description="log-probabilities recorded per position: the largest k of an entropy")
    ] = 20
    margin: Annotated[
        float, Field(ge=0, lt=1, description="mu of TALON's margin rule, recorded at the largest width; 0 for none")
    ] = 0.03
    sage_paper: SagePaper = SagePaper()
    pruning: PruningGrid = PruningGrid()

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        for name, values, top in (
            ("widths", self.widths, MAX_WIDTH),
            ("verify_sizes", self.verify_sizes, MAX_NODES),
        ):
            if list(values) != sorted(set(values)) or values[0] < 1 or values[-1] > top:
                raise ValueError(f"{name} must ascend within [1, {top}], got {values}")
        if self.verify_sizes[:2] != (1, 2):
            raise ValueError(f"verify_sizes must begin with 1, 2 (a plain step, one node), got {self.verify_sizes}")
        if self.depth + 1 > self.verify_sizes[-1]:
            raise ValueError(
                f"a chain of depth {self.depth} needs verify size {self.depth + 1}, the largest is "
                f"{self.verify_sizes[-1]}"
            )
        if self.sage_paper.record and self.sage_paper.top_k > self.signal_logprobs:
            raise ValueError(
                f"sage_paper.top_k <= signal_logprobs must hold, got {self.sage_paper.top_k} > {self.signal_logprobs}"
            )
        return self

    def restricted(self, verify_sizes: Iterable[int]) -> GridConfig:
        """The grid with only these of its verify sizes, and no deeper than a chain that fits the largest of them.

        Raises ValueError (through the model) when less than a plain step and one node is left.
        """
        kept = tuple(size for size in self.verify_sizes if size in set(verify_sizes))
        depth = min(self.depth, max(kept, default=1) - 1)
        return GridConfig.model_validate(self.model_dump() | {"verify_sizes": kept, "depth": depth})

    def node_counts(self, depth: int, width: int) -> list[int]:
        """Node budgets of a tier that leave no verify slot idle: sizes minus the root, within depth..pool.

        A pool between two sizes is taken whole when nothing else fits.
        """
        pool = pool_size(depth, width)
        counts = [s - 1 for s in self.verify_sizes if depth <= s - 1 <= pool]
        return counts or [n for n in (pool,) if n + 1 <= self.verify_sizes[-1]]

    @property
    def max_nodes(self) -> int:
        """Nodes that the largest verification pass has room for besides the root."""
        return self.verify_sizes[-1] - 1

    @property
    def margin_rule(self) -> DraftRule | None:
        """TALON's rule at the largest width; None where it would be a chain or is not recorded."""
        if not self.margin or self.widths[-1] == 1:
            return None
        return DraftRule(kind="margin", width=self.widths[-1], mu=self.margin)

    def rules(self) -> tuple[DraftRule, ...]:
        """Every drafting rule that is recorded: a beam per width first."""
        rules = [DraftRule(width=width) for width in self.widths]
        rules += [self.margin_rule] if self.margin_rule else []
        return (*rules, *self.sage_paper.rules(self.depth, self.widths, self.max_nodes))


class TimingConfig(Frozen):
    """When a measurement is long enough."""

    warmup_cv: Annotated[
        float, Field(gt=0, lt=1, description="warm-up ends when the last samples vary less than this")
    ] = 0.1
    warmup_max: Annotated[int, Field(ge=5, description="...or after this many samples")] = 60
    samples: Annotated[int, Field(ge=5, description="kept samples per pass size and context")] = 25


class SearchConfig(Frozen):
    """The Optuna study over policies."""

    storage: Annotated[
        str | None,
        Field(description="where the study lives: PATH, journal:PATH or postgresql://...; unset is the run folder"),
    ] = None
    trials: Annotated[int, Field(ge=1, description="trials of the study, the baselines included")] = 400
    sampler: Annotated[Literal["tpe", "random"], Field(description="how trials are drawn")] = "tpe"
    seed: Annotated[int, Field(ge=0, description="seed of the sampler")] = 7
    signals: Annotated[
        tuple[SignalKind, ...], Field(min_length=1, description="signals the search may choose from")
    ] = ("entropy", "one_minus_top1", "one_minus_margin", "target_entropy")
    top_ks: Annotated[
        tuple[Annotated[int, Field(ge=2, le=64)], ...],
        Field(min_length=1, description="k that an entropy may be taken over; at most grid.signal_logprobs"),
    ] = (5, 10, 20)
    lags: Annotated[
        tuple[Literal[0, 1], ...],
        Field(min_length=1, description="0: this round's signal, 1: that of the round before"),
    ] = (0, 1)
    smoothings: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], ...],
        Field(min_length=1, description="weight of the past in an exponential mean of the signal; 0 is none"),
    ] = (0.0, 0.5, 0.8)
    max_bins: Annotated[int, Field(ge=1, le=9, description="most signal bins of a policy (edges plus one)")] = 5
    history: Annotated[bool, Field(description="search the acceptance history window as well")] = True
    stops: Annotated[
        tuple[float, ...], Field(min_length=1, description="stop probabilities a tier may use; 0 is none")
    ] = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
    monotone: Annotated[bool, Field(description="depth may not rise and width may not fall with the signal")] = True

    @field_validator("storage")
    @classmethod
    def _known_storage(cls, place: str | None) -> str | None:
        if place is not None:
            study_location(place)
        return place

    @field_serializer("storage")
    def _storage_to_write_down(self, place: str | None) -> str | None:
        """A password is used, never stored: not in a run folder, not in a profile, not in a digest."""
        return None if place is None else without_password(place)


class ConfirmConfig(Frozen):
    """The live comparison that decides what ships."""

    finalists: Annotated[int, Field(ge=1, le=8, description="adaptive policies re-measured live")] = 2
    repeats: Annotated[
        int, Field(ge=1, le=16, description="ABBA blocks per prompt; repeats do not narrow an interval")
    ] = 2
    select_prompts: Annotated[int, Field(ge=3, description="prompts that choose the winner")] = 40
    report_prompts: Annotated[int, Field(ge=3, description="prompts that the result is reported on")] = 72
    prediction_bound: Annotated[
        float, Field(gt=0, description="replayed and measured speedup may differ by this share")
    ] = 0.1


class TuneConfig(Frozen):
    """The whole document."""

    model: Annotated[str, Field(description="registered pair, or a pair TOML of your own")] = "tiny-llava-ov"
    target: Annotated[
        str | None, Field(description="hub id or folder in place of the pair's target; with draft, a pair of its own")
    ] = None
    draft: Annotated[
        str | None,
        Field(description="in place of the pair's draft: hub id, folder, prompt-lookup or early-exit:LAYERS"),
    ] = None
    gpu: Annotated[str, Field(description="device: auto, cpu, h100, ... (see `sage_tune gpus`)")] = "auto"
    backend: Annotated[
        Literal["auto", "onnx", "torch"], Field(description="inference engine; auto takes the pair's own")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Field(description="weights and activations; auto takes the pair's own"),
    ] = "auto"
    device_map: Annotated[
        str | None,
        Field(
            pattern=r"^(auto|balanced|balanced_low_0|sequential|cpu|cuda(:\d+)?)$",
            description="spread the target over devices as transformers does: auto, balanced, sequential, cuda:1",
        ),
    ] = None
    threads: Annotated[
        int, Field(ge=0, le=1024, description="CPU threads, pinned and recorded; 0 takes every core")
    ] = 0
    budget_s: Annotated[
        float | None,
        Field(gt=0, description="wall-clock bound of a command; it stops cleanly with what it has"),
    ] = None
    data: DataConfig = DataConfig()
    sampling: Sampling = Sampling()
    grid: GridConfig = GridConfig()
    timing: TimingConfig = TimingConfig()
    search: SearchConfig = SearchConfig()
    confirm: ConfirmConfig = ConfirmConfig()
    gate: GateLimits = GateLimits()

    @model_validator(mode="after")
    def _recorded(self) -> Self:
        if max(self.search.top_ks) > self.grid.signal_logprobs:
            raise ValueError(
                f"search.top_ks <= grid.signal_logprobs must hold, got {self.search.top_ks} > "
                f"{self.grid.signal_logprobs}"
            )
        return self


RETUNABLE = ("search", "confirm", "gate", "budget_s")
"""What may change between runs of `tune` on one record."""


def load_config(path: Path | None, overrides: dict[str, Any]) -> TuneConfig:
    """Defaults, then the TOML file, then flags given as `{"grid.depth": 6}`. None means "flag not given"."""
    return _overridden({} if path is None else read_toml(path), overrides, str(path) if path else "flags")


def _overridden(raw: dict[str, Any], overrides: dict[str, Any], where: str) -> TuneConfig:
    for dotted, value in overrides.items():
        if value is None:
            continue
        table = raw
        *parents, last = dotted.split(".")
        for part in parents:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise BadInput(f"{where}: '{part}' must be a table, got {table!r}")
        table[last] = value
    return parse(TuneConfig, raw, where)


def parse_set(assignment: str) -> tuple[str, Any]:
    """`grid.depth=6` as `("grid.depth", 6)`; the value is read as TOML, bare words as strings."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"--set takes KEY=VALUE, got '{assignment}'")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return key.strip(), value


def parse_seconds(text: str) -> float:
    """`90s`, `10m`, `1h`, or plain seconds. Raises BadInput for anything else."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:])
    try:
        value = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        raise BadInput(f"a time budget is written 90s, 10m or 1h, got '{text}'") from None
    if not 0 < value < float("inf"):
        raise BadInput(f"a time budget must be positive, got '{text}'")
    return value


def retuned(recorded: TuneConfig, path: Path | None, overrides: dict[str, Any]) -> TuneConfig:
    """A recorded run's configuration with other search, confirmation and budget settings.

    Raises BadInput for a flag that would change what was recorded.
    """
    fixed = [key for key, v in overrides.items() if v is not None and key.split(".")[0] not in RETUNABLE]
    if fixed:
        raise BadInput(f"'{fixed[0]}' is part of the record; change it with `sage_tune profile` into a new folder")
    raw = recorded.model_dump(mode="json") | {"budget_s": None}
    if path is not None:
        raw |= {key: value for key, value in read_toml(path).items() if key in RETUNABLE}
    return _overridden(raw, overrides, str(path) if path else "flags")
