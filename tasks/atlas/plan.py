"""The task that decides everything about an atlas run, and the end of what workers keep for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import distributed
from prefect import task
from prefect_dask.utils import get_dask_client

from cytopave.engine.atlas.plan import IN_MEMORY, RAW
from cytopave.engine.atlas.planner import make_plan
from cytopave.engine.gpu.vram import probe_gpu
from cytopave.tasks.atlas.session import dataset_name
from cytopave.tasks.runner import forget_datasets

if TYPE_CHECKING:
    from cytopave.engine.atlas.plan import AtlasPlan


@task(name="plan_atlas", persist_result=False)
def plan_atlas(store: str, **request: Any) -> str:
    """Make and save the plan, on a worker: what it reads grows with the number of cells.

    Returns:
        The path of the plan.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        CorruptError: The store is damaged.
    """
    with get_dask_client() as client:
        memory, cards = _smallest_worker(client), _memory_of_gpus(client)
    plan = make_plan(store, gpu_bytes=cards, worker_bytes=memory, **request)
    return plan.save()


def _smallest_worker(client: distributed.Client) -> int:
    """Memory of the smallest worker in bytes; this host's where workers have no limit."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    found = [int(w["memory_limit"]) for w in workers if w.get("memory_limit")]
    return min(found) if found else int(distributed.system.MEMORY_LIMIT)


def _memory_of_gpus(client: distributed.Client) -> int:
    """Memory of the workers' GPUs together in bytes; 0 where a worker sees none.

    A GPU that workers share counts once.
    """
    found = client.run(probe_gpu, on_error="ignore").values()  # a worker may just have died
    if not all(gpu.visible for gpu in found):
        return 0
    return sum({gpu.uuid: gpu.total_bytes for gpu in found}.values())


def forget(plan: AtlasPlan) -> None:
    """Let the workers' matrices of this run go; on a cluster of others they would stay."""
    forget_datasets([dataset_name(plan, step) for step in (RAW, *IN_MEMORY)])
