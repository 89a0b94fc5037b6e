"""Out-of-memory errors of the GPU: telling them from others, and letting go of what they hold.

Classes are known by name and module: nothing here imports torch or cupy, which cost seconds and
may not be installed.
"""

from __future__ import annotations

import gc
import logging
import re
import sys
from typing import TYPE_CHECKING

from cytopave.engine.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_log = logging.getLogger(__name__)

# torch.OutOfMemoryError, cupy.cuda.memory.OutOfMemoryError, and our own
_LIBRARIES = frozenset({"torch", "cupy", "cytopave"})
# and tensorflow.errors.ResourceExhaustedError, which is about the GPU where it names an allocator
_EXHAUSTED = re.compile(r"GPU_\d+_bfc|device:GPU|/gpu:\d")

# What CUDA's libraries say when an allocation fails. torch, cupy and numba raise them as
# RuntimeErrors; rmm (and so cuML) raises C++'s bad_alloc, which Cython makes a MemoryError.
_ALLOCATION_FAILED = re.compile(
    r"CUDA (error: )?out of memory"
    r"|cudaErrorMemoryAllocation"
    r"|CUDA_ERROR_OUT_OF_MEMORY"
    r"|(CUDNN|CUBLAS|CUSOLVER|CUSPARSE)_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    r"|CUFFT_ALLOC_FAILED"
    r"|out_of_memory: (CUDA|RMM)"
)

# torch goes on with what is its own business of the memory, and with advice on settings.
_ASIDE = re.compile(r"\.\s+(Of the allocated memory|If reserved but unallocated|See documentation)")

_at_release: list[Callable[[], None]] = []


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU's memory did not suffice, here or in what led to this exception.

    The host's memory is another matter: a plain ``MemoryError`` is not one.
    """
    return any(_names_it(e) for e in _chain(error))


def at_release(callback: Callable[[], None]) -> None:
    """Have ``release_gpu_memory`` call this first: for whoever keeps a model between tiles."""
    _at_release.append(callback)


def release_gpu_memory() -> None:
    """Give back what this process keeps on the GPU without using it.

    Collects garbage, then empties the caches of torch and of cupy where they are loaded. Safe
    without a GPU.
    """
    for callback in _at_release:
        callback()
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None:
        torch.cuda.empty_cache()
    if (cupy := sys.modules.get("cupy")) is not None:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()


def attempt[T](function: Callable[[], T]) -> T:
    """Call, and turn any of the GPU's out-of-memory errors into ours, with the memory given back.

    An exception keeps the frames that it passed, and they keep their arrays: as long as anyone
    holds the original (Prefect does, through the whole wait before a retry), so is the memory.
    Ours is raised after the original is gone and does not refer to it.

    Args:
        function: What to call. What it returns is returned.

    Raises:
        OutOfMemoryError: The GPU's memory did not suffice; other errors pass unchanged.
    """
    try:
        return function()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        message = _in_short(error)
    del function  # our own frame travels with the error too, and closures hold arrays
    release_gpu_memory()
    _log.debug("The GPU ran out of memory: %s", message)  # whoever tries again says so
    raise OutOfMemoryError(message) from None


def _names_it(error: BaseException) -> bool:
    for base in type(error).__mro__:
        if base.__name__ == "OutOfMemoryError" and base.__module__.partition(".")[0] in _LIBRARIES:
            return True
        if base.__name__ == "ResourceExhaustedError" and base.__module__.startswith("tensorflow"):
            return bool(_EXHAUSTED.search(str(error)))
    return isinstance(error, RuntimeError | MemoryError) and bool(
        _ALLOCATION_FAILED.search(str(error))
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from, as a traceback would show them."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        pending.append(current.__cause__)
        if not current.__suppress_context__:
            pending.append(current.__context__)
        if isinstance(current, BaseExceptionGroup):
            pending.extend(current.exceptions)


def _in_short(error: BaseException) -> str:
    """What to tell people: who holds how much, of the exception that names the shortage."""
    culprit = next(e for e in _chain(error) if _names_it(e))
    first_line = str(culprit).strip().partition("\n")[0]
    return _ASIDE.split(first_line)[0] or type(culprit).__name__
