"""Segmentation of a batch of tiles: read, call the function, check, commit; one by one."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cytopave.engine.errors import LabelError, OutOfMemoryError, TileError
from cytopave.engine.gpu.oom import attempt, release_gpu_memory
from cytopave.engine.reading import TileReader
from cytopave.engine.segmenters.checks import checked
from cytopave.engine.segmenters.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.segmenters import Segmenter
    from cytopave.engine.tiling import Tile

logger = logging.getLogger(__name__)


@dataclass
class Work:
    """What a batch did: counts, bytes, and seconds a stage."""

    tiles: int = 0
    reused: int = 0
    labels: int = 0
    bytes_read: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    def timed(self, stage: str, since: float) -> float:
        """Add the time since ``since`` to a stage; returns now."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - since
        return now


def segment_tiles(plan: Plan, indices: tuple[int, ...]) -> Work:
    """Segment those tiles of a batch that are not finished yet, and commit each.

    A tile that fails does not stop the others: all that can be finished is committed first.

    Raises:
        TileError: One or several tiles failed; the message names each with its cause.
        LabelError: The function returned something that is not a label image.
        OutOfMemoryError: The GPU's memory did not suffice for some tiles, even for the smallest
            patch batch; nothing of the failed attempts is held.
    """
    tiles = [plan.grid[i] for i in indices if not plan.scratch.has(i)]
    work = Work(reused=len(indices) - len(tiles))
    if not tiles:
        return work
    reader = TileReader(
        plan.image, tiles, channels=plan.channels, region=lambda tile: _place(plan, tile).region
    )
    segmenter = plan.segmenter
    failures: list[str] = []
    exhausted: list[str] = []
    for tile in tiles:
        try:
            segmenter = _segment_tile(plan, tile, reader, segmenter, work)
        except LabelError:
            raise  # no tile can mend it
        except OutOfMemoryError as error:
            exhausted.append(str(error))
        except Exception as error:
            failures.append(f"{tile}: {type(error).__name__}: {error}")
            logger.warning("%s", failures[-1], exc_info=True)
    work.bytes_read = reader.bytes_read
    if exhausted:  # comes first, since it may pass
        raise OutOfMemoryError("; ".join(exhausted + failures))
    if failures:
        raise TileError("; ".join(failures))
    return work


def _segment_tile(
    plan: Plan, tile: Tile, reader: TileReader, segmenter: Segmenter, work: Work
) -> Segmenter:
    """Segment and commit one tile; returns the segmenter whose patch batch sufficed."""
    since = time.perf_counter()
    pixels = reader.read(tile)
    since = work.timed("read", since)
    labels, segmenter = _call(segmenter, pixels, _place(plan, tile), tile)
    since = work.timed("segment", since)
    dense, n = checked(labels, tile.window.shape, f"{segmenter.title}, on {tile},")
    if plan.foreground is not None:
        dense, n = plan.foreground.clipped(dense, n, time=tile.time, window=tile.window)
    plan.scratch.commit(plan.grid, tile, dense)
    work.timed("commit", since)
    work.tiles += 1
    work.labels += n
    return segmenter


def _place(plan: Plan, tile: Tile) -> Place:
    shape = plan.image.spatial_shape
    region = plan.segmenter.region(tile.window, shape)
    return Place(plan.digest, tile.time, shape, region, tile.window)


def _call(
    segmenter: Segmenter, pixels: np.ndarray, place: Place, tile: Tile
) -> tuple[np.ndarray, Segmenter]:
    """Labels of a tile, with ever smaller patch batches while the GPU's memory does not suffice."""
    while True:
        try:
            return attempt(_function(segmenter, pixels, place)), segmenter
        except OutOfMemoryError as error:
            message = f"{tile}: {error}"
        # Outside the handler, so that nothing of the failed attempt is alive any more.
        segmenter.release()
        release_gpu_memory()
        smaller = segmenter.smaller()
        if smaller is None:
            raise OutOfMemoryError(message)
        logger.warning("%s; trying again with a smaller patch batch", message)
        segmenter = smaller


def _function(segmenter: Segmenter, pixels: np.ndarray, place: Place) -> Callable[[], np.ndarray]:
    return lambda: segmenter.at(place)(pixels)
