"""The tasks that find out which tiles need no segmentation, and how a flow runs them."""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from prefect import task

from cytopave.engine.lazy import Lazy, grouped
from cytopave.engine.planning import skipping
from cytopave.engine.planning.plan import Plan
from cytopave.tasks.runner import slots
from cytopave.tasks.window import run_all

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from cytopave.engine.boxes import Box

_log = logging.getLogger(__name__)

_TILES_AT_LEAST = 500  # of a task that commits empty ones: about a second


@task(name="find_foreground", persist_result=False, task_run_name="find foreground, group {group}")
def find_foreground(group: int, *, plan_path: str, tasks: int) -> None:
    """Find the tiles that a group of the mask's blocks has foreground for.

    Raises:
        CorruptError: A chunk of the mask is truncated or damaged.
    """
    plan = Plan.load(plan_path)
    skipping.look(plan, _blocks(plan, tasks)[group])


@task(name="skip_tiles", persist_result=False, task_run_name="skip tiles, group {group}")
def skip_tiles(group: int, *, plan_path: str, tasks: int) -> None:
    """Commit the tiles of a group that have no foreground as empty ones."""
    plan = Plan.load(plan_path)
    skipping.skip(plan, _tiles(plan, tasks)[group])


def tiles_with_foreground(plan: Plan, path: str) -> np.ndarray:
    """Run the tasks that skip what has no foreground, in the running flow.

    Args:
        plan: The run.
        path: Where it is saved.

    Returns:
        ``(tiles,)`` bool: which tiles are left to segment.
    """
    tasks = 2 * slots()
    groups = _blocks(plan, tasks)
    shared: dict[str, Any] = {"plan_path": path, "tasks": tasks}
    run_all(find_foreground, range(len(groups)), **shared)
    found = skipping.join(plan, groups)
    if not found.all():
        run_all(skip_tiles, range(len(_tiles(plan, tasks))), **shared)
    if not found.any():
        _log.warning("There is no foreground: no tile is segmented. Is the mask the right one?")
    return found


def _blocks(plan: Plan, tasks: int) -> Lazy[tuple[tuple[int, Box], ...]]:
    assert plan.foreground is not None
    return grouped(plan.foreground.blocks(), tasks)


def _tiles(plan: Plan, tasks: int) -> Sequence[range]:
    n = max(1, min(tasks, math.ceil(len(plan.grid) / _TILES_AT_LEAST)))
    edges = [round(i * len(plan.grid) / n) for i in range(n + 1)]
    return [range(a, b) for a, b in pairwise(edges)]
