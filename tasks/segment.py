"""The task that segments a batch of tiles."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from prefect import task

from cytopave.blocks.results import result_storage
from cytopave.engine.planning.plan import CODE_VERSION, Plan
from cytopave.engine.segment import Work, segment_tiles
from cytopave.engine.settings import load_settings
from cytopave.tasks.retry import retrying

if TYPE_CHECKING:
    from pathlib import Path

    from prefect import Task
    from prefect.context import TaskRunContext


def batch_key(plan: Plan, batch: int) -> str:
    """Name of a batch's persisted result: its tiles, and all that their labels depend on."""
    tiles = hashlib.sha256(repr(plan.batches[batch]).encode()).hexdigest()[:16]
    return f"cytopave-segment-{plan.digest[:32]}-{tiles}-{CODE_VERSION}"


def _cache_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    return batch_key(Plan.load(parameters["plan_path"]), parameters["batch"])


@task(name="segment_batch", cache_key_fn=_cache_key, persist_result=True)
def segment_batch(batch: int, *, plan_path: str, tile_seconds: float | None = None) -> Work:
    """Segment the unfinished tiles of a batch.

    Args:
        batch: Number of the batch in the plan.
        plan_path: The saved plan.
        tile_seconds: Longest time of one stage of a tile, which else ends the worker.

    Raises:
        TileError: Tiles failed; the others of the batch are finished.
        OutOfMemoryError: The GPU's memory did not suffice; Prefect tries again later.
    """
    plan = Plan.load(plan_path)
    return segment_tiles(plan, plan.batches[batch], tile_seconds=tile_seconds)


def segment_task(plan: Plan, batch: int) -> Task[..., Work]:
    """The task as it is submitted for one batch.

    A persisted result counts only while the tiles that it speaks of are there.
    """
    tiles = plan.batches[batch]
    complete = all(plan.scratch.has(i) for i in tiles)
    return retrying(segment_batch).with_options(
        task_run_name=f"segment {plan.batch_name(batch)}",
        result_storage=_result_storage(plan),
        refresh_cache=not complete,
    )


def _result_storage(plan: Plan) -> Path | str:
    """Where results are persisted: as the site says, else with the tiles that they speak of."""
    results = load_settings().results
    return plan.root / "results" if results is None else result_storage(results)
