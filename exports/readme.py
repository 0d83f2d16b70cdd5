"""README.md of an export: how to start the engine with it, what it was given, what it lost, how to check it."""

from __future__ import annotations

from exports.lowering import shape_in_words
from exports.request import ExportRequest, fenced
from exports.targets import Target
from profiles.lowering import REPORT_NAME, FromProfile, LoweringNumbers, LoweringReport


def readme(target: Target, request: ExportRequest, report: LoweringReport) -> str:
    """The whole file."""
    abilities = target.methods[request.method].abilities
    profile = request.profile
    parts = [
        f"# {profile.name} for {target.title} {request.version}",
        f"Made by `sage_tune export` from profile `{profile.name}`, digest `{report.profile_digest[:12]}`. "
        f"The engine is told `{request.lowered.label()}` (depth, width, nodes without the root), digest "
        f"`{report.lowered_digest[:12]}`. What it can be told: {shape_in_words(abilities)}.",
    ]
    if not request.drafts:
        parts.append(
            "**No speculation.** Nothing that this engine can run is faster than plain decoding by this profile's "
            "costs, so it starts without a draft."
        )
    parts += ["## Start", target.start(request).rstrip(), "## What it costs", cost_text(report)]
    parts += ["## What is lost", _lost_table(report), "## Know before you serve"]
    parts.append("\n".join(f"- {note}." for note in report.notes))
    parts += ["## Is it applied?", _check_text(target)]
    return "\n\n".join(parts) + "\n"


def cost_text(report: LoweringReport) -> str:
    """Replayed speed of the full policy and of what the engine runs, in sentences."""
    if report.numbers is not None:
        return "\n".join(_replayed_lines(report.numbers))
    if report.from_profile is not None:
        return "\n".join(_profile_lines(report.from_profile))
    return (
        "Unknown: the export was made without the record, and the profile's table has no fixed tier that this engine "
        "can run. The shape is the policy with everything left out that the engine cannot express. `sage_tune export "
        "... --run RUN` searches the best one and says what it costs."
    )


def loss_text(numbers: LoweringNumbers) -> str:
    """The loss as a share of speed; a gain where it is one."""
    loss = numbers.loss
    low, middle, high = (100 * value for value in (loss.low, loss.median, loss.high))
    if middle < 0:
        return f"gains {-middle:.1f} % [{-high:.1f}, {-low:.1f}] over the full policy"
    return f"loses {middle:.1f} % [{low:.1f}, {high:.1f}] of the full policy's speed"


def _replayed_lines(numbers: LoweringNumbers) -> list[str]:
    lines = [
        "| policy | shape | acceptance length | speedup over plain decoding |",
        "|---|---|---|---|",
    ]
    for name, row in (
        ("full", numbers.full),
        ("this export", numbers.lowered),
        ("without a search", numbers.truncated),
    ):
        lines.append(f"| {name} | {row.label} | {row.acceptance_length.text()} | {row.speedup.text()} |")
    prompts = numbers.loss.prompts
    lines += [
        "",
        f"The export {loss_text(numbers)}, replayed on {prompts} report prompts that took no part in the choice among "
        f"{numbers.tried} shapes. Intervals are 95 % over prompts; acceptance length includes the bonus token.",
    ]
    return lines


def _profile_lines(found: FromProfile) -> list[str]:
    interval = (
        ""
        if found.speedup_interval is None
        else f" [{found.speedup_interval.low:.2f}, {found.speedup_interval.high:.2f}]"
    )
    full = "" if found.full_speedup is None else f"; the full policy {found.full_speedup:.2f} on the same prompts"
    return [
        f"From the profile's own table, row `{found.row}`: speedup {found.speedup:.2f}{interval} over plain decoding, "
        f"acceptance length {found.acceptance_length:.2f} over {found.rounds} rounds{full}. These were replayed when "
        "the profile was made.",
        "",
        "The loss has no interval without the record: `sage_tune export ... --run RUN` replays both and searches among "
        "all shapes of the grid.",
    ]


def _lost_table(report: LoweringReport) -> str:
    if not report.lost:
        return "Nothing."
    rows = ["| field | value | why |", "|---|---|---|"]
    for part in report.lost:
        rows.append("| " + " | ".join(text.replace("|", "/") for text in (part.field, part.value, part.reason)) + " |")
    return "\n".join(rows)


def _check_text(target: Target) -> str:
    check = f"sage_tune verify-applied PROFILE %s --export . --engine {target.name}"
    if target.counts:
        how = f"With counters of the running engine in a file:\n\n{fenced(check % 'metrics.txt')}"
    else:
        counts = (
            f'{{"engine": "{target.name}", "num_drafts": 900, "num_draft_tokens": 3600, "num_accepted_tokens": 2700}}'
        )
        how = (
            "The engine publishes no counters; write down what it did (rounds, draft tokens, those accepted):\n\n"
            + fenced(f"echo '{counts}' > counts.json\n{check % 'counts.json'}")
        )
    return f"`{REPORT_NAME}` holds what acceptance to expect. {how}".rstrip()
