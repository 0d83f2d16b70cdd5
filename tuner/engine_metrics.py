"""Counters of a live engine: Prometheus text, JSON, or one JSON document per line, whoever wrote them.

Names are those of vLLM 0.33, SGLang 0.5.23, TensorRT-LLM 1.4 and of sage_tune's own runtime. Every engine counts
`accepted` draft tokens without the bonus; an acceptance length includes it.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from profiles.errors import BadInput

ENGINES = ("sage_tune", "vllm", "sglang", "trtllm", "transformers", "openvino", "llamacpp")
"""The last three publish no such counters: their counts are written down by hand, with an `engine` key."""
SAMPLE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass
class EngineCounters:
    """What an engine counted; None where it does not say."""

    engine: str | None = None
    """Who wrote it, by the names that were used."""
    rounds: float | None = None
    """Verification passes that had a draft."""
    draft_tokens: float | None = None
    """Draft tokens that were verified."""
    accepted_tokens: float | None = None
    positions: list[float] = field(default_factory=list)
    """Rounds that accepted each level, first level first."""
    tier_rounds: dict[str, int] = field(default_factory=dict)
    """Rounds by tier label."""
    digests: list[str] = field(default_factory=list)
    """Profile digests that were echoed."""
    steps: float | None = None
    tree_tokens: float | None = None
    """Levels of a draft, and tokens of a verification pass with the root, as configured."""

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per round, bonus included."""
        if not self.rounds or self.accepted_tokens is None:
            return None
        return 1.0 + self.accepted_tokens / self.rounds

    def add(self, other: EngineCounters) -> None:
        """Counts of another document of the same engine. Raises BadInput for those of another engine."""
        if self.engine is not None and other.engine != self.engine:
            raise BadInput(f"the file holds counters of {self.engine} and of {other.engine}; give one engine's")
        self.engine = other.engine
        for name in ("rounds", "draft_tokens", "accepted_tokens"):
            mine, more = getattr(self, name), getattr(other, name)
            setattr(self, name, more if mine is None else mine if more is None else mine + more)
        self.positions += [0.0] * (len(other.positions) - len(self.positions))
        for i, count in enumerate(other.positions):
            self.positions[i] += count
        self.tier_rounds = dict(Counter(self.tier_rounds) + Counter(other.tier_rounds))
        self.digests = list(dict.fromkeys([*self.digests, *other.digests]))
        self.steps, self.tree_tokens = other.steps or self.steps, other.tree_tokens or self.tree_tokens


def read_counters(path: Path) -> EngineCounters:
    """Raises BadInput for a missing file and for one without counters of speculative decoding."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"no such file: {path}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no text: {error}") from None
    total, found = EngineCounters(), False
    for part in _parts(text):
        if part.engine not in ENGINES:
            raise BadInput(f"{path}: engine must be one of {', '.join(ENGINES)}, got '{part.engine}'")
        total.add(part)
        found = True
    if not found:
        raise BadInput(
            f"{path} holds no counters of speculative decoding; known are the metrics of vLLM, SGLang and TensorRT-LLM "
            "(Prometheus text or JSON) and what `sage_tune run --json` prints"
        )
    return total


def _parts(text: str) -> Iterator[EngineCounters]:
    try:
        yield from _in_document(json.loads(text))
        return
    except json.JSONDecodeError:
        pass
    documents = [document for line in text.splitlines() if (document := _json_line(line)) is not None]
    if documents:
        for document in documents:
            yield from _in_document(document)
        return
    yield from _in_prometheus(text)


def _json_line(line: str) -> Any | None:
    """A JSON object of a log line, which may be text otherwise."""
    if not line.strip().startswith(("{", "[")):
        return None
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def _in_document(document: Any) -> Iterator[EngineCounters]:
    """Counters anywhere in a document."""
    if isinstance(document, list):
        for item in document:
            yield from _in_document(item)
    elif isinstance(document, dict):
        found = _known(document)
        if found is not None:
            yield found
            return
        for value in document.values():
            yield from _in_document(value)


def _known(d: dict[str, Any]) -> EngineCounters | None:
    if "tier_rounds" in d:
        rounds = float(d.get("rounds", sum(d["tier_rounds"].values())))
        digests = [d["digest"]] if "digest" in d else []
        accepted = d.get("num_accepted_tokens")
        if accepted is None and "acceptance_length" in d:
            accepted = rounds * (d["acceptance_length"] - 1)
        return EngineCounters(
            "sage_tune",
            rounds,
            d.get("num_draft_tokens"),
            accepted,
            _rates(d, "per_position_acceptance_rates", rounds),
            dict(d["tier_rounds"]),
            digests,
        )
    if "num_drafts" in d:
        rounds, positions = float(d["num_drafts"]), _rates(d, "per_position_acceptance_rates", float(d["num_drafts"]))
        engine = str(d.get("engine", "sage_tune"))
        return EngineCounters(engine, rounds, d.get("num_draft_tokens"), d.get("num_accepted_tokens"), positions)
    if "num_spec_steps" in d:
        return EngineCounters(
            "vllm", d["num_spec_steps"], d.get("num_draft_tokens"), d.get("num_accepted_draft_tokens")
        )
    if "spec_decode_num_drafts" in d:
        rounds = float(d["spec_decode_num_drafts"])
        positions = _rates(d, "spec_decode_per_position_acceptance_rates", rounds)
        drafted, accepted = d.get("spec_decode_draft_tokens"), d.get("spec_decode_accepted_tokens")
        return EngineCounters("vllm", rounds, drafted, accepted, positions)
    if "numRequestsWithDraftTokens" in d:
        return EngineCounters(
            "trtllm", d["numRequestsWithDraftTokens"], d.get("numDraftTokens"), d.get("numAcceptedTokens")
        )
    if "spec_verify_ct" in d:
        rounds = float(d["spec_verify_ct"])
        accepted = d.get("spec_num_correct_drafts")
        if accepted is None and "completion_tokens" in d:
            accepted = d["completion_tokens"] - rounds
        return EngineCounters("sglang", rounds, d.get("spec_num_proposed_drafts"), accepted)
    return None


def _rates(d: dict[str, Any], name: str, rounds: float) -> list[float]:
    """Counts by level, from shares."""
    return [float(rate) * rounds for rate in d.get(name) or ()]


def _in_prometheus(text: str) -> Iterator[EngineCounters]:
    """Series of all labels are summed; gauges are averaged."""
    series: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        series[match["name"].removesuffix("_total")].append((dict(LABEL.findall(match["labels"] or "")), value))
    for engine, prefix in (("vllm", "vllm:"), ("sage_tune", "sage_tune:"), ("sage_tune", "sage_tune_")):
        if f"{prefix}spec_decode_num_drafts" in series:
            yield _spec_decode(engine, prefix, series)
    if "trtllm_spec_decode_acceptance_length" in series:
        yield _trtllm(series)
    if "sglang:spec_verify_calls" in series or "sglang:spec_accept_length" in series:
        yield _sglang(series)


Series = Mapping[str, list[tuple[dict[str, str], float]]]


def _sum(series: Series, name: str) -> float | None:
    return sum(value for _, value in series[name]) if name in series else None


def _mean(series: Series, name: str) -> float | None:
    return sum(value for _, value in series[name]) / len(series[name]) if name in series else None


def _spec_decode(engine: str, prefix: str, series: Series) -> EngineCounters:
    """vLLM's names, which sage_tune's own runtime shares."""
    by_position: Counter[int] = Counter()
    for labels, value in series.get(f"{prefix}spec_decode_num_accepted_tokens_per_pos", ()):
        by_position[int(labels["position"])] += int(value)
    tiers: Counter[str] = Counter()
    digests: dict[str, None] = {}
    for labels, value in series.get(f"{prefix}spec_decode_tier_rounds", ()):
        tiers[labels["tier"]] += int(value)
    for rows in series.values():
        digests |= {labels["digest"]: None for labels, _ in rows if "digest" in labels}
    return EngineCounters(
        engine,
        _sum(series, f"{prefix}spec_decode_num_drafts"),
        _sum(series, f"{prefix}spec_decode_num_draft_tokens"),
        _sum(series, f"{prefix}spec_decode_num_accepted_tokens"),
        [float(by_position[i]) for i in range(max(by_position, default=-1) + 1)],
        dict(tiers),
        list(digests),
    )


def _trtllm(series: Series) -> EngineCounters:
    """No counter of rounds: it follows from accepted tokens and their mean."""
    accepted = _sum(series, "trtllm_spec_decode_num_accepted_tokens")
    length = _mean(series, "trtllm_spec_decode_acceptance_length")
    rounds = accepted / (length - 1) if accepted and length is not None and length > 1 else None
    return EngineCounters("trtllm", rounds, _sum(series, "trtllm_spec_decode_num_draft_tokens"), accepted)


def _sglang(series: Series) -> EngineCounters:
    rounds, length = _sum(series, "sglang:spec_verify_calls"), _mean(series, "sglang:spec_accept_length")
    accepted = rounds * (length - 1) if rounds is not None and length is not None else None
    steps, tree = _mean(series, "sglang:spec_num_steps"), _mean(series, "sglang:spec_num_draft_tokens")
    return EngineCounters("sglang", rounds, None, accepted, steps=steps, tree_tokens=tree)
