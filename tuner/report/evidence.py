"""The sections of a report that rest on the final table of a profile, and its provenance."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.measurement import Interval, PolicyResult
from profiles.policy_profile import PolicyProfile
from tuner.report.view import Agreement, Card, Dot, Dots, Section, Span, Table


def summary(profile: PolicyProfile) -> Section:
    """What ships and the few numbers that matter."""
    evidence = profile.evidence
    near = f", {evidence.near_ties} near ties" if evidence.near_ties else ", all equal"
    cards = (
        _card("speedup of decoding", evidence.speedup, _mark(evidence.speedup)),
        _card("speedup of whole requests", evidence.request_speedup, "measured, prefills of both models included"),
        _card("over the best static tier", evidence.gain_over_static, "the best adaptive policy, measured", 3),
        Card("acceptance length", f"{evidence.acceptance_length:.2f}", "tokens per round, bonus included"),
        Card("replay against live", _percent(evidence.prediction_error), f"replayed {evidence.speedup_replayed:.2f}"),
        Card("tokens compared", f"{evidence.lossless_tokens}", f"with plain decoding{near}"),
    )
    text = [f"Shipped: {profile.shipped}. {profile.reason[:1].upper()}{profile.reason[1:]}."]
    if abs(evidence.prediction_error) > evidence.prediction_bound:
        text.append(
            f"Replay and measurement are more than {100 * evidence.prediction_bound:.0f} % apart: the machine was not "
            "the one that the cost table describes. The decision rests on the measurement."
        )
    return Section("summary", "What ships", tuple(text), cards)


def yardsticks(profile: PolicyProfile) -> Section:
    """All contestants of the final table with their intervals, and the oracle as a line."""
    results = profile.evidence.results
    bounds = [(r.speedup_replayed, r.name) for r in results if r.kind == "bound"]
    dots = tuple(_dot(r, r.name == profile.evidence.shipped_name) for r in results if r.kind != "bound")
    chart = Dots(
        "yardsticks",
        "speedup over plain decoding",
        "Replayed and measured speedup of every policy and yardstick; "
        + ("; ".join(f"{name} at {value:.2f}" for value, name in bounds) or "no oracle is recorded"),
        "times plain decoding",
        dots,
        Table(
            f"{profile.evidence.speedup.prompts} held-out prompts",
            ("policy", "tiers", "acceptance length", "rounds", "replayed", "measured", "share of oracle"),
            tuple(_result_row(r) for r in results),
        ),
        lines=((1.0, "plain"), *bounds),
    )
    text = (
        "On the report prompts, which neither search nor selection saw. Rules without a measured value can only be "
        "replayed; the oracle knows every outcome in advance, and nothing can be faster on this grid."
        if bounds
        else "On the report prompts. This profile is older than the oracle: there is no upper bound to compare with."
    )
    return Section("yardsticks", "Yardsticks", (text,), charts=(chart,))


def prediction(profile: PolicyProfile) -> Section:
    """Replayed against measured speedup of everything that ran live."""
    evidence = profile.evidence
    rows = [r for r in evidence.results if r.speedup_measured is not None and r.verdict != "off"]
    dots = tuple(_dot(r, r.name == evidence.shipped_name) for r in rows)
    chart = Agreement(
        "prediction",
        "predicted and measured",
        f"Measured against replayed speedup; the shipped policy was {_percent(evidence.prediction_error)} off.",
        "replayed speedup",
        "measured speedup",
        dots,
        evidence.prediction_bound,
        Table(
            "replayed over measured",
            ("policy", "replayed", "measured", "replayed / measured - 1"),
            tuple(
                (
                    r.name,
                    f"{r.speedup_replayed:.3f}",
                    _unbroken(r.speedup_measured, 3),
                    _percent(r.speedup_replayed / r.speedup_measured.median - 1),
                )
                for r in rows
                if r.speedup_measured is not None
            ),
        ),
    )
    text = (
        f"Replay charges every round by the cost table. On the line it was right; between the dashed lines it was at "
        f"most {100 * evidence.prediction_bound:.0f} % off."
    )
    return Section("prediction", "Predicted and measured", (text,), charts=(chart,))


def rivals(profile: PolicyProfile) -> Section:
    """Sensitivity as far as the final table tells it: what else could have shipped, relative to what did."""
    results = profile.evidence.results
    shipped = next((r.speedup_replayed for r in results if r.name == profile.evidence.shipped_name), None)
    title = "Sensitivity of the optimum"
    rows = [r for r in results if r.kind == "policy" and r.verdict != "off"]
    if shipped is None or not rows:
        return Section("sensitivity", title, missing="the profile names no row of its table as shipped")
    dots = tuple(
        Dot(r.name, Span(*(3 * (r.speedup_replayed / shipped,))), strong=r.name == profile.evidence.shipped_name)
        for r in rows
    )
    numbers = Table(
        "replayed speedup relative to the shipped policy",
        ("policy", "tiers", "relative speedup"),
        tuple((r.name, " | ".join(r.tiers), f"{r.speedup_replayed / shipped:.3f}") for r in rows),
    )
    text = (
        "How much faster or slower the other runnable policies of the final table are. The neighbours of the shipped "
        "policy need the record: make the report of the run folder to see them."
    )
    chart = Dots(
        "sensitivity",
        "relative to what ships",
        "Replayed speedup of the other policies relative to the shipped one.",
        "times the shipped policy",
        dots,
        numbers,
        lines=((1.0, "shipped"),),
    )
    return Section("sensitivity", title, (text,), charts=(chart,))


def provenance(profile: PolicyProfile, command_line: str) -> Section:
    """Everything that the numbers depend on."""
    source, machine = profile.provenance, profile.fingerprint
    pair = profile.pair
    rows = [
        ("profile digest (decisions)", profile.digest),
        ("evidence digest", profile.evidence_digest),
        ("schema version", str(profile.schema_version)),
        ("target", f"{pair.target.source} {pair.target.revision or ''} weights {pair.target.weights_digest}"),
        ("draft", f"{pair.draft.source} {pair.draft.revision or ''} weights {pair.draft.weights_digest}"),
        ("tokenizer", pair.tokenizer_digest),
        ("processor", pair.processor_digest),
        ("configuration", source.config_digest),
        ("data", source.data_digest),
        ("trace", source.trace_digest),
        ("prompts", ", ".join(f"{split} {n}" for split, n in source.split_prompts.items())),
        ("search", f"{source.search.sampler}, seed {source.search.seed}, {source.search.trials} trials"),
        ("trial log", source.search.trial_log_digest),
        ("tuned by", source.command_line),
        ("this report by", command_line),
    ]
    fields = machine.model_dump(mode="json", exclude={"versions", "simd"})
    on = [(name, str(value)) for name, value in fields.items() if value not in (None, "")]
    on += [("simd", ", ".join(machine.simd))] if machine.simd else []
    tables = (
        Table("digests and commands", ("what", "value"), tuple(rows)),
        Table("machine", ("field", "value"), tuple(on)),
        Table("versions", ("package", "version"), tuple(source.versions.items())),
    )
    return Section("provenance", "Provenance", tables=tables)


def untuned_provenance(rows: Sequence[tuple[str, str]], command_line: str) -> Section:
    """The same of a run that has no profile yet."""
    table = Table("digests and commands", ("what", "value"), (*rows, ("this report by", command_line)))
    return Section("provenance", "Provenance", tables=(table,))


def _card(name: str, interval: Interval, note: str, digits: int = 2) -> Card:
    low, high = (f"{end:.{digits}f}" for end in (interval.low, interval.high))
    return Card(name, f"{interval.median:.{digits}f}", note, f"[{low}, {high}]")


def _mark(interval: Interval) -> str:
    return f"{interval.mark}, {interval.prompts} held-out prompts"


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _unbroken(interval: Interval, digits: int = 2) -> str:
    """An interval that a narrow column does not fold."""
    return interval.text(digits).replace(" ", "\N{NO-BREAK SPACE}")


def _span(interval: Interval | None) -> Span | None:
    return None if interval is None else Span(interval.median, interval.low, interval.high)


def _dot(row: PolicyResult, strong: bool) -> Dot:
    replayed = _span(row.speedup_interval) or Span(*(3 * (row.speedup_replayed,)))
    return Dot(row.name, replayed, _span(row.speedup_measured), strong)


def _result_row(row: PolicyResult) -> tuple[str, ...]:
    return (
        row.name,
        " | ".join(row.tiers),
        f"{row.acceptance_length:.2f}",
        str(row.rounds),
        _unbroken(row.speedup_interval) if row.speedup_interval else f"{row.speedup_replayed:.2f}",
        _unbroken(row.speedup_measured) if row.speedup_measured else "–",
        _unbroken(row.share_of_oracle) if row.share_of_oracle else "–",
    )
