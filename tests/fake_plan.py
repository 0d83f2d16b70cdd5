"""Stands for a TensorRT plan where no GPU is: the same padded passes, run by ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch

from profiles.engine_contract import EngineRecord
from profiles.graph_contract import GRAPH_FILE


class OnnxPlan:
    """Takes what `PlanRunner` takes, and holds the caller to what a plan and its CUDA graphs would need."""

    graph_folder: Path
    """Set by the test: the step graph that the engine was built from."""

    def __init__(self, record: EngineRecord, _folder: Path, _device: str) -> None:
        self.device, self._record = torch.device("cpu"), record
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        self._session: Any = ort.InferenceSession(
            str(self.graph_folder / GRAPH_FILE), options, providers=["CPUExecutionProvider"]
        )
        self.captured: dict[Hashable, dict[str, tuple[int, torch.Size]]] = {}
        self.passes: list[int] = []

    def run(self, profile: int, tensors: Mapping[str, torch.Tensor], key: Hashable | None) -> None:
        graph, shape = self._record.graph, self._record.shapes[profile]
        assert list(tensors.keys() ^ {*graph.inputs, *graph.outputs}) == []
        for name, tensor in tensors.items():
            least, _, largest = shape.tensor_shapes(graph, name)
            sizes = zip(least, tensor.shape, largest, strict=True)
            assert all(a <= b <= c for a, b, c in sizes), f"{name} {list(tensor.shape)} is outside its profile"
            assert tensor.is_contiguous(), f"{name} cannot be bound by its address"
        assert (key is not None) == shape.is_step
        if key is not None:
            now = {name: (tensor.data_ptr(), tensor.shape) for name, tensor in tensors.items()}
            assert self.captured.setdefault(key, now) == now, f"{key} would replay over other buffers"
        self.passes.append(profile)
        results = self._session.run(graph.outputs, {name: tensors[name].numpy() for name in graph.inputs})
        for name, result in zip(graph.outputs, results, strict=True):
            tensors[name].copy_(torch.from_numpy(result))

    def synchronize(self) -> None:
        pass
