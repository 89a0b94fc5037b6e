"""The task that asks each worker for its GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dask
import psutil
from prefect import task

from cytopave.engine.planning import Budget
from cytopave.engine.vram import Gpu, plan_budget
from cytopave.engine.vram import probe_gpu as probe
from cytopave.tasks.runner import worker_addresses

if TYPE_CHECKING:
    from collections.abc import Sequence


@task(name="probe_gpu", persist_result=False)
def probe_gpu(worker: str, *, assumed_gb: float | None) -> Gpu:
    """The GPU of the worker that this task runs on."""
    return probe(assumed_gb=assumed_gb)


def probe_workers(*, assumed_gb: float | None) -> list[Gpu]:
    """The GPUs of all workers of the running flow, or none where no worker has one.

    With ``assumed_gb`` the assumption stands for workers whose GPU cannot be seen.
    """
    futures = []
    for worker in worker_addresses():
        with dask.annotate(workers=[worker], allow_other_workers=False):
            futures.append(probe_gpu.submit(worker, assumed_gb=assumed_gb))
    gpus = [future.result() for future in futures]
    return gpus if assumed_gb is not None or any(g.visible for g in gpus) else []


def gpu_budget(gpus: Sequence[Gpu], *, assumed_gb: float | None) -> Budget:
    """What a tile may take of the smallest GPU."""
    smallest = min(gpus, key=lambda g: g.budget_bytes)
    return Budget(plan_budget(gpus, assumed_gb=assumed_gb), smallest.note, on_gpu=True)


def host_budget(workers: int) -> Budget:
    """What a tile may take of the host's memory: half of a worker's equal share."""
    available = psutil.virtual_memory().available
    size = available // (2 * max(1, workers))
    note = f"half of {available / 2**30:.1f} GiB of free memory shared by {workers} workers"
    return Budget(size, note, on_gpu=False)
