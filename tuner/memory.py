"""Out of memory: every engine says it in its own way, here it has one name."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from profiles.errors import OutOfMemory

MESSAGES = ("out of memory", "failed to allocate memory", "can't allocate memory", "bad allocation", "bad_alloc")
"""What torch (CUDA and CPU), ONNX Runtime's arena and the C++ library write when an allocation fails."""


@contextmanager
def memory_errors(what: str) -> Iterator[None]:
    """Raise OutOfMemory for whatever an engine raises inside when memory runs out; other errors pass unchanged."""
    try:
        yield
    except OutOfMemory:
        raise
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"{what} ran out of memory: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from error


def is_out_of_memory(error: Exception) -> bool:
    """True for MemoryError (numpy's is one), torch.OutOfMemoryError, and the plain errors that only their message
    tells apart. Engines are not imported for this: torch's class is known by its name."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    engine = type(error).__module__.startswith(("onnxruntime", "torch")) or isinstance(error, RuntimeError)
    return engine and any(message in str(error).lower() for message in MESSAGES)


def release() -> None:
    """Give back what a failed pass still holds, so that the next one starts from a clean device."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
