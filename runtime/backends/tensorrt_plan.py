"""Running a TensorRT plan: execution contexts over given buffers, and CUDA graphs of passes that come again.

A captured pass has an execution context of its own, as the library asks for; all contexts share one block of scratch
memory, since one pass runs at a time.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import torch

from profiles.engine_contract import PLAN_FILE, EngineRecord
from profiles.errors import HardwareMissing
from profiles.tensorrt_module import error_log, load_tensorrt


class PlanRunner:
    """A loaded plan on one device."""

    def __init__(self, record: EngineRecord, folder: Path, device: str) -> None:
        """Raises HardwareMissing without a CUDA device and its driver, without the library, on a device that the
        plan holds no code for, with another version of the library, and when the library refuses the plan."""
        built_for = ", ".join(record.compute_capabilities)
        if not device.startswith("cuda") or not torch.cuda.is_available():
            raise HardwareMissing(
                f"the plan in {folder} runs on a CUDA device ({built_for}), '{device}' was asked for and torch "
                + ("sees one" if torch.cuda.is_available() else "sees none: no GPU, no driver, or a CPU build of torch")
            )
        self.device = torch.device(device)
        record.check_architecture("sm_{}{}".format(*torch.cuda.get_device_capability(self.device)))
        trt = load_tensorrt(record.builder)
        record.check_version(trt.__version__)
        self._trt, self._log = trt, error_log(trt)
        self._runtime = trt.Runtime(self._log)
        self._engine = self._runtime.deserialize_cuda_engine((folder / PLAN_FILE).read_bytes())
        if self._engine is None:
            raise HardwareMissing(
                f"{record.builder} {trt.__version__} refuses the plan in {folder} (built for {built_for}): "
                f"{self._log.last()}"
            )
        self._stream: Any = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._scratch = torch.empty(
            max(int(self._engine.device_memory_size_v2), 256), dtype=torch.uint8, device=self.device
        )
        self._contexts: dict[Hashable, Any] = {}
        self._captured: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def run(self, profile: int, tensors: Mapping[str, torch.Tensor], key: Hashable | None) -> None:
        """One pass in place over contiguous tensors of this device, by input and output name. With a key the pass is
        captured as a CUDA graph when it first comes and replayed from then on: the same key must always mean the
        same buffers and shapes. What is asked of the device later comes after the pass.
        """
        stream, caller = self._stream, torch.cuda.current_stream(self.device)
        stream.wait_stream(caller)
        if key in self._captured:
            with torch.cuda.stream(stream):
                self._captured[key].replay()
        else:
            context = self._context(profile, key)
            for name, tensor in tensors.items():
                if self._engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT:
                    context.set_input_shape(name, tuple(tensor.shape))
                context.set_tensor_address(name, tensor.data_ptr())
            self._enqueue(context)
            if key is not None:
                # what a first pass compiles and allocates cannot be captured, so the pass has run once by now
                stream.synchronize()
                self._captured[key] = graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=stream):
                    self._enqueue(context)
        caller.wait_stream(stream)

    def synchronize(self) -> None:
        """Return when the device has done all that it was asked for."""
        torch.cuda.synchronize(self.device)

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._stream.cuda_stream):
            raise HardwareMissing(f"the engine could not run a pass: {self._log.last()}")

    def _context(self, profile: int, key: Hashable | None) -> Any:
        place = ("prompt", profile) if key is None else key
        if place not in self._contexts:
            context = self._engine.create_execution_context(self._trt.ExecutionContextAllocationStrategy.USER_MANAGED)
            context.set_optimization_profile_async(profile, self._stream.cuda_stream)
            context.set_device_memory(self._scratch.data_ptr(), self._scratch.nbytes)
            self._stream.synchronize()
            self._contexts[place] = context
        return self._contexts[place]
