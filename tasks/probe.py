"""The task that asks each worker for its GPU."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import dask
from prefect import task

from cytopave.engine.errors import ClusterError, PlanError
from cytopave.engine.gpu.vram import Gpu
from cytopave.engine.gpu.vram import probe_gpu as probe
from cytopave.engine.planning.budget import Budget, gpu_budget, rooms_budget
from cytopave.engine.segmenters import Segmenter
from cytopave.tasks.runner import worker_addresses, worker_rooms

if TYPE_CHECKING:
    from cytopave.blocks import Cluster


_log = logging.getLogger(__name__)


class Sight(NamedTuple):
    """What a worker sees: its GPU, or what is assumed in its place, and whether it would use it."""

    worker: str
    gpu: Gpu
    used: bool


@task(name="probe_gpu", persist_result=False, task_run_name="probe {worker}")
def probe_gpu(worker: str, *, segmenter: Segmenter, assumed_gb: float | None) -> Sight:
    """The GPU of the worker that this task runs on.

    Raises:
        SegmenterError: The method cannot run on this worker.
    """
    segmenter.check_process()
    return Sight(worker, probe(assumed_gb=assumed_gb), segmenter.uses_gpu)


def probe_workers(segmenter: Segmenter, *, assumed_gb: float | None) -> list[Gpu]:
    """The GPUs of all workers of the running flow, or none where no worker would use one.

    With ``assumed_gb`` the assumption stands for a GPU that a worker uses and whose memory it
    cannot see.

    Raises:
        ClusterError: Some workers would use a GPU and others would not.
    """
    futures = []
    for worker in worker_addresses():
        with dask.annotate(workers=[worker], allow_other_workers=False):
            future = probe_gpu.submit(worker, segmenter=segmenter, assumed_gb=assumed_gb)
            futures.append(future)
    sights: list[Sight] = [future.result() for future in futures]
    used = [sight.gpu for sight in sights if sight.used]
    if used and len(used) < len(sights):
        without = next(sight.worker for sight in sights if not sight.used)
        raise ClusterError(
            f"{len(used)} of {len(sights)} workers have a GPU, and {without} has none: give all of "
            "them one, stop those without, or choose the CPU (--set device=cpu)"
        )
    return used


def check_gpu(segmenter: Segmenter, cluster: Cluster) -> None:
    """Refuse a method that needs a GPU on workers that have none, before they start.

    Raises:
        ClusterError: The two do not go together.
    """
    if segmenter.needs_gpu and cluster.has_gpus is False:
        raise ClusterError(
            f"{segmenter.title} needs a GPU, and the cluster's workers have none: choose a cluster "
            "with GPUs (for SLURM and Kubernetes, gpu_workers=true), or another device"
        )


def worker_budget(
    segmenter: Segmenter, cluster: Cluster, *, assumed_gb: float | None
) -> tuple[Budget, list[Gpu]]:
    """What a tile may take on any of the running flow's workers, as they say themselves.

    Args:
        segmenter: Resolved.
        cluster: Where the flow runs.
        assumed_gb: GiB of the GPUs, where the user said so.

    Returns:
        The budget, and the workers' GPUs where it is theirs.

    Raises:
        PlanError: A worker has less than ``assumed_gb``.
        ClusterError: Some workers have a GPU and others have none.
    """
    if not may_use_gpus(segmenter, cluster):
        return rooms_budget(worker_rooms()), []
    gpus = probe_workers(segmenter, assumed_gb=assumed_gb)
    for note in sorted({gpu.note for gpu in gpus if gpu.source == "default"}):
        _log.warning("%s", note)
    if gpus:
        return gpu_budget(gpus, assumed_gb=assumed_gb), gpus
    if assumed_gb is not None or cluster.has_gpus:
        said = "gpu_workers" if assumed_gb is None else f"gpu_memory_gb={assumed_gb:g}"
        raise PlanError(
            f"{said} says that the workers have GPUs, and {segmenter.title} finds none on any of "
            "them: mend the driver or PyTorch there, or leave it out and choose the CPU (--set "
            "device=cpu)"
        )
    return rooms_budget(worker_rooms()), []


def may_use_gpus(segmenter: Segmenter, cluster: Cluster) -> bool:
    """Whether the workers may compute on GPUs; they are asked where that is not known."""
    return segmenter.wants_gpu and cluster.has_gpus is not False
