"""From a file or a folder to a report: what is there is shown, and what is not says why."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.errors import EnvelopeError, ProfileError
from profiles.policy_profile import PolicyProfile
from profiles.store import PROFILE_SUFFIX, load_profile
from tuner.outcomes import Record
from tuner.replay import Replay
from tuner.report import evidence, measured, replayed
from tuner.report.policy import policy_map
from tuner.report.view import Report, Section
from tuner.run_folder import RunFolder
from tuner.trace_store import load_record

NOT_TUNED = "this run has no profile yet, `sage_tune tune` freezes one"
NO_RECORD = "the record is needed; make the report of the run folder that the profile came from"


@dataclass(frozen=True)
class Subject:
    """What a report is about: a profile, a run folder, or both."""

    run: RunFolder | None
    profile: PolicyProfile | None
    record: Record | None


def open_subject(path: Path) -> Subject:
    """A profile file, or a run folder with the profile that `tune` left in it.

    Raises ProfileError for neither, and for a folder that holds several profiles.
    """
    if not path.is_dir():
        return Subject(None, load_profile(path), None)
    run = RunFolder(path)
    run.config()
    found = sorted(path.glob(f"*{PROFILE_SUFFIX}"))
    if len(found) > 1:
        raise ProfileError(f"{path} holds {len(found)} profiles ({', '.join(p.name for p in found)}); give one of them")
    return Subject(run, load_profile(found[0]) if found else None, load_record(run.trace))


def build_report(subject: Subject, command_line: str) -> Report:
    """Every section of the page. Raises ProfileError when a run has no costs or curves yet."""
    run, profile = subject.run, subject.profile
    if profile is not None:
        table, curves = profile.evidence.cost_table, profile.evidence.curves
        fields = profile.fingerprint
        pair = profile.pair.name
    elif run is not None:
        table, curves, fields, pair = run.costs(), run.curves(), run.fingerprint(), run.pair().name
    else:
        raise ProfileError("a report needs a profile or a run folder")
    device = fields.cpu if fields.device == "cpu" else fields.device
    both = [measured.signals(curves), measured.costs(table)]
    if profile is None:
        sections = [
            Section("summary", "What ships", missing=NOT_TUNED),
            *both,
            Section("policy", "The policy", missing=NOT_TUNED),
            Section("yardsticks", "Yardsticks", missing=NOT_TUNED),
            Section("prediction", "Predicted and measured", missing=NOT_TUNED),
            Section("example", "One output, round by round", missing=NOT_TUNED),
            Section("sensitivity", "Sensitivity of the optimum", missing=NOT_TUNED),
            evidence.untuned_provenance(_run_rows(subject), command_line),
        ]
    else:
        sections = [
            evidence.summary(profile),
            *both,
            policy_map(profile.policy),
            evidence.yardsticks(profile),
            evidence.prediction(profile),
            *_replayed(profile, subject.record),
            evidence.provenance(profile, command_line),
        ]
    name = profile.name if profile is not None else pair
    return Report(
        title=f"sage_tune report: {name}",
        subtitle=f"{pair} on {device}, {fields.threads} threads, {fields.backend} {fields.dtype}",
        sections=tuple(sections),
    )


def _replayed(profile: PolicyProfile, record: Record | None) -> list[Section]:
    """The example and the neighbours by replay; without a record, what the final table says instead."""
    titles = {"example": "One output, round by round", "sensitivity": "Sensitivity of the optimum"}
    if record is None:
        return [Section("example", titles["example"], missing=NO_RECORD), evidence.rivals(profile)]
    replay = Replay(record, profile.evidence.cost_table)
    samples = record.split_samples("report")
    try:
        return [
            replayed.example(profile.policy, replay, samples),
            replayed.sensitivity(profile.source, profile.policy, replay, samples),
        ]
    except EnvelopeError as error:
        return [Section(key, title, missing=str(error)) for key, title in titles.items()]


def _run_rows(subject: Subject) -> list[tuple[str, str]]:
    if subject.run is None or subject.record is None:
        return []
    record = subject.record
    return [
        ("run", subject.run.path.name),
        ("pair", record.manifest.pair_digest),
        ("data", record.manifest.data_digest),
        ("prompts on record", str(len(record.samples))),
        ("positions on record", str(record.positions)),
    ]
