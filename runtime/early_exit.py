"""Early exit: a draft that is the first layers of the target with the target's own final norm and head.

Under torch it shares the target's weights in memory and has a cache of its own; an engine that runs step graphs is
given a graph with that many layers.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from profiles.errors import BadInput
from runtime.backends import load_model
from runtime.backends.base import Model, ModelFiles

if TYPE_CHECKING:
    from torch import nn


def open_early_exit(target: Model, files: ModelFiles, layers: int) -> Model:
    """The draft of a loaded target; `files` are the target's, with the early exit's own graph folder if it has one.

    Raises BadInput when no layer is left out.
    """
    if target.backend != "torch":
        return load_model(target.backend, files)
    from runtime.backends.torch_backend import TorchModel

    if not isinstance(target, TorchModel):
        raise TypeError(f"a torch target must be a TorchModel, got {type(target).__name__}")
    return TorchModel(files, first_layers(target.model, layers))


def first_layers(model: Any, layers: int) -> Any:
    """A transformers model of the same class with the first decoder layers of `model`, on the same weights: no tensor
    is copied. Raises BadInput when no layer is left out."""
    import torch

    config = shortened(model.config, layers)
    with torch.device("meta"):
        shorter = type(model)(config)
    weights = model.state_dict()
    shorter.load_state_dict({name: weights[name] for name in shorter.state_dict()}, assign=True)
    # buffers that are not saved, such as the rotary frequencies
    whole = dict(model.named_modules())
    for place, module in shorter.named_modules():
        _share_buffers(module, whole[place])
    return shorter.eval()


def _share_buffers(module: nn.Module, whole: nn.Module) -> None:
    for name, _ in module.named_buffers(recurse=False):
        setattr(module, name, getattr(whole, name))


def shortened(config: Any, layers: int) -> Any:
    """A copy of a transformers configuration whose text side has fewer layers; lists with an entry per layer are cut.

    Raises BadInput when no layer is left out.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    whole = text.num_hidden_layers
    if not 1 <= layers < whole:
        raise BadInput(f"early exit layers < layers of the target must hold, got {layers} of {whole}")
    for name, value in list(vars(text).items()):
        if isinstance(value, list) and len(value) == whole:
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    return config
