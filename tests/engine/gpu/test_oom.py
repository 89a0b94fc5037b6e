from __future__ import annotations

import functools
import gc
import pickle
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch

from cytopave.engine.errors import OutOfMemoryError
from cytopave.engine.gpu import oom
from cytopave.engine.gpu.oom import attempt, is_out_of_memory, release_gpu_memory

CupyOutOfMemoryError = type("OutOfMemoryError", (MemoryError,), {"__module__": "cupy.cuda.memory"})
NamesakeError = type("OutOfMemoryError", (Exception,), {"__module__": "database.pool"})

RMM = (
    "std::bad_alloc: out_of_memory: CUDA error at: /rmm/mr/device/cuda_memory_resource.hpp:60: "
    "cudaErrorMemoryAllocation out of memory"
)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        torch.cuda.OutOfMemoryError("anything"),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be ..."),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("cudaErrorMemoryAllocation: out of memory"),
        CupyOutOfMemoryError("Out of memory allocating 1,024 bytes (allocated so far: 0 bytes)."),
        MemoryError(RMM),
        MemoryError("std::bad_alloc: out_of_memory: RMM failure at: Maximum pool size exceeded"),
        RuntimeError(f"exception occurred! file=/cuml/dbscan.cu: {RMM}"),
        OutOfMemoryError("ours"),
    ],
    ids=lambda e: f"{type(e).__module__}.{type(e).__name__}-{str(e)[:20]}",
)
def test_errors_of_the_gpus_memory(error: Exception) -> None:
    assert is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"),
        MemoryError("std::bad_alloc"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        ValueError("the paper is titled: CUDA out of memory"),
        NamesakeError("the connection pool is out of memory"),
        KeyboardInterrupt(),
    ],
    ids=repr,
)
def test_other_errors(error: BaseException) -> None:
    assert not is_out_of_memory(error)


def test_the_whole_chain_counts() -> None:
    def wrapped(*, explicit: bool) -> Exception:
        try:
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            except RuntimeError as inner:
                if explicit:
                    raise ValueError("the network failed") from inner
                raise ValueError("the network failed")  # noqa: B904
        except ValueError as outer:
            return outer

    assert is_out_of_memory(wrapped(explicit=True))
    assert is_out_of_memory(wrapped(explicit=False))
    assert is_out_of_memory(ExceptionGroup("two", [KeyError(), wrapped(explicit=True)]))


def test_a_context_that_was_set_aside_does_not_count() -> None:
    error = ValueError("a fallback with a fault of its own")
    error.__context__ = torch.OutOfMemoryError("CUDA out of memory")
    error.__suppress_context__ = True
    assert not is_out_of_memory(error)


def test_a_chain_that_bites_its_tail() -> None:
    first, second = ValueError("1"), ValueError("2")
    first.__cause__, second.__cause__ = second, first
    assert not is_out_of_memory(first)


class Array:
    """Something that weak references can watch, as numpy arrays in frames would be."""


class TestAttempt:
    def test_passes_results_on(self) -> None:
        assert attempt(lambda: 42) == 42

    def test_passes_other_errors_on_unchanged(self) -> None:
        error = ValueError("no")

        def fail() -> None:
            raise error

        with pytest.raises(ValueError, match="no") as caught:
            attempt(fail)
        assert caught.value is error

    @pytest.mark.parametrize("kind", [torch.OutOfMemoryError, CupyOutOfMemoryError])
    def test_ours_keeps_nothing_of_the_failed_attempt(self, kind: type[Exception]) -> None:
        alive: dict[str, weakref.ref[Array]] = {}

        def segment(tile: Array) -> None:
            flows = Array()
            alive["flows"] = weakref.ref(flows)
            try:
                raise kind("CUDA out of memory. Tried to allocate 20.00 GiB\nmore advice")
            except kind as error:
                raise RuntimeError("the forward pass failed") from error

        tile = Array()
        alive["tile"] = weakref.ref(tile)
        call = functools.partial(segment, tile)
        del tile
        held: OutOfMemoryError | None = None
        try:
            attempt(call)
        except OutOfMemoryError as error:
            held = error
        del call
        gc.disable()  # what is alive now is alive by reference, not by a late collection
        try:
            assert held is not None
            assert {name: ref() for name, ref in alive.items()} == {"flows": None, "tile": None}
        finally:
            gc.enable()
        assert (held.__cause__, held.__context__) == (None, None)
        assert str(held) == "CUDA out of memory. Tried to allocate 20.00 GiB"

    def test_the_original_would_have_kept_it(self) -> None:
        """The reason for ``attempt``: without it, the frames of the failure stay."""
        alive: list[weakref.ref[Array]] = []

        def segment() -> None:
            flows = Array()
            alive.append(weakref.ref(flows))
            raise torch.OutOfMemoryError("CUDA out of memory")

        with pytest.raises(torch.OutOfMemoryError) as caught:
            segment()
        gc.collect()
        assert alive[0]() is not None
        del caught

    def test_ours_says_who_holds_what_without_torchs_advice(self) -> None:
        told = (
            "CUDA out of memory. Tried to allocate 14.00 MiB. GPU 0 has a total capacity of 139.80 "
            "GiB of which 13.56 MiB is free. Including non-PyTorch memory, this process has 760.00 "
            "MiB memory in use. Process 1118 has 139.03 GiB memory in use"
        )
        rest = (
            ". Of the allocated memory 56.95 MiB is allocated by PyTorch, and 17.05 MiB is "
            "reserved by PyTorch but unallocated. If reserved memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
            "documentation for Memory Management  (https://docs.pytorch.org/docs/stable/notes/)"
        )

        def fail() -> None:
            raise torch.OutOfMemoryError(told + rest)

        with pytest.raises(OutOfMemoryError) as caught:
            attempt(fail)
        assert str(caught.value) == told

    def test_ours_travels_between_processes(self) -> None:
        def fail() -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

        with pytest.raises(OutOfMemoryError) as caught:
            attempt(fail)
        assert str(pickle.loads(pickle.dumps(caught.value))) == "CUDA out of memory"


def test_release_calls_who_keeps_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oom, "_at_release", [])
    calls: list[str] = []
    oom.at_release(lambda: calls.append("model"))
    release_gpu_memory()
    assert calls == ["model"]


def test_release_empties_the_pools_of_a_loaded_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[str] = []

    class Pool:
        def __init__(self, name: str) -> None:
            self.name = name

        def free_all_blocks(self) -> None:
            freed.append(self.name)

    class Cupy:
        def get_default_memory_pool(self) -> Any:
            return Pool("device")

        def get_default_pinned_memory_pool(self) -> Any:
            return Pool("pinned")

    monkeypatch.setitem(sys.modules, "cupy", Cupy())
    release_gpu_memory()
    assert freed == ["device", "pinned"]


def test_nothing_imports_torch_or_cupy() -> None:
    script = (
        "import sys; from cytopave.engine.gpu.oom import *\n"
        "assert not is_out_of_memory(MemoryError()); release_gpu_memory()\n"
        "assert not {'torch', 'cupy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.gpu
def test_a_real_shortage_is_told_and_given_back() -> None:
    release_gpu_memory()
    before, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()

    def too_much() -> None:
        kept = torch.empty(2**30, dtype=torch.uint8, device="cuda")
        torch.empty(2**50, dtype=torch.uint8, device="cuda")
        del kept

    with pytest.raises(OutOfMemoryError, match="CUDA out of memory"):
        attempt(too_much)
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.memory_reserved() == reserved
