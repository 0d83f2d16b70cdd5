"""The `demo` command: profile, tune, freeze and decode one picture, on the embedded pair and this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from profiles.config import TuneConfig
from profiles.policy_profile import PolicyProfile
from runtime.decode import generate
from runtime.pair import Pair
from runtime.records import Generation
from tuner.calibration import Sample
from tuner.machine import Device
from tuner.profiling import profile, samples_of
from tuner.progress import Progress
from tuner.run_folder import RunFolder
from tuner.scoreboard import document
from tuner.timing import Budget
from tuner.tuning import Tuned, tune

OVERRIDES: dict[str, Any] = {
    "data.prompts": 90,
    "grid.depth": 6,
    "grid.widths": [1, 2],
    "grid.verify_sizes": [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16],
    "grid.contexts": 2,
    "timing.samples": 15,
    "search.trials": 150,
    "search.max_bins": 4,
    "confirm.repeats": 1,
    "confirm.finalists": 1,
}
"""What keeps the demo within three minutes on two cores. `sage_tune profile` and `tune` use the full grid."""


@dataclass(frozen=True)
class Demo:
    tuned: Tuned
    example: Generation
    question: str
    picture: Image.Image | None

    def document(self, wall_s: float) -> dict[str, Any]:
        """The last line of `demo --json`."""
        return {**result_document(self.tuned), "wall_s": round(wall_s, 1)}


def result_document(tuned: Tuned) -> dict[str, Any]:
    """The numbers of a tuned profile that a script wants."""
    found: PolicyProfile = tuned.profile
    evidence = found.evidence
    return {
        "lossless": evidence.near_ties == 0 and evidence.lossless_tokens > 0,
        "tokens_compared": evidence.lossless_tokens,
        "near_ties": evidence.near_ties,
        "shipped": found.shipped,
        "shipped_policy": evidence.shipped_name,
        "policies": document(evidence.results),
        "speedup": {
            "median": evidence.speedup.median,
            "low": evidence.speedup.low,
            "high": evidence.speedup.high,
        },
        "request_speedup": evidence.request_speedup.median,
        "speedup_replayed": evidence.speedup_replayed,
        "prediction_error": evidence.prediction_error,
        "prediction_within_bound": abs(evidence.prediction_error) <= evidence.prediction_bound,
        "gain_over_static": {
            "median": evidence.gain_over_static.median,
            "low": evidence.gain_over_static.low,
            "high": evidence.gain_over_static.high,
        },
        "acceptance_length": evidence.acceptance_length,
        "rounds_equal_share": tuned.report.rounds_equal_share,
        "trials": tuned.trials,
        "profile": str(tuned.path),
        "digest": found.digest,
    }


def demo(
    pair: Pair,
    config: TuneConfig,
    device: Device,
    folder: Path,
    budget: Budget,
    progress: Progress,
    command: str,
) -> Demo:
    """Run the whole story. Raises what its steps raise; `folder` then holds what was done so far."""
    run = RunFolder(folder)
    profile(pair, config, device, run, budget, progress)
    tuned = tune(pair, config, run, budget, progress, command)
    sample = _example(samples_of(config, pair.spec))
    request = sample.request()
    generation = generate(
        pair,
        pair.encoder.encode(request),
        tuned.profile.policy,
        max_new_tokens=sample.max_new_tokens,
        sampling=config.sampling.for_sample(sample.id),
    )
    question = " ".join(
        part["text"] for part in request.messages[-1]["content"] if isinstance(part, dict) and "text" in part
    )
    return Demo(tuned, generation, question, request.images[0] if request.images else None)


def _example(samples: list[Sample]) -> Sample:
    """A picture to look at: the held-out image prompt with the longest answer allowed."""
    pictures = [s for s in samples if s.split == "report" and s.modality == "image"] or samples
    return max(pictures, key=lambda s: s.max_new_tokens)
