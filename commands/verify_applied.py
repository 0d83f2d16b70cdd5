"""`sage_tune verify-applied`: is a profile's policy what a live engine runs?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commands.options import Json, out, print_json
from profiles.errors import BadInput, ProfileError
from profiles.lowering import REPORT_NAME, Lowered, LoweringReport
from profiles.policy_profile import PolicyProfile
from profiles.store import load_profile, read_json

if TYPE_CHECKING:
    from tuner.applied import Expected

OWN = "sage_tune"


def verify_applied(
    profile_path: Annotated[Path, typer.Argument(metavar="PROFILE", help="policy profile (*.sage.json)")],
    metrics: Annotated[
        Path, typer.Argument(metavar="LOG_OR_METRICS", help="Prometheus text, JSON, or one JSON document per line")
    ],
    run: Annotated[Path | None, typer.Option("--run", help="run folder: expect what replay says")] = None,
    exported: Annotated[
        Path | None, typer.Option("--export", help="folder that `sage_tune export` wrote for this engine")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="whose counters they are; by the names in the file without it"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare an engine's counters with what the policy must show: applied, not this policy, or inconclusive."""
    from commands.applied_table import applied_screen
    from tuner.applied import EXIT_CODES, compare
    from tuner.engine_metrics import ENGINES, read_counters

    if engine is not None and engine not in ENGINES:
        raise BadInput(f"--engine takes {', '.join(ENGINES)}, got '{engine}'")
    profile, seen = load_profile(profile_path), read_counters(metrics)
    if engine is not None and seen.engine != engine:
        raise BadInput(f"{metrics} holds counters of {seen.engine}, --engine says {engine}")
    if seen.engine == OWN:
        if exported is not None:
            raise BadInput("--export is of another engine, the counters are of sage_tune's own runtime")
        expected = own_policy(profile, run)
    else:
        expected = lowered_policy(profile, str(seen.engine), run, exported)
    found = compare(expected, seen)
    out.print(applied_screen(found, f"{profile.name} {profile.digest[:12]} on {seen.engine}"))
    if as_json:
        print_json({**found.document(), "engine": seen.engine, "digest": profile.digest})
    raise typer.Exit(EXIT_CODES[found.verdict])


def own_policy(profile: PolicyProfile, run: Path | None) -> Expected:
    """The whole policy in sage_tune's own runtime."""
    from tuner.applied import Expected, by_walk, unreplayed
    from tuner.lowering_search import acceptance_interval, full_label

    policy, evidence = profile.policy, profile.evidence
    label = full_label(policy)
    if run is not None:
        from tuner.profile_record import open_record

        arena = open_record(profile, run).arena
        report = arena.replay.record.split_samples("report")
        walk = arena.replay.walk(policy, report)
        acceptance = acceptance_interval(arena, walk, report)
        source = f"replay of {len(report)} report prompts"
        return by_walk(policy, walk, acceptance, source, label, profile.digest)
    row = next((row for row in evidence.results if row.name == evidence.shipped_name), None)
    rounds = row.rounds if row is not None else 0
    depth = policy.max_depth
    return Expected(
        label=label,
        source=f"row '{evidence.shipped_name}' of the profile",
        depth=depth,
        acceptance=unreplayed(evidence.acceptance_length, rounds, depth) if rounds else None,
        known_tiers=frozenset(tier.label() for tier in policy.tiers),
        digest=profile.digest,
    )


def lowered_policy(profile: PolicyProfile, engine: str, run: Path | None, exported: Path | None) -> Expected:
    """What was exported to an engine: by its export, else what an export would be."""
    from exports.lowering import by_profile, truncated
    from exports.targets import TARGETS
    from tuner.applied import by_lowered, mean_of, positions_of, unreplayed

    target = TARGETS[engine]
    abilities = target.methods[target.method(None)].abilities
    lowered: Lowered | None = None
    numbers, from_profile, source = None, None, ""
    if exported is not None:
        report = read_json(exported / REPORT_NAME, LoweringReport)
        if report.profile_digest != profile.digest:
            raise ProfileError(
                f"{exported} was exported from profile {report.profile_digest[:12]}, this one is {profile.digest[:12]}"
            )
        if report.engine != engine:
            raise BadInput(f"{exported} is an export to {report.engine}, the counters are of {engine}")
        lowered, numbers, from_profile = report.lowered, report.numbers, report.from_profile
        abilities, source = target.methods[report.method].abilities, f"{exported / REPORT_NAME}"
    if run is not None:
        from tuner.lowering_search import LoweringSearch, lowering_numbers
        from tuner.profile_record import open_record

        record = open_record(profile, run)
        search = LoweringSearch(record.arena, abilities, truncated(profile.source, abilities))
        lowered = lowered or search.best.lowered
        numbers = lowering_numbers(search, profile.policy, lowered, record.trace_digest)
        source = f"replay of {numbers.loss.prompts} report prompts"
    if lowered is None:
        lowered, from_profile = by_profile(profile, abilities)
    if numbers is not None:
        row = numbers.lowered
        mean = mean_of(row.acceptance_length, row.rounds)
        return by_lowered(lowered, mean, positions_of(numbers.positions, row.rounds), source)
    if from_profile is None:
        return by_lowered(lowered, None, (), source or "the policy alone")
    known = unreplayed(from_profile.acceptance_length, from_profile.rounds, lowered.tier.depth)
    return by_lowered(lowered, known, (), source or f"row '{from_profile.row}' of the profile")
