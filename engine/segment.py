"""Segmentation of a batch of tiles: read, call the function, check, commit.

While one tile is computed, the next ones are read and the last ones are checked and committed: the
device need not wait for the host.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import LabelError, OutOfMemoryError, SegmenterError, TileError
from cytopave.engine.gpu.oom import attempt, release_gpu_memory
from cytopave.engine.gpu.vram import GIB, probe_gpu
from cytopave.engine.overtime import Overtime, overdue
from cytopave.engine.pipeline import Pipeline
from cytopave.engine.reading import TileReader
from cytopave.engine.segmenters.checks import checked
from cytopave.engine.segmenters.place import Place
from cytopave.engine.split import Joined, Split, counted_bytes
from cytopave.engine.tables.core_pixels import MeasuredReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cytopave.engine.boxes import Box
    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.segmenters import Segmenter
    from cytopave.engine.segmenters.steps import Steps
    from cytopave.engine.tiling import Tile

logger = logging.getLogger(__name__)


@dataclass
class Work:
    """What a batch did: counts, bytes, and seconds a stage.

    The stages overlap. ``read`` is one thread's time, ``segment`` that of the thread which computes
    (and for which a GPU works), ``commit`` that of the finishing threads together. ``wait`` is what
    is left of ``batch``, the time of it all: there was nothing to compute. ``split`` counts the
    tiles that fitted the GPU in parts alone.
    """

    tiles: int = 0
    reused: int = 0
    labels: int = 0
    bytes_read: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    split: int = 0  # last, with a default: persisted results of earlier versions lack it


def segment_tiles(
    plan: Plan, indices: tuple[int, ...], *, tile_seconds: float | None = None
) -> Work:
    """Segment those tiles of a batch that are not finished yet, and commit each.

    A tile that fails does not stop the others: all that can be finished is committed first.

    Args:
        plan: The run.
        indices: The tiles of the batch.
        tile_seconds: Longest time of one stage of a tile. **A tile that exceeds it ends this
            process**; whoever takes the batch next fails that tile, and finishes the others.

    Raises:
        TileError: One or several tiles failed; the message names each with its cause.
        LabelError: The function returned something that is not a label image.
        OutOfMemoryError: The GPU's memory did not suffice for some tiles, even for the smallest
            patch batch, and in parts; nothing of the failed attempts is held.
    """
    tiles = [plan.grid[i] for i in indices if not plan.scratch.has(i)]
    if not tiles:
        return Work(reused=len(indices))
    late = overdue(plan.scratch.root, [tile.index for tile in tiles])
    with Overtime(plan.scratch.root, tile_seconds) as overtime:
        batch = _Batch(plan, [tile for tile in tiles if tile.index not in late], overtime)
        with batch.timed("batch"):
            failures, exhausted = _run(batch)
    failures |= {tile: too_late(plan, tile, where) for tile, where in late.items()}
    causes = {**exhausted, **failures}
    if exhausted:  # comes first, since it may pass
        release_gpu_memory()  # their frames, now that nothing refers to them
        raise OutOfMemoryError(_told_once(exhausted, failures), causes)
    if failures:
        raise TileError("; ".join(causes.values()), causes)
    batch.work.reused = len(indices) - len(tiles)
    return batch.summary()


def _told_once(exhausted: dict[int, str], failures: dict[int, str]) -> str:
    """The message of a batch: memory that does not suffice is told of one tile, not of each."""
    first, *others = exhausted.values()
    if others:
        first += f"; the same of {len(others)} other tile{'s' * (len(others) > 1)}"
    return "; ".join([first, *failures.values()])


def too_late(plan: Plan, tile: int, where: str) -> str:
    """What messages say of a tile that was ended for its time."""
    return (
        f"{plan.grid[tile]}: it was not done in time (CYTOPAVE_TILE_TIMEOUT_SECONDS), and its "
        f"worker was ended in {where}"
    )


def _run(batch: _Batch) -> tuple[dict[int, str], dict[int, str]]:
    """Take the tiles through all stages; returns what failed, and what memory did not suffice for.

    Both by the index of the tile.

    Raises:
        LabelError: The function returned something that is not a label image.
    """
    failures: dict[int, str] = {}
    exhausted: dict[int, str] = {}
    if not batch.tiles:
        return failures, exhausted
    with closing(batch.pipeline().run(batch.tiles)) as outcomes:
        for tile, n, error in outcomes:
            batch.let_go(tile)
            if isinstance(error, LabelError | SegmenterError):
                raise error  # no tile can mend it
            if isinstance(error, OutOfMemoryError):
                exhausted[tile.index] = f"{tile}: {error}"
            elif error is not None:
                failures[tile.index] = f"{tile}: {type(error).__name__}: {error}"
                logger.warning("%s", failures[tile.index], exc_info=error)
            else:
                batch.work.tiles += 1
                batch.work.labels += n or 0
    return failures, exhausted


@dataclass
class _Begun:
    """What is left to settle, unless that was done at once; and what it takes to begin anew.

    Attributes:
        value: What the segmenter's step returned.
        prepared: What it was given; None if all is settled.
        segmenter: Whose step it was.
    """

    value: Any
    prepared: Any = None
    segmenter: Segmenter | None = None


class _Batch:
    """The stages of a batch's tiles, and the segmenter whose patch batch sufficed so far."""

    def __init__(self, plan: Plan, tiles: list[Tile], overtime: Overtime) -> None:
        self.work = Work()
        self.tiles = tiles
        self._overtime = overtime
        self._plan = plan
        self._segmenter: Segmenter = plan.segmenter
        self._places = {tile.index: _place(plan, tile) for tile in tiles}
        self._lock = threading.Lock()
        self._sums = plan.sums if plan.measured_in_tiles else None
        self._reader = _reader(plan, tiles, lambda tile: self._places[tile.index].region)

    def pipeline(self) -> Pipeline[Tile, int]:
        """The stages, in order."""
        steps = self._segmenter.steps(next(iter(self._places.values())))
        return Pipeline(
            read=self._read,
            begin=self._begin,
            settle=None if steps.settle is None else self._settle,
            finish=self._finish,
            bound=self._plan.in_flight,
        )

    def summary(self) -> Work:
        """What was done, once all is done."""
        seconds = self.work.seconds
        seconds["wait"] = max(0.0, seconds["batch"] - seconds.get("segment", 0.0))
        self.work.bytes_read = self._reader.bytes_read
        return self.work

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage; several threads may."""
        since = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - since
            with self._lock:
                self.work.seconds[stage] = self.work.seconds.get(stage, 0.0) + seconds

    def _steps(self, tile: Tile) -> Steps:
        return self._segmenter.steps(self._places[tile.index])

    def _read(self, tile: Tile) -> Any:
        with self.timed("read"), self._overtime.of(tile.index):
            pixels = self._reader.read(tile)
            prepare = self._steps(tile).prepare
            return attempt(lambda: prepare(pixels))

    def let_go(self, tile: Tile) -> None:
        """Drop what was kept of a tile that ended, however it did."""
        if isinstance(self._reader, MeasuredReader):
            self._reader.let_go(tile)

    def _begin(self, tile: Tile, prepared: Any) -> Any:
        steps, segmenter = self._steps(tile), self._segmenter
        with self.timed("segment"), self._overtime.of(tile.index, computing=True):
            try:
                begun = attempt(lambda: steps.begin(prepared))
                return begun if steps.settle is None else _Begun(begun, prepared, segmenter)
            except OutOfMemoryError as error:
                message = str(error)
            # Outside the handler, so that nothing of the failed attempt is alive any more.
            found = self._again(tile, prepared, segmenter, message)
            return found if steps.settle is None else _Begun(found)

    def _settle(self, tile: Tile, begun: _Begun) -> Any:
        if begun.segmenter is None:
            return begun.value
        settle = begun.segmenter.steps(self._places[tile.index]).settle
        assert settle is not None
        with self.timed("segment"), self._overtime.of(tile.index, computing=True):
            try:
                return attempt(lambda: settle(begun.value))
            except OutOfMemoryError as error:
                message = str(error)
            begun.value = None
            return self._again(tile, begun.prepared, begun.segmenter, message)

    def _again(self, tile: Tile, prepared: Any, failed: Segmenter, message: str) -> Any:
        """All that the device does for a tile, in ever smaller patch batches until memory suffices.

        Where the smallest does not fit, it is done in parts, and what is returned is `Joined`.

        Args:
            tile: The tile.
            prepared: What the first step on the device is given.
            failed: The segmenter whose attempt failed.
            message: How.

        Raises:
            OutOfMemoryError: Memory does not suffice for parts either.
        """
        while True:
            failed.release()
            release_gpu_memory()
            # a tile that was begun before another one failed is first tried as that one was
            segmenter = failed.smaller() if failed is self._segmenter else self._segmenter
            if segmenter is None:
                return self._in_parts(tile, message)
            logger.warning("%s: %s; trying again with a smaller patch batch", tile, message)
            self._segmenter = failed = segmenter
            steps = self._steps(tile)
            try:
                return attempt(lambda: _computed(steps, prepared))  # noqa: B023  called here
            except OutOfMemoryError as error:
                message = str(error)

    def _in_parts(self, tile: Tile, message: str) -> Joined:
        place = self._places[tile.index]
        found = Split(self._plan, tile, place, self._segmenter, self._reader.read).labels()
        if found is None:
            raise OutOfMemoryError(f"{message}{self._figures(tile)}")
        logger.warning("%s: %s; it was computed in %d parts", tile, message, found.parts)
        self.work.split += 1
        return found

    def _figures(self, tile: Tile) -> str:
        """What the tile needs and what the card has: so much less is no use trying."""
        shape = tile.window.shape
        need = counted_bytes(self._plan, self._segmenter, shape)
        gpu = probe_gpu()
        if not (need and gpu.visible):
            return ""
        return (
            f" (by the count that planning uses a tile of {shape} pixels needs "
            f"{need / GIB:.2f} GiB at the least, and the {gpu.name} has {gpu.free_bytes / GIB:.2f} "
            f"of {gpu.total_bytes / GIB:.2f} GiB free: where that does not change, take a smaller "
            "tile)"
        )

    def _finish(self, tile: Tile, found: Any) -> int:
        with self.timed("commit"), self._overtime.of(tile.index):
            finish = self._steps(tile).finish
            labels = found.labels if isinstance(found, Joined) else finish(found)
            shape = tile.window.shape
            dense, n = checked(labels, shape, f"{self._segmenter.title}, on {tile},")
            if self._plan.foreground is not None:
                dense, n = self._plan.foreground.clipped(
                    dense, n, time=tile.time, window=tile.window
                )
            members = {}
            if self._sums and isinstance(self._reader, MeasuredReader):
                core = dense[tile.core.within(tile.window)]
                members = self._sums.members(tile, core, self._reader.take_core(tile))
            self._plan.scratch.commit(self._plan.grid, tile, dense, members)
        return n


def _computed(steps: Steps, prepared: Any) -> Any:
    begun = steps.begin(prepared)
    return begun if steps.settle is None else steps.settle(begun)


def _place(plan: Plan, tile: Tile) -> Place:
    shape = plan.image.spatial_shape
    region = plan.segmenter.region(tile.window, shape)
    return Place(plan.digest, tile.time, shape, region, tile.window)


def _reader(
    plan: Plan, tiles: list[Tile], region: Callable[[Tile], Box]
) -> TileReader | MeasuredReader:
    if plan.measured is None or not plan.measured_in_tiles:
        return TileReader(plan.image, tiles, channels=plan.channels, region=region)
    return MeasuredReader(
        plan.image, tiles, channels=plan.channels, measured=plan.measured, region=region
    )
