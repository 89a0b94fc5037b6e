"""The task that asks each worker for its GPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
from prefect import task

from cytopave.engine.planning import Budget
from cytopave.engine.vram import Gpu, plan_budget, probe_gpu as probe

if TYPE_CHECKING:
    from collections.abc import Sequence


@task(name="probe_gpu", persist_result=False)
def probe_gpu(worker: str, *, assumed_gb: float | None) -> Gpu:
    """The GPU of the worker that this task runs on."""
    return probe(assumed_gb=assumed_gb)


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
