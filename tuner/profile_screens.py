"""A profile for people: what it decides first, then the evidence; and what differs between two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from profiles.difference import Difference, Differences
from profiles.policy import HISTORY_STATES, CompiledPolicy
from profiles.policy_profile import PolicyProfile
from profiles.provenance import Fingerprint
from tuner.screens import cost_screen, result_table, verdict_lines

DIGEST_SHOWN, DIGEST_LENGTH = 12, 64
VALUE_SHOWN = 60


def profile_screen(profile: PolicyProfile) -> RenderableType:
    """Decisions, then evidence, then where it all came from."""
    signer = profile.signature.public_key[:16] if profile.signature else "nobody"
    head = Text(f"{profile.name}", style="bold")
    head.append(f"  digest {profile.digest[:DIGEST_SHOWN]}, signed by {signer}", style="not bold")
    return Group(
        head,
        _pairs("decisions", _decisions(profile)),
        policy_table(profile.policy),
        result_table(profile),
        verdict_lines(profile, profile.name),
        cost_screen(profile.evidence.cost_table),
        _pairs("machine", _machine(profile.fingerprint)),
        _pairs("provenance", _provenance(profile)),
    )


def policy_table(policy: CompiledPolicy) -> Table:
    """The table that the runtime obeys: tier by signal bin and acceptance history."""
    by_history = policy.history is not None
    table = Table(title=f"policy: {_signal(policy)}", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("signal")
    for state in HISTORY_STATES if by_history else ("tier (depth,width,nodes)",):
        table.add_column(f"history {state}" if by_history else state)
    edges = ["0", *(f"{edge:g}" for edge in policy.edges), "1"]
    for i, row in enumerate(policy.table):
        cells = row if by_history else row[1:2]
        table.add_row(f"{edges[i]}–{edges[i + 1]}", *(policy.tiers[cell].label() for cell in cells))
    return table


def difference_screen(found: Differences, left: PolicyProfile, right: PolicyProfile) -> RenderableType:
    """Decisions, then evidence."""
    same = left.digest == right.digest
    verdict = "both decide the same" if same else "they decide differently"
    text = Text(f"{verdict}: digest {left.digest[:DIGEST_SHOWN]} and {right.digest[:DIGEST_SHOWN]}", style="bold")
    parts: list[RenderableType] = [text]
    for title, rows in (("decisions", found.decisions), ("evidence", found.evidence)):
        parts.append(_difference_table(title, rows) if rows else Text(f"{title}: no difference"))
    return Group(*parts)


def _difference_table(title: str, rows: Sequence[Difference]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("field", "P", "Q"):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(Text(row.path), Text(_short(row.left)), Text(_short(row.right)))
    return table


def _pairs(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=box.SIMPLE_HEAD)
    table.add_column("what", no_wrap=True)
    table.add_column("value", overflow="fold")
    for name, value in rows.items():
        table.add_row(name, Text(value))
    return table


def _decisions(profile: PolicyProfile) -> dict[str, str]:
    pair, regime, policy = profile.pair, profile.regime, profile.policy
    rows = {
        "pair": pair.name,
        "target": _model(pair.target.source, pair.target.revision, pair.target.weights_digest),
        "draft": _model(pair.draft.source, pair.draft.revision, pair.draft.weights_digest),
        "regime": f"{', '.join(regime.modalities)}; {regime.sampling.label()}; context up to {regime.context_max}; "
        f"batch {regime.batch}",
        "kind": f"{profile.shipped}: {profile.reason}",
        "safe tier": policy.tiers[policy.safe].label(),
        "verify sizes": ", ".join(map(str, policy.verify_sizes)),
    }
    if policy.growth is not None:
        rows["growth tree"] = f"{len(policy.growth.leaves)} leaves"
    if policy.pruning.kind != "none":
        rows["pruning"] = str(policy.pruning)
    return rows


def _machine(machine: Fingerprint) -> dict[str, str]:
    fields = machine.model_dump(mode="json")
    versions = fields.pop("versions")
    rows = {name: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for name, v in fields.items() if v}
    return rows | {"versions": ", ".join(f"{name} {version}" for name, version in versions.items())}


def _provenance(profile: PolicyProfile) -> dict[str, str]:
    came, gate = profile.provenance, profile.gate
    prompts = ", ".join(f"{count} {split}" for split, count in came.split_prompts.items())
    checked = "nothing: it is from before there was a gate"
    if gate is not None:
        checked = (
            f"{len(gate.counters)} prompts with counters, {len(gate.times)} with times, {len(gate.bills)} policies"
        )
    return {
        "command": came.command_line,
        "prompts": f"{prompts} (data {came.data_digest[:DIGEST_SHOWN]}, trace {came.trace_digest[:DIGEST_SHOWN]})",
        "search": f"{came.search.sampler}, {came.search.trials} trials, seed {came.search.seed}",
        "check holds against": checked,
    }


def _signal(policy: CompiledPolicy) -> str:
    spec = policy.signal
    if not policy.edges:
        return "one tier for every signal"
    parts = [spec.kind, f"top {spec.top_k}"] + ["of the round before"] * spec.lag
    return ", ".join(parts + ([f"smoothed {spec.smoothing:g}"] if spec.smoothing else []))


def _model(source: str, revision: str | None, weights: str) -> str:
    return f"{source}{f'@{revision}' if revision else ''} (weights {weights[:DIGEST_SHOWN]})"


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    if len(text) == DIGEST_LENGTH and not set(text) - set("0123456789abcdef"):
        return text[:DIGEST_SHOWN]
    return text if len(text) <= VALUE_SHOWN else f"{text[: VALUE_SHOWN - 1]}…"
