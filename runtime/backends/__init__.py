"""Inference engines behind one abstract class (`base`). Each lives in one file and is imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from profiles.errors import BadInput

if TYPE_CHECKING:
    from runtime.backends.base import Model, ModelFiles

BACKENDS = ("onnx", "tensorrt", "torch")


def load_model(backend: str, files: ModelFiles) -> Model:
    """Load one model of a pair on a backend. Raises BadInput for a backend that does not exist."""
    if backend == "onnx":
        from runtime.backends.onnx_backend import OnnxModel

        return OnnxModel(files)
    if backend == "tensorrt":
        from runtime.backends.tensorrt_backend import TensorrtModel

        return TensorrtModel(files)
    if backend == "torch":
        from runtime.backends.torch_backend import TorchModel

        return TorchModel(files)
    raise BadInput(f"backend must be one of {', '.join(BACKENDS)}, got '{backend}'")
