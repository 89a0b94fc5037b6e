"""The tasks that merge the tiles' labels into one label image."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING

from prefect import task

from cytopave.engine.lazy import Lazy, grouped
from cytopave.engine.merge import stages
from cytopave.engine.planning.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.omezarr.labels import WriteBlock


def scan_groups(plan: Plan, *, tasks: int) -> Sequence[tuple[int, ...]]:
    """Tiles of each ``scan_seams`` task: whole batches, in about as many groups as asked for."""
    groups = grouped(plan.batches, max(tasks, len(plan.grid) // 512))
    return Lazy(len(groups), lambda i: tuple(chain.from_iterable(groups[i])))


def write_groups(plan: Plan, *, tasks: int) -> Sequence[tuple[WriteBlock, ...]]:
    """Blocks of each ``write_labels`` task."""
    pixels = math.prod(plan.target.spatial_shape) * plan.target.n_times
    return grouped(plan.target.blocks(), max(tasks, pixels // 2**28))


@task(name="scan_seams", persist_result=False, task_run_name="scan seams, group {group}")
def scan_seams(group: int, *, plan_path: str, tasks: int, neighbours: int) -> int:
    """Find the links of a group of tiles with their neighbours; returns their number."""
    plan = Plan.load(plan_path)
    threads = stages.threads_for(_cores(), neighbours)
    return stages.scan_tiles(plan, scan_groups(plan, tasks=tasks)[group], threads=threads)


@task(name="resolve_labels", persist_result=False, task_run_name="resolve labels")
def resolve_labels(plan_path: str, *, tasks: int) -> dict[str, int]:
    """Decide which views are one object, and make the empty label image.

    Returns:
        The counts ``n_objects``, ``n_joined`` and ``n_suspects`` of the report.
    """
    plan = Plan.load(plan_path)
    result = stages.resolve_run(plan, scan_groups(plan, tasks=tasks))
    plan.target.create(result.final.dtype)
    names = ("n_objects", "n_joined", "n_suspects")
    return {name: getattr(result, name) for name in names}


@task(name="write_labels", persist_result=False, task_run_name="write labels, group {group}")
def write_labels(group: int, *, plan_path: str, tasks: int, neighbours: int) -> int:
    """Paint and write a group of blocks; returns the number of pixels."""
    plan = Plan.load(plan_path)
    threads = stages.threads_for(_cores(), neighbours)
    return stages.write_blocks(plan, write_groups(plan, tasks=tasks)[group], threads=threads)


def _cores() -> int:
    """Cores that this worker may use, by affinity and cgroups."""
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)
