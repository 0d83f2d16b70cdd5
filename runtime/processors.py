"""What a model's own generation settings ask of its logits: applied, or refused by name; never passed over in silence.

Temperature, top-k and top-p are what this program is told (`profiles.sampling`), and the repetition penalty is applied
to every node along its own path. Nothing else can be done node by node yet.
"""

from __future__ import annotations

from typing import Any

from profiles.errors import BadInput

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "diversity_penalty": (0.0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1.0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "min_p": (0.0,),
    "no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "num_beams": (1,),
    "penalty_alpha": (0.0,),
    "remove_invalid_values": (False,),
    "sequence_bias": ({}, []),
    "stop_strings": ([],),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "top_h": (),
    "typical_p": (1.0,),
    "watermarking_config": (),
}
"""Settings of transformers' GenerationConfig that change which token is chosen, or where an output ends, and are not
applied here; with the values, besides None, that ask for nothing."""
PENALTY = "repetition_penalty"


def repetition_penalty(settings: dict[str, Any], without: tuple[str, ...], pair: str) -> float:
    """The penalty that generation settings ask for, 1 for none. `without` names settings to leave out knowingly.

    Raises BadInput for a setting that would be passed over, and for a name in `without` that is none.
    """
    unknown = sorted(set(without) - {PENALTY, *NEUTRAL})
    if unknown:
        raise BadInput(f"'{pair}' leaves out '{unknown[0]}'; `without` takes {', '.join(sorted({PENALTY, *NEUTRAL}))}")
    for name, neutral in NEUTRAL.items():
        value = settings.get(name)
        if value is not None and value not in neutral and name not in without:
            raise BadInput(
                f"the generation settings of '{pair}' ask for {name} = {value!r}, which cannot be applied node by "
                f'node; to decode without it, put without = ["{name}"] into a pair file'
            )
    asked = settings.get(PENALTY)
    return 1.0 if asked is None or PENALTY in without else float(asked)
