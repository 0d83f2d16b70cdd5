"""What a loaded pair is examined with: a few prompts per modality, and what both ways of decoding make of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image, ImageDraw

from profiles.config import TuneConfig
from profiles.families import Modality
from profiles.policy import CompiledPolicy, PolicySource, Tier
from profiles.sampling import GREEDY, Sampling
from runtime.decode import generate, plain_policy
from runtime.model_side import ModelSide
from runtime.pair import Pair
from runtime.policy.compile import compile_policy
from runtime.policy.tree import IntArray
from runtime.prompts import Prompt, Request
from runtime.records import Generation
from tuner.calibration import Sample
from tuner.profiling import samples_of

PROBES_PER_MODALITY = 3
PROBE_TOKENS = 48
"""New tokens of a probe: enough rounds to tell an inert draft, few enough for a minute."""
FRAMES = 4
QUESTIONS = (
    "Describe everything that you see, in full sentences.",
    "List the objects and their colors.",
    "What stands out, and why?",
)
TEXT_QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "Write a short story about a lighthouse keeper.",
    "List the days of the week, each with one thing to do on it.",
)


@dataclass(frozen=True)
class Probe:
    """One prompt, and what is decoded from it."""

    id: str
    prompt: Prompt
    max_new_tokens: int


@dataclass
class Subject:
    """A loaded pair with its probes. Both decodings of a probe are made once, when a check first asks."""

    pair: Pair
    probes: tuple[Probe, ...]
    reserved_ids: frozenset[int]
    """Ids that are no text, so that a random continuation stays one of text."""
    regime: Sampling = GREEDY
    """How the probes are decoded, each with a seed of its own."""

    def __post_init__(self) -> None:
        self._drafted: dict[str, Generation] = {}
        self._plain: dict[str, Generation] = {}

    @cached_property
    def policy(self) -> CompiledPolicy:
        """A small tree: two branches to depth 4, nine rows with the root."""
        return compile_policy(PolicySource(name="doctor", tiers=(Tier(depth=4, width=2, nodes=8),)), (1, 9), 1 << 30)

    @cached_property
    def text_ids(self) -> IntArray:
        return np.array(sorted(set(range(self.pair.draft.token_limit)) - self.reserved_ids), dtype=np.int64)

    @property
    def main(self) -> Probe:
        """The probe of the checks that need only one: with pictures, where the pair reads any."""
        return next((probe for probe in self.probes if probe.prompt.modality != "text"), self.probes[0])

    def of(self, modality: Modality) -> list[Probe]:
        return [probe for probe in self.probes if probe.prompt.modality == modality]

    def sampling(self, probe: Probe) -> Sampling:
        return self.regime.for_sample(probe.id)

    def modalities(self) -> list[Modality]:
        return list(dict.fromkeys(probe.prompt.modality for probe in self.probes))

    def drafted(self, probe: Probe) -> Generation:
        """The probe decoded with a tree in every round."""
        if probe.id not in self._drafted:
            self._drafted[probe.id] = generate(
                self.pair,
                probe.prompt,
                self.policy,
                max_new_tokens=probe.max_new_tokens,
                sampling=self.sampling(probe),
            )
        return self._drafted[probe.id]

    def plain(self, probe: Probe) -> Generation:
        if probe.id not in self._plain:
            self._plain[probe.id] = generate(
                self.pair,
                probe.prompt,
                plain_policy(),
                max_new_tokens=probe.max_new_tokens,
                sampling=self.sampling(probe),
            )
        return self._plain[probe.id]


def subject_of(pair: Pair, config: TuneConfig, target: ModelSide) -> Subject:
    """Probes from the calibration set, where there is one, else from questions of our own about a drawn picture.

    Raises BadInput when the set cannot be read.
    """
    spec = pair.spec
    given = config.data.path or spec.calibration_path()
    samples = samples_of(config, spec) if given else []
    probes: list[Probe] = []
    for modality in spec.modalities:
        asked = _longest(samples, modality) or _own(modality)
        probes += [Probe(name, pair.encoder.encode(request), limit) for name, request, limit in asked]
    return Subject(pair, tuple(probes), target.reserved_ids(), config.sampling)


def _longest(samples: list[Sample], modality: Modality) -> list[tuple[str, Request, int]]:
    """Samples with the longest outputs: they hold most rounds."""
    mine = sorted((s for s in samples if s.modality == modality), key=lambda s: -s.max_new_tokens)
    return [(s.id, s.request(), min(s.max_new_tokens, PROBE_TOKENS)) for s in mine[:PROBES_PER_MODALITY]]


def _own(modality: Modality) -> list[tuple[str, Request, int]]:
    questions = TEXT_QUESTIONS if modality == "text" else QUESTIONS
    asked = []
    for i, question in enumerate(questions):
        content: list[dict[str, str]] = [] if modality == "text" else [{"type": modality}]
        content.append({"type": "text", "text": question})
        request = Request(
            [{"role": "user", "content": content}],
            images=[drawn(0)] if modality == "image" else [],
            videos=[[drawn(step) for step in range(FRAMES)]] if modality == "video" else [],
        )
        asked.append((f"own {modality} prompt {i + 1}", request, PROBE_TOKENS))
    return asked


def drawn(step: int) -> Image.Image:
    """A picture of three shapes; the circle moves with `step`."""
    image = Image.new("RGB", (336, 336), "lightgray")
    draw = ImageDraw.Draw(image)
    draw.rectangle((24, 40, 120, 136), fill="blue")
    draw.polygon([(230, 40), (310, 140), (150, 140)], fill="darkgreen")
    draw.ellipse((40 + 40 * step, 200, 140 + 40 * step, 300), fill="red")
    return image
