# sage_tune profile tiny-llava-ov-cpu 0123456789ab, lowered 970df6764f24 (4,1,4, confidence 0.4)
"""Assisted generation as this export says: `model.generate(**inputs, assistant_model=prepared(draft, inputs))`."""

import json
from pathlib import Path

import torch
from transformers.cache_utils import DynamicCache
from transformers.generation import candidate_generator

SETTINGS = Path(__file__).with_name("assistant_generation_config.json")


def prepared(draft, inputs):
    """The draft with the exported settings, for one request; None where no speculation is faster."""
    settings = json.loads(SETTINGS.read_text())
    if not settings:
        return None
    # with scikit-learn at hand transformers would move the threshold after every round
    candidate_generator.is_sklearn_available = lambda: False
    draft.generation_config.update(**settings)
    draft.generate = with_pictures(draft, inputs)
    return draft


def with_pictures(draft, inputs):
    """`draft.generate`, after the draft has read the prompt with its pictures. By itself transformers gives an
    assistant the tokens alone, so that it would see placeholders where the pictures are."""
    original, length = type(draft).generate, inputs["input_ids"].shape[1]

    def generate(*args, **kwargs):
        if kwargs.get("cache") is None:
            kwargs["cache"] = DynamicCache(config=draft.config)
            before = {k: v[:, :-1] if v.shape[:2] == (1, length) else v for k, v in inputs.items()}
            with torch.no_grad():
                draft(**before, cache=kwargs["cache"], use_cache=True)
        return original(draft, *args, **kwargs)

    return generate
