"""How a token is chosen from logits: greedily, or by sampling with a seed. Temperature 0 is greedy decoding.

The order is that of transformers: repetition penalty, temperature, top-k, top-p. What is left is perturbed by noise
(`runtime.noise`) and the best token wins, so sampling is greedy decoding on perturbed logits.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Self

from pydantic import Field, model_validator

from profiles.frozen import Frozen

MAX_SEED = (1 << 63) - 1


class SamplingRegime(Frozen):
    """Everything but the seed: what a profile is tuned for."""

    temperature: Annotated[
        float, Field(ge=0, le=100, allow_inf_nan=False, description="0 is greedy decoding, without noise")
    ] = 0.0
    top_k: Annotated[int, Field(ge=0, description="keep the k most probable tokens; 0 keeps all")] = 0
    top_p: Annotated[
        float, Field(gt=0, le=1, description="keep the fewest tokens whose probability reaches p; 1 keeps all")
    ] = 1.0
    repetition_penalty: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False, description="divides the odds of tokens seen before; unset takes the pair's"),
    ] = None
    draft_lambda: Annotated[
        float,
        Field(gt=0, allow_inf_nan=False, description="the draft scores its tokens by softmax((log q + noise)/lambda)"),
    ] = 1.0

    @model_validator(mode="after")
    def _greedy_takes_no_filters(self) -> Self:
        if not self.sampled:
            for name in ("top_k", "top_p", "draft_lambda"):
                if getattr(self, name) != SamplingRegime.model_fields[name].default:
                    raise ValueError(
                        f"{name} needs temperature > 0, got {name} = {getattr(self, name)} at temperature 0"
                    )
        return self

    @property
    def sampled(self) -> bool:
        return self.temperature > 0

    @property
    def logit_scale(self) -> float:
        """Logits that a difference of one in a score stands for: scores are (logits / temperature) / lambda."""
        return self.temperature * self.draft_lambda if self.sampled else 1.0

    def label(self) -> str:
        """Short form for people: `greedy`, `temperature 0.7, top-p 0.9`."""
        parts = [f"temperature {self.temperature:g}" if self.sampled else "greedy"]
        parts += [f"top-k {self.top_k}"] if self.top_k else []
        parts += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        parts += (
            [f"repetition penalty {self.repetition_penalty:g}"] if self.repetition_penalty not in (None, 1.0) else []
        )
        return ", ".join(parts)


class Sampling(SamplingRegime):
    """How tokens are chosen, and the seed of the noise."""

    seed: Annotated[
        int, Field(ge=0, le=MAX_SEED, description="seed of the noise; without effect on greedy decoding")
    ] = 0

    def for_sample(self, sample_id: str) -> Sampling:
        """The same with a seed of the sample's own, so that samples of one run do not share their noise: the first
        63 bits of SHA-256 over `SEED:ID`."""
        word = hashlib.sha256(f"{self.seed}:{sample_id}".encode()).digest()[:8]
        return self.model_copy(update={"seed": int.from_bytes(word, "big") >> 1})

    def regime(self) -> SamplingRegime:
        return SamplingRegime(**self.model_dump(exclude={"seed"}))


GREEDY = Sampling()
AS_MADE = Sampling(repetition_penalty=1.0)
"""Greedy decoding of the logits as the model made them: what records without a word on sampling hold."""
