"""How much memory a tile may take: of a GPU, or of the host where no GPU is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from cytopave.engine.gpu.vram import GIB, plan_budget, probe_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.gpu.vram import Gpu
    from cytopave.engine.segmenters import Segmenter


@dataclass(frozen=True)
class Budget:
    """Memory that one worker may give to a tile, in bytes, and where that figure comes from."""

    size: int
    source: str
    on_gpu: bool


def host_budget(workers: int) -> Budget:
    """What a tile may take of the host's memory: half of a worker's equal share."""
    available = psutil.virtual_memory().available
    size = available // (2 * max(1, workers))
    shared = "one worker" if workers == 1 else f"{workers} workers"
    note = f"half of the {available / GIB:.1f} GiB of free memory, for {shared}"
    return Budget(size, note, on_gpu=False)


def gpu_budget(gpus: Sequence[Gpu], *, assumed_gb: float | None) -> Budget:
    """What a tile may take of the smallest GPU.

    Raises:
        PlanError: A worker's card has less free than a plan for ``assumed_gb`` would use.
    """
    smallest = min(gpus, key=lambda g: g.budget_bytes)
    return Budget(plan_budget(gpus, assumed_gb=assumed_gb), smallest.note.rstrip("."), on_gpu=True)


def local_budget(segmenter: Segmenter, *, workers: int, assumed_gb: float | None = None) -> Budget:
    """What a tile may take on this machine, as far as this process can tell.

    Args:
        segmenter: Decides whether a GPU counts or the host.
        workers: Number of workers that share the host's memory.
        assumed_gb: GiB of the GPUs, where the user said so.
    """
    if segmenter.uses_gpu:
        return gpu_budget([probe_gpu(assumed_gb=assumed_gb)], assumed_gb=assumed_gb)
    return host_budget(workers)
