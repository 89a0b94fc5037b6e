"""The task that asks each worker for its GPU."""

from __future__ import annotations

import dask
from prefect import task

from cytopave.engine.gpu.vram import Gpu
from cytopave.engine.gpu.vram import probe_gpu as probe
from cytopave.tasks.runner import worker_addresses


@task(name="probe_gpu", persist_result=False, task_run_name="probe {worker}")
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
