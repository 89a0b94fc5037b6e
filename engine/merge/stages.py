"""The merge of a planned run, cut into stages whose work can be spread over workers.

``scan_tiles`` (any number of groups) -> ``resolve_run`` (once) -> ``write_blocks`` (any number of
groups). Each stage leaves files in the plan's merge folder, written whole or not at all.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.allocator import keep_freed_memory
from cytopave.engine.lazy import grouped
from cytopave.engine.merge.links import LINK, scan
from cytopave.engine.merge.paint import Painter
from cytopave.engine.merge.resolve import Resolution, resolve
from cytopave.engine.pipeline import Pipeline
from cytopave.engine.scratch.archive import Archive, write_archive, write_array
from cytopave.engine.scratch.tiles import OpenTiles
from cytopave.engine.scratch.views import VIEW
from cytopave.engine.seams import SeamCounter, SeamReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from cytopave.engine.omezarr.labels import WriteBlock
    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.tables.moments import Sums


MOST_THREADS = 4
"""On 16 cores, 16 tiles of 2048 x 2048 took 0.72 s by one thread, 0.46 s by 4, 0.51 s by 8 and
0.59 s by 16: much of it holds Python's lock (benchmarks/RESULTS.md)."""
_IN_HAND = 3
"""Blocks that each of them paints and writes at a time."""
_PIXELS_AT_ONCE = 1 << 27
"""Pixels of all these blocks, at most."""

_RESOLUTION = ("offsets", "final", "mode", "suspects")


def threads_for(cores: int, neighbours: int) -> int:
    """Threads that a task may use: its share of the cores, where workers leave some idle.

    Args:
        cores: Those that the worker may run on.
        neighbours: Tasks that run on its host at once.
    """
    return max(1, min(MOST_THREADS, cores // neighbours))


def scan_tiles(plan: Plan, tiles: Sequence[int], *, threads: int = 1) -> int:
    """Find the links of a group of tiles with their later neighbours; returns their number.

    Raises:
        CorruptError: A tile's file is missing or damaged.
    """
    keep_freed_memory()

    def scanned(part: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
        opened = OpenTiles(plan.scratch)
        return scan(opened, plan.grid, part, plan.merge), [opened[i][1] for i in part]

    parts = _each_part(scanned, tiles, threads)
    links = np.concatenate([found for found, _ in parts])
    tables = [table for _, own in parts for table in own]
    members = {
        "tiles": np.asarray(tiles, np.int64),
        "counts": np.array([len(t) for t in tables], np.int64),
        "views": np.concatenate([np.zeros(0, VIEW), *tables]),
        "links": links,
    }
    write_archive(_path(plan, "links", tiles), members)
    return len(links)


def resolve_run(plan: Plan, groups: Sequence[Sequence[int]]) -> Resolution:
    """Decide about all views of the run and store the decision where painters find it.

    Args:
        plan: The run.
        groups: The groups of tiles that were scanned.

    Raises:
        CorruptError: A file is missing or damaged.
    """
    archives = [Archive.open(_path(plan, "links", group)) for group in groups]
    counts = np.zeros(len(plan.grid), np.int64)
    parts = [np.zeros(0, LINK)]
    for archive in archives:
        tiles, count, found = archive.read("tiles", "counts", "links")
        counts[tiles] = count
        parts.append(found)
    links = np.concatenate(parts)
    parts.clear()  # in a large run they are a good part of all memory
    result = resolve(counts, _tables(archives), links, plan.merge)
    for name in _RESOLUTION:
        write_array(plan.merge_folder / "resolution" / f"{name}.npy", getattr(result, name))
    return result


def load_resolution(folder: Path) -> Resolution:
    """The stored decision, mapped into memory: a painter reads only its tiles' share of it."""
    arrays: dict[str, Any] = {
        name: np.load(folder / "resolution" / f"{name}.npy", mmap_mode="r") for name in _RESOLUTION
    }
    return Resolution(**arrays, n_objects=-1, n_joined=-1)


def write_blocks(plan: Plan, blocks: Sequence[WriteBlock], *, threads: int = 1) -> int:
    """Paint and write blocks of the label image; returns the number of pixels written.

    Where a table is wanted, each core is measured with the block that it begins in.

    Raises:
        CorruptError: A tile's file is missing or damaged.
    """
    keep_freed_memory()
    resolution = load_resolution(plan.merge_folder)
    largest = max(block.box.size for block in blocks)
    threads = min(threads, max(1, _PIXELS_AT_ONCE // (_IN_HAND * largest)))
    seams = SeamCounter(plan.grid)
    for counted in _each_part(lambda part: _written(plan, part, resolution), blocks, threads):
        seams.join(counted.state())
    write_archive(_path(plan, "planes", blocks), seams.state())
    return sum(block.box.size for block in blocks)


def _written(plan: Plan, blocks: Sequence[WriteBlock], resolution: Resolution) -> SeamCounter:
    """Paint and write blocks, one after the other; returns what their seams look like."""
    painter = Painter(plan.scratch, plan.grid, resolution)
    seams, sums = SeamCounter(plan.grid), plan.sums

    def paint(block: WriteBlock, _: None) -> np.ndarray:
        labels = np.empty(block.box.shape, resolution.final.dtype)
        rows: list[Sums] = []
        for tile in plan.grid.covering(block.time, block.box):
            core = painter.paint(tile.index)
            part = tile.core.intersect(block.box)
            labels[part.within(block.box)] = core[part.within(tile.core)]
            if not block.box.contains(tile.core.start):
                continue  # once a core
            # What ends where a tile is missing says nothing about the seams.
            if tile.index not in plan.scratch.left_out:
                seams.add(tile, core)
            if sums:
                archive, final = painter.archive(tile.index), painter.final(tile.index)
                rows += sums.of_core(tile, archive, final, core)
        if sums:
            sums.commit(block, rows)
        return labels

    # While a block is painted, those before it are compressed and written.
    pipeline = Pipeline(lambda _: None, paint, plan.target.writer().write, bound=_IN_HAND)
    with closing(pipeline.run(blocks)) as written:
        for _, _, error in written:
            if error is not None:
                raise error
    return seams


def _each_part[T, R](work: Callable[[Sequence[T]], R], items: Sequence[T], threads: int) -> list[R]:
    """Cut items into as many runs of neighbours as there are threads, and work on each in one."""
    parts = grouped(items, threads)
    if len(parts) == 1:
        return [work(items)]
    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(work, parts))


def count_seams(plan: Plan, groups: Sequence[Sequence[WriteBlock]]) -> SeamReport:
    """The seam report of a run whose blocks were written in these groups."""
    seams = SeamCounter(plan.grid)
    for group in groups:
        archive = Archive.open(_path(plan, "planes", group))
        seams.join(dict(zip(archive.index, archive.read(*archive.index), strict=True)))
    suspects = load_resolution(plan.merge_folder).suspects
    return seams.report(plan.image.spatial_axes, suspects)


def _path(plan: Plan, kind: str, group: Sequence[object]) -> Path:
    """Where a group's file lies; runs that group differently do not meet."""
    name = hashlib.sha256(repr(tuple(group)).encode()).hexdigest()[:16]
    return plan.merge_folder / kind / f"{name}.zip"


def _tables(archives: Sequence[Archive]) -> Iterator[tuple[int, np.ndarray]]:
    for archive in archives:
        tiles, counts, views = archive.read("tiles", "counts", "views")
        yield from zip(tiles.tolist(), np.split(views, np.cumsum(counts)[:-1]), strict=True)
