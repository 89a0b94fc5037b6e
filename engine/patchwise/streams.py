"""Moving data and waiting for it, so that neither the host nor a CUDA device stands still."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np


def pinned(array: np.ndarray) -> torch.Tensor:
    """A copy of an array in memory of the host that CUDA devices read by themselves."""
    host = torch.from_numpy(array)
    return torch.empty(host.shape, dtype=host.dtype, pin_memory=True).copy_(host)


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """A small array on the device; the host does not wait until the device is free to take it."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor on the host; from CUDA, it is there once the stream has come so far."""
    if not tensor.is_cuda:
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def event(device: torch.device) -> torch.cuda.Event | None:
    """When all is done that the device was given in this thread's stream; None for a CPU: now."""
    if device.type != "cuda":
        return None
    reached = torch.cuda.Event()
    reached.record(torch.cuda.current_stream(device))
    return reached


@contextlib.contextmanager
def aside(given: torch.Tensor, ready: torch.cuda.Event | None) -> Iterator[None]:
    """Within the block, a CUDA device works in a second stream, which goes first.

    Args:
        given: What the work is about.
        ready: From when on it is there; None on a CPU.
    """
    if ready is None:
        yield
        return
    stream = _stream(given.device)
    stream.wait_event(ready)
    given.record_stream(stream)  # else its memory is another's as soon as we let go of it
    with torch.cuda.stream(stream):
        yield


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)
