"""Tiles without foreground: found once a run and committed empty, so that all else goes on as ever.

``look`` (any number of groups) -> ``join`` -> ``skip`` (any number of groups of tiles). What was
found is kept in the run's scratch folder, whose name holds the mask's digest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.scratch.archive import write_array
from cytopave.engine.scratch.empty import commit_empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from cytopave.engine.boxes import Box
    from cytopave.engine.planning.plan import Plan

type Blocks = Sequence[tuple[int, Box]]


def look(plan: Plan, blocks: Blocks) -> None:
    """Find out which tiles some blocks of the mask have foreground for, unless that is known.

    Raises:
        CorruptError: A chunk of the mask is truncated or damaged.
    """
    assert plan.foreground is not None
    path = _path(plan, blocks)
    if not path.exists():
        write_array(path, plan.foreground.tiles(plan.grid, blocks))


def join(plan: Plan, groups: Iterable[Blocks]) -> np.ndarray:
    """Which tiles have foreground, ``(tiles,)`` bool, from all groups that were looked at."""
    found = np.zeros(len(plan.grid), bool)
    for blocks in groups:
        found |= np.load(_path(plan, blocks))
    write_array(_joined(plan), found)
    return found


def skip(plan: Plan, tiles: Iterable[int]) -> None:
    """Commit those of some tiles that have no foreground as empty ones."""
    found = np.load(_joined(plan), mmap_mode="r")
    commit_empty(plan.scratch, plan.grid, (plan.grid[i] for i in tiles if not found[i]))


def _joined(plan: Plan) -> Path:
    return plan.root / "foreground" / "tiles.npy"


def _path(plan: Plan, blocks: Blocks) -> Path:
    name = hashlib.sha256(repr(tuple(blocks)).encode()).hexdigest()[:16]
    return plan.root / "foreground" / f"{name}.npy"
