"""The tasks that merge the tiles' labels into one label image."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from prefect import task

from cytopave.engine.merge import stages
from cytopave.engine.plan import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.labels import WriteBlock


def scan_groups(plan: Plan, *, tasks: int) -> list[tuple[int, ...]]:
    """Tiles of each ``scan_seams`` task: whole batches, in about as many groups as asked for."""
    return [sum(g, ()) for g in _grouped(plan.batches, max(tasks, len(plan.grid) // 512))]


def write_groups(plan: Plan, *, tasks: int) -> list[tuple[WriteBlock, ...]]:
    """Blocks of each ``write_labels`` task."""
    blocks = list(plan.target.blocks())
    pixels = sum(b.box.size for b in blocks)
    return [tuple(g) for g in _grouped(blocks, max(tasks, pixels // 2**28))]


@task(name="scan_seams", persist_result=False, task_run_name="scan seams, group {group}")
def scan_seams(group: int, *, plan_path: str, tasks: int) -> int:
    """Find the links of a group of tiles with their neighbours; returns their number."""
    plan = Plan.load(plan_path)
    return stages.scan_tiles(plan, scan_groups(plan, tasks=tasks)[group])


@task(name="resolve_labels", persist_result=False)
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
def write_labels(group: int, *, plan_path: str, tasks: int) -> int:
    """Paint and write a group of blocks; returns the number of pixels."""
    plan = Plan.load(plan_path)
    return stages.write_blocks(plan, write_groups(plan, tasks=tasks)[group])


def _grouped[T](items: Sequence[T], n: int) -> list[Sequence[T]]:
    """Cut into at most ``n`` runs of nearly equal length."""
    n = max(1, min(n, len(items)))
    cuts = [round(i * len(items) / n) for i in range(n + 1)]
    return [items[a:b] for a, b in pairwise(cuts)]
