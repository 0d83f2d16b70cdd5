"""The TensorRT library, chosen by name at run time; exporter and backend, which may not import each other, need it."""

from __future__ import annotations

import importlib
from typing import Any

from profiles.engine_contract import EXTRAS, Builder
from profiles.errors import HardwareMissing


def load_tensorrt(builder: Builder) -> Any:
    """The library's module: `tensorrt` and `tensorrt_rtx` have one interface. Raises HardwareMissing when it is not
    installed or cannot be loaded."""
    try:
        return importlib.import_module(builder)
    except (ImportError, OSError) as error:
        raise HardwareMissing(
            f"{builder} is not installed (pip install 'sage_tune[{EXTRAS[builder]}]'): {error}"
        ) from error


def error_log(trt: Any) -> Any:
    """A logger for the library that keeps what it says of errors in `messages`, since its calls return None alone."""

    class ErrorLog(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.messages: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self.messages.append(message.strip())

        def last(self) -> str:
            return self.messages[-1] if self.messages else "the library gave no reason"

    return ErrorLog()
