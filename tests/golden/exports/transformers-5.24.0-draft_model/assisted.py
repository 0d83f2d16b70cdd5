# sage_tune profile tiny-llava-ov-cpu 0123456789ab, lowered 970df6764f24 (4,1,4, confidence 0.4)
"""Assisted generation as this export says: `model.generate(**inputs, assistant_model=prepared(draft))`."""

import json
from pathlib import Path

from transformers.generation import candidate_generator

SETTINGS = Path(__file__).with_name("assistant_generation_config.json")


def prepared(draft):
    """The draft with the exported settings; returns None where no speculation is faster."""
    settings = json.loads(SETTINGS.read_text())
    if not settings:
        return None
    # with scikit-learn at hand transformers would move the threshold after every round
    candidate_generator.is_sklearn_available = lambda: False
    draft.generation_config.update(**settings)
    return draft
