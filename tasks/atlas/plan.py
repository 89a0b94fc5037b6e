"""The task that decides everything about an atlas run, and the end of what workers keep for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import distributed
from prefect import task
from prefect_dask.utils import get_dask_client

from cytopave.engine.atlas.plan import IN_MEMORY
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
        memory = _smallest_worker(client)
    plan = make_plan(store, gpu=probe_gpu().visible, worker_bytes=memory, **request)
    return plan.save()


def _smallest_worker(client: distributed.Client) -> int:
    """Memory of the smallest worker in bytes; this host's where workers have no limit."""
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    found = [int(w["memory_limit"]) for w in workers if w.get("memory_limit")]
    return min(found) if found else int(distributed.system.MEMORY_LIMIT)


def forget(plan: AtlasPlan) -> None:
    """Let the workers' matrices of this run go; on a cluster of others they would stay."""
    forget_datasets([dataset_name(plan, step) for step in IN_MEMORY])
