"""How much memory a tile may take: of a GPU, or of the host where no GPU is used."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import psutil

from cytopave.engine.gpu.vram import GIB, plan_budget, probe_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.gpu.vram import Gpu
    from cytopave.engine.segmenters import Segmenter


@dataclass(frozen=True)
class Budget:
    """Memory that one worker may give to a tile, and where that figure comes from.

    Attributes:
        size: In bytes.
        source: What messages say of it.
        on_gpu: Whether it is a GPU's; None before any worker was seen.
    """

    size: int
    source: str
    on_gpu: bool | None


class Room(NamedTuple):
    """The host memory of one worker.

    Attributes:
        host: Name of the host; workers of one share its memory.
        free: Bytes that are free there.
        limit: Bytes at which the worker is stopped; None or 0 where it has no limit.
        threads: Tiles that the worker works on at once.
    """

    host: str
    free: int
    limit: int | None
    threads: int = 1


UNKNOWN = Budget(sys.maxsize, "the memory of workers that are not there yet", on_gpu=None)
"""For drafts: nothing is refused for want of memory that nobody has seen."""


def rooms_budget(rooms: Sequence[Room]) -> Budget:
    """What a tile may take of the host memory of any worker: half of the smallest share.

    Args:
        rooms: One entry a worker, at least one.
    """
    threads: Counter[str] = Counter()
    for room in rooms:
        threads[room.host] += room.threads

    def share(room: Room) -> int:
        of_host = room.free // threads[room.host]
        return min(of_host, room.limit // room.threads) if room.limit else of_host

    smallest = min(rooms, key=share)
    count = len(rooms)
    whom = "the worker has" if count == 1 else f"each of {count} workers has"
    note = f"half of the {share(smallest) / GIB:.1f} GiB of free memory that {whom}"
    return Budget(share(smallest) // 2, note, on_gpu=False)


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
    if segmenter.uses_gpu or (segmenter.wants_gpu and assumed_gb is not None):
        return gpu_budget([probe_gpu(assumed_gb=assumed_gb)], assumed_gb=assumed_gb)
    return host_budget(workers)


def distant_budget(segmenter: Segmenter, *, gpu: bool | None, assumed_gb: float | None) -> Budget:
    """What a tile may be assumed to take on workers that nobody has seen yet.

    Args:
        segmenter: Decides whether a GPU counts or the host.
        gpu: Whether the workers have GPUs; None where that is not known.
        assumed_gb: GiB of the GPUs, where the user said so.
    """
    if segmenter.wants_gpu and gpu is not False and (gpu or assumed_gb is not None):
        unseen = probe_gpu(environ={"CUDA_VISIBLE_DEVICES": ""}, assumed_gb=assumed_gb)
        return gpu_budget([unseen], assumed_gb=assumed_gb)
    here = host_budget(1)
    note = f"{here.source}, as on this host; the workers are asked when the run starts"
    return Budget(here.size, note, on_gpu=False)
