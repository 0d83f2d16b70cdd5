"""Lint of a calibration set: bad samples are named before hours are spent on them.

`lint_data` is the `lint` command. `require_sound` is its fast part, which `profile` runs before it records: the
lengths of prompts are left out there, since they take every picture through the processor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.config import TuneConfig
from profiles.errors import BadInput
from profiles.provenance import digest, file_digest
from profiles.registry import PairSpec
from runtime.model_side import ModelSide
from runtime.prompts import load_image, load_video
from tuner.calibration import Sample, chosen_samples, parse_rows
from tuner.findings import Finding, Report, Verdict, failed, passed, skipped, warned
from tuner.inputs import open_source

LANGUAGE_TOKENS = 128
"""Tokens from which on repetition tells language from noise."""
MOST_EFFECTIVE_TOKENS = 500
"""Language repeats itself: two tokens of a text are the same with a chance of about 1 in 100, whatever the tokenizer,
since few words make up most of it (measured on English prose and Python code: 1 in 50 to 170 over 2000 tokens). Uniform
tokens do so with 1 in the size of the vocabulary."""
LEAST_DIFFERENT_TOKENS = 16
"""A long text of fewer different tokens is one phrase over and over."""
UNREADABLE_SHARE = 0.02
"""Share of U+FFFD from which on a text is no text: decoded random tokens break characters apart."""
SAMPLE_CHECKS = ("pictures", "placeholders", "empty prompts")
"""Checks whose samples the recorder can skip one by one (`data.skip_bad`)."""


@dataclass(frozen=True)
class Reader:
    """What the checks know besides the samples."""

    config: TuneConfig
    spec: PairSpec
    tokenizer: Any


LintCheck = Callable[[Sequence[Sample], Reader], Verdict]


def check_pictures(samples: Sequence[Sample], reader: Reader) -> Verdict:
    """Every picture can be decoded."""
    bad = []
    for sample in samples:
        try:
            for name in sample.line.get("images", []):
                load_image(sample.folder / name)
            if sample.line.get("video"):
                load_video([sample.folder / name for name in sample.line["video"]])
        except BadInput as error:
            bad.append((sample.id, str(error)))
    return _named(bad, f"all pictures of {len(samples)} samples can be decoded")


def check_placeholders(samples: Sequence[Sample], reader: Reader) -> Verdict:
    """Messages have one place for every picture and video."""
    bad = [(s.id, problem) for s in samples if (problem := s.places_problem())]
    return _named(bad, "as many places in the messages as pictures")


def check_empty(samples: Sequence[Sample], reader: Reader) -> Verdict:
    bad = [(s.id, problem) for s in samples if (problem := s.empty_problem())]
    return _named(bad, "no prompt is empty")


def check_duplicates(samples: Sequence[Sample], reader: Reader) -> Verdict:
    """The same content under another id counts twice; in two splits it carries a choice over into the claim."""
    first: dict[str, Sample] = {}
    within: list[tuple[Sample, Sample]] = []
    across: list[tuple[Sample, Sample]] = []
    for sample in samples:
        twin = first.setdefault(_content(sample), sample)
        if twin is not sample:
            (within if twin.split == sample.split else across).append((sample, twin))
    if across:
        sample, twin = across[0]
        return failed(
            f"no sample may stand in two splits; {len(across)} do, first '{sample.id}' ({sample.split}), the same as "
            f"'{twin.id}' ({twin.split})",
            tuple(s.id for s, _ in across + within),
        )
    if within:
        sample, twin = within[0]
        return warned(
            f"{len(within)} samples repeat another one, first '{sample.id}', the same as '{twin.id}'",
            tuple(s.id for s, _ in within),
        )
    return passed(f"{len(samples)} samples, all different")


def check_modalities(samples: Sequence[Sample], reader: Reader) -> Verdict:
    """A pair is profiled on what it is meant for."""
    needed = {modality for modality in reader.spec.modalities if modality != "text"}
    counts = Counter(sample.modality for sample in samples)
    said = ", ".join(f"{count} {modality}" for modality, count in sorted(counts.items()))
    if needed and not needed & counts.keys():
        return failed(
            f"the set is text only, but '{reader.spec.name}' is profiled for {', '.join(sorted(needed))}; acceptance "
            "on text says nothing about pictures"
        )
    return passed(said)


def check_language(samples: Sequence[Sample], reader: Reader) -> Verdict:
    """Prompts are language: random tokens give an acceptance that no user will see. Every long prompt is judged alone
    and the different short ones together, by how often tokens repeat."""
    size = len(reader.tokenizer)
    bad, texts, pooled = [], {sample.text(): sample for sample in samples}, []
    for text, sample in texts.items():
        ids = list(reader.tokenizer(text, add_special_tokens=False)["input_ids"])
        reason = _not_language(text, ids, size)
        if reason:
            bad.append((sample.id, reason))
        else:
            pooled += ids
    if not bad and (reason := _random(pooled, size)):
        bad = [(sample.id, f"over all prompts, {reason}") for sample in texts.values()]
    verdict = _named(bad, f"{len(pooled)} tokens of different prompts repeat as language does")
    if verdict.status == "fail":
        how = "data.allow_synthetic = true takes them, and no number made from them holds for real prompts"
        taken = reader.config.data.allow_synthetic
        return Verdict("warn" if taken else "fail", f"prompts must be language; {verdict.text}; {how}", verdict.items)
    return verdict


def _not_language(text: str, ids: Sequence[int], vocabulary: int) -> str | None:
    """What gives a text away as noise, None for language and for too little to tell."""
    unreadable = text.count("\ufffd") / max(len(text), 1)
    if unreadable > UNREADABLE_SHARE:
        return f"{unreadable:.0%} of its characters are U+FFFD"
    if len(ids) >= LANGUAGE_TOKENS and len(set(ids)) < LEAST_DIFFERENT_TOKENS:
        return f"its {len(ids)} tokens are {len(set(ids))} over and over"
    return _random(ids, vocabulary)


def _random(ids: Sequence[int], vocabulary: int) -> str | None:
    """What gives tokens away as drawn at random. Short prompts are judged together by this alone: templated ones
    repeat few tokens and are language all the same."""
    effective, most = effective_tokens(ids), min(MOST_EFFECTIVE_TOKENS, vocabulary / 4)
    if len(ids) < LANGUAGE_TOKENS or effective <= most:
        return None
    return f"two tokens are the same with a chance of 1 in {effective:.3g}, in language of 1 in {most:.0f} or more"


def effective_tokens(ids: Sequence[int]) -> float:
    """Size of the vocabulary whose uniform draws would repeat as often: the inverse of Simpson's index,
    N (N - 1) / sum of n_i (n_i - 1) (Simpson 1949). Infinite when no token repeats."""
    repeats = sum(n * (n - 1) for n in Counter(ids).values())
    return len(ids) * (len(ids) - 1) / repeats if repeats else float("inf")


def check_lengths(samples: Sequence[Sample], reader: Reader, target: ModelSide, draft: ModelSide) -> Verdict:
    """Prompt, new tokens and tree depth fit the positions of both models."""
    limit, depth = min(target.max_positions, draft.max_positions), reader.config.grid.depth
    encoder, bad, longest = target.encoder(), [], 0
    for sample in samples:
        try:
            tokens = len(encoder.encode(sample.request()))
        except BadInput:
            continue  # named by the other checks
        longest = max(longest, tokens)
        needed = tokens + sample.max_new_tokens + depth
        if needed > limit:
            bad.append(
                (sample.id, f"{tokens} tokens + {sample.max_new_tokens} new + depth {depth} > {limit} positions")
            )
    return _named(bad, f"the longest prompt has {longest} tokens, within {limit} positions")


FAST_CHECKS: dict[str, LintCheck] = {
    "pictures": check_pictures,
    "placeholders": check_placeholders,
    "empty prompts": check_empty,
    "duplicates": check_duplicates,
    "modalities": check_modalities,
    "language": check_language,
}


def lint_data(data: str | Path, config: TuneConfig, spec: PairSpec, target: ModelSide, draft: ModelSide) -> Report:
    """Every row is parsed; what is in it is checked for the samples that a profile would use (`data.prompts`).

    Raises BadInput when the data cannot be opened at all.
    """
    source = open_source(str(data), config.data)
    samples, problems = parse_rows(source, config.data)
    found = [
        (
            failed(f"{len(problems)} rows are no samples, first {problems[0]}", tuple(problems))
            if problems
            else passed(f"{len(samples)} rows, all well formed")
        ).of("rows")
    ]
    try:
        samples = chosen_samples(source, samples, config.data)
    except BadInput as error:
        found += [failed(str(error)).of("splits"), skipped("too few samples").of("content")]
        return Report(source.name, tuple(found))
    found.append(passed(f"{len(samples)} of them make a profile, spread over all splits").of("splits"))
    reader = Reader(config, spec, target.tokenizer)
    found += [check(samples, reader).of(name) for name, check in FAST_CHECKS.items()]
    found.append(check_lengths(samples, reader, target, draft).of("lengths"))
    return Report(source.name, tuple(found))


def fast_findings(samples: Sequence[Sample], config: TuneConfig, spec: PairSpec, tokenizer: Any) -> list[Finding]:
    """What can be said of samples in seconds."""
    reader = Reader(config, spec, tokenizer)
    return [check(samples, reader).of(name) for name, check in FAST_CHECKS.items()]


def require_sound(samples: Sequence[Sample], config: TuneConfig, spec: PairSpec, tokenizer: Any) -> None:
    """Raises BadInput with every failed check; samples that `data.skip_bad` will skip one by one are left to it."""
    tolerated = SAMPLE_CHECKS if config.data.skip_bad else ()
    found = fast_findings(samples, config, spec, tokenizer)
    wrong = [f"{f.check}: {f.text}" for f in found if f.status == "fail" and f.check not in tolerated]
    if wrong:
        raise BadInput("; ".join(wrong))


def _content(sample: Sample) -> str:
    """Digest of what a model would read: the messages and the bytes of their pictures."""
    pictures = [file_digest(path) if path.is_file() else str(path) for path in sample.paths()]
    return digest([sample.messages(), pictures])


def _named(bad: Sequence[tuple[str, str]], fine: str) -> Verdict:
    """One sentence about all bad samples: how many, and what is wrong with the first."""
    if not bad:
        return passed(fine)
    first, reason = bad[0]
    count = f"{len(bad)} sample{'s' if len(bad) > 1 else ''}"
    return failed(f"{count}, first '{first}': {reason}", tuple(sample_id for sample_id, _ in bad))
