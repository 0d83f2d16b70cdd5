"""`sage_tune run`: decode one request with a frozen profile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from commands.lookup import found_for
from commands.opening import open_profile
from commands.options import Accept, Json, Library, Model, Trust, err, out, print_json
from profiles.admission import admit, outside_regime, sampling_notes, sampling_of
from profiles.errors import BadInput
from profiles.store import load_profile


def run(
    prompt: Annotated[str, typer.Option("--prompt", help="what to ask")],
    profile_path: Annotated[
        Path | None, typer.Option("--profile", help="policy profile (*.sage.json); without one, --model looks one up")
    ] = None,
    image: Annotated[list[Path] | None, typer.Option("--image", help="picture; may be repeated")] = None,
    video: Annotated[
        list[Path] | None, typer.Option("--video", help="frames: a folder, an animated picture, or repeated")
    ] = None,
    model: Model = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 256,
    temperature: Annotated[
        float | None, typer.Option("--temperature", help="0 is greedy; without flags as the profile was tuned")
    ] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="keep the k most probable tokens, 0 all")] = None,
    top_p: Annotated[
        float | None, typer.Option("--top-p", help="keep the fewest tokens whose probability reaches p")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option("--repetition-penalty")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="seed of sampling; the same gives the same tokens")] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="stop string; may be repeated")] = None,
    library: Library = None,
    accept: Accept = "tuned",
    trust: Trust = None,
    stats: Annotated[bool, typer.Option("--stats", help="rounds, acceptance, tiers, digest")] = False,
    guard: Annotated[
        bool, typer.Option("--guard", help="fall back to the safe tier while the policy does not pay")
    ] = False,
    counters: Annotated[
        Path | None, typer.Option("--counters", help="append this request's counters to a log (JSON lines)")
    ] = None,
    as_json: Json = False,
) -> None:
    """Decode one request with a frozen profile, streaming."""
    if profile_path is None:
        profile_path = _looked_up(model, library, accept)
    frozen = load_profile(profile_path)
    if trust:
        from tuner.signing import require_trusted

        require_trusted(frozen, trust)
    sampling = sampling_of(
        frozen, temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, seed=seed
    )
    from runtime.prompts import ask

    request = ask(prompt, image or [], video or [])
    from runtime.counters import append_line, line_of
    from runtime.decode import generate
    from runtime.policy.guard import guarded
    from tuner.machine import fingerprint
    from tuner.screens import stats_table

    pair, _, device = open_profile(frozen, model)
    notes = admit(frozen, pair.record, fingerprint(pair.target, device, pair.threads))
    notes += sampling_notes(frozen, sampling, pair.repetition_penalty)
    policy = frozen.policy
    if reasons := outside_regime(frozen, request.modality, sampling):
        notes += [f"{reason}; using the safe tier ({policy.tiers[policy.safe].label()})" for reason in reasons]
        policy = policy.model_copy(update={"context_max": 0})
    if guard:
        policy = guarded(policy, frozen.evidence.cost_table)
    for note in notes:
        err.print(f"note: {note}", style="yellow", highlight=False, soft_wrap=True)
    generation = generate(
        pair,
        pair.encoder.encode(request),
        policy,
        max_new_tokens=max_new_tokens,
        stop_strings=stop or (),
        on_text=lambda text: print(text, end="", flush=True),
        sampling=sampling,
    )
    print()
    if counters is not None:
        append_line(counters, line_of(generation, policy, frozen.digest, time.time()))
    if stats:
        out.print(stats_table(generation, policy, frozen.digest))
    if as_json:
        print_json({**generation.document(), "sampling": sampling.model_dump(), "digest": frozen.digest})


def _looked_up(model: str | None, library: list[Path] | None, accept: str) -> Path:
    """The library's profile for a pair on this machine, and a word on which it is."""
    if model is None:
        raise BadInput("give --profile, or --model to look one up in the library")
    found, least = found_for(model, None, None, library, accept)
    from tuner.library import require_accepted

    path = require_accepted(found, least)
    err.print(f"note: {found.text()}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    return path
