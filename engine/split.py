"""A tile in parts: what can be done in place where its smallest patch batch does not fit a GPU.

The tile's window is taken for an image of its own. It is cut as the run's image is, with the same
halo, and the labels of its parts are merged by the run's own rule: objects that the parts see alike
come out pixel for pixel as of the whole tile.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
import uuid
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.errors import OutOfMemoryError
from cytopave.engine.gpu.oom import attempt, release_gpu_memory
from cytopave.engine.gpu.vram import probe_gpu
from cytopave.engine.merge import Merge, resolve, scan
from cytopave.engine.merge.paint import Painter
from cytopave.engine.scratch.tiles import OpenTiles, Scratch
from cytopave.engine.segmenters.checks import checked
from cytopave.engine.segmenters.memory import CONTEXT_BYTES
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.segmenters import Segmenter
    from cytopave.engine.segmenters.place import Place
    from cytopave.engine.tiling import Tile


@dataclass(frozen=True, slots=True)
class Joined:
    """Labels of a window that are finished, out of those of its parts.

    Attributes:
        labels: ``([Z], Y, X)`` uint32.
        parts: Number of parts.
    """

    labels: np.ndarray
    parts: int


def counted_bytes(plan: Plan, segmenter: Segmenter, window_shape: tuple[int, ...]) -> int:
    """GPU memory that a window ``([Z], Y, X)`` needs by the count that planning uses; 0: none."""
    itemsize = plan.image.array.dtype.itemsize
    return segmenter.device_bytes(window_shape, itemsize, max(1, len(plan.channels)))


def ever_smaller(shape: tuple[int, ...], halo: tuple[int, ...]) -> Iterator[Grid]:
    """The ways to cut a window ``([Z], Y, X)``: into two parts, then each of them again, and so on.

    They end where the halo takes what a further cut would save.
    """
    grid = _halved(Grid(shape, shape, halo))
    while grid is not None:
        yield grid
        grid = _halved(grid)


def _halved(grid: Grid) -> Grid | None:
    """Halve the parts along the longest axis on which that takes a quarter of what they see.

    Axes without a halo stay whole: what crosses a cut there could only be joined by its looks, and
    a run whose tiles hold all planes of a stack never asked for that.
    """
    for axis in sorted(range(len(grid.shape)), key=lambda a: -grid.tile[a]):
        half = -(-grid.tile[axis] // 2)
        if not 0 < grid.halo[axis] <= half:
            continue
        parts = (*grid.tile[:axis], half, *grid.tile[axis + 1 :])
        smaller = Grid(grid.shape, parts, grid.halo)
        if 4 * _seen(smaller) <= 3 * _seen(grid):
            return smaller
    return None


def _seen(grid: Grid) -> int:
    """Pixels of the largest window."""
    return math.prod(_largest_window(grid))


def _largest_window(grid: Grid) -> tuple[int, ...]:
    return tuple(max(b - a for a, b in axis) for axis in grid.windows)


@dataclass(frozen=True)
class Split:
    """A tile that is to be computed in parts, in the calling thread.

    Attributes:
        plan: The run.
        tile: The tile.
        place: Where the tile is.
        segmenter: With the patch batch to take.
        read: Gives the pixels of the tile's region; called once, when parts may fit.
    """

    plan: Plan
    tile: Tile
    place: Place
    segmenter: Segmenter
    read: Callable[[Tile], np.ndarray]

    def labels(self) -> Joined | None:
        """The labels of the tile's window, in as few parts as fit; None where none do.

        After a failed attempt nothing of it is held, and the segmenter is released. Parts that need
        more by count than the GPU has free are not tried: a full card is to be waited for.

        Raises:
            LabelError: The function returned something that is not a label image.
        """
        for grid in ever_smaller(self.place.window.shape, self.plan.grid.halo):
            if not self._may_fit(_largest_window(grid)):
                continue
            labels = self._tried(grid)
            if labels is not None:
                return Joined(labels, len(grid))
            self.segmenter.release()
            release_gpu_memory()
        return None

    @cached_property
    def _pixels(self) -> np.ndarray:
        return self.read(self.tile)

    def _may_fit(self, window_shape: tuple[int, ...]) -> bool:
        gpu = probe_gpu()
        # What CUDA itself holds is in the count, and this process has it already.
        room = gpu.free_bytes + CONTEXT_BYTES
        return not gpu.visible or counted_bytes(self.plan, self.segmenter, window_shape) <= room

    def _tried(self, grid: Grid) -> np.ndarray | None:
        """The joined labels of the parts; None if memory did not suffice for one of them."""
        # A name of its own: an earlier attempt at the tile may live on in another process.
        root = self.plan.scratch.root / "parts" / f"{self.tile.index}-{uuid.uuid4().hex[:8]}"
        try:
            scratch = Scratch(root)
            for part in grid:
                scratch.commit(grid, part, self._of_part(part))
            return _merged(scratch, grid, self.plan.merge)
        except OutOfMemoryError:
            return None
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def _of_part(self, part: Tile) -> np.ndarray:
        """Labels of a part's window, 1..n."""
        window = part.window.shift(self.place.window.start)
        region = self.segmenter.region(window, self.place.shape)
        where: tuple[Any, ...] = (..., *region.within(self.place.region))
        pixels = self._pixels[where].copy()  # parts share some, and functions may write into them
        steps = self.segmenter.steps(dataclasses.replace(self.place, region=region, window=window))
        labels = attempt(lambda: steps(pixels))
        source = f"{self.segmenter.title}, on a part of {self.tile},"
        return checked(labels, window.shape, source)[0]


def _merged(scratch: Scratch, grid: Grid, merge: Merge) -> np.ndarray:
    """One label image ``([Z], Y, X)`` uint32 of the parts that were committed."""
    opened = OpenTiles(scratch)
    links = scan(opened, grid, range(len(grid)), merge)
    tables = [opened[i][1] for i in range(len(grid))]
    counts = np.array([len(table) for table in tables])
    painter = Painter(scratch, grid, resolve(counts, enumerate(tables), links, merge))
    labels = np.empty(grid.shape, np.uint32)
    for part in grid:
        labels[part.core.slices] = painter.paint(part.index)
    return labels
