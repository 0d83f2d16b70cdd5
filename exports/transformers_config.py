"""transformers: settings of assisted generation, and a helper that puts them on the draft. Read and run with 5.24.0.

The settings live in the *draft's* generation configuration. `assistant_confidence_threshold` ends a draft after the
first token whose own probability is below it; that token is kept. `num_assistant_tokens_schedule` must be `constant`,
or the length moves by itself. Where scikit-learn is installed transformers moves the threshold as well, so the helper
tells it that it is not. And it lets the draft read the pictures: transformers gives an assistant tokens alone.
"""

from __future__ import annotations

import json
from typing import Any, Final

from exports.request import ExportRequest, Method, fenced, pretty
from profiles.lowering import Abilities

VERSIONS: Final = ("5.24.0",)
METHODS: Final = {"draft_model": Method(Abilities(room="chain", confidence="capped", batches="one"))}
CONFIG, HELPER = "assistant_generation_config.json", "assisted.py"


def document(request: ExportRequest) -> dict[str, Any]:
    """Fields for the draft's generation configuration; empty without speculation."""
    if not request.drafts:
        return {}
    return {
        "num_assistant_tokens": request.length,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": request.lowered.confidence,
    }


HELPER_CODE = '''\
# {stamp}
"""Assisted generation as this export says: `model.generate(**inputs, assistant_model=prepared(draft, inputs))`."""

import json
from pathlib import Path

import torch
from transformers.cache_utils import DynamicCache
from transformers.generation import candidate_generator

SETTINGS = Path(__file__).with_name("{config}")


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
            before = {{k: v[:, :-1] if v.shape[:2] == (1, length) else v for k, v in inputs.items()}}
            with torch.no_grad():
                draft(**before, cache=kwargs["cache"], use_cache=True)
        return original(draft, *args, **kwargs)

    return generate
'''


def files(request: ExportRequest) -> dict[str, str]:
    helper = HELPER_CODE.format(stamp=request.stamp(), config=CONFIG)
    return {CONFIG: pretty(document(request)), HELPER: helper}


def start(request: ExportRequest) -> str:
    code = f"""from transformers import AutoModelForImageTextToText
from assisted import prepared

target = AutoModelForImageTextToText.from_pretrained({json.dumps(request.target)})
draft = AutoModelForImageTextToText.from_pretrained({json.dumps(request.draft)})
output = target.generate(**inputs, assistant_model=prepared(draft, inputs), do_sample=False, max_new_tokens=256)"""
    return (
        "With this folder on the Python path:\n\n"
        + fenced(code, "python")
        + "\nUse `AutoModelForCausalLM` for text-only pairs. Assisted generation takes one request at a time.\n"
    )


def notes(request: ExportRequest) -> tuple[str, ...]:
    return (
        "run by the tests of sage_tune on the embedded pair, pictures included: tokens equal plain generation, rounds "
        "equal the replay",
        "assisted.py matters for pictures: by itself this release gives the draft placeholders instead of them, and "
        "acceptance falls",
        "transformers drafts before the prompt is read, so its first round has no prefill of its own; replay counts "
        "rounds from the first token on",
    )
