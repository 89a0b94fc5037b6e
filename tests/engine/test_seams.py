"""Counting objects at seams and control lines."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import worlds

from cytopave.engine import seams
from cytopave.engine.seams import MIN_PIXELS, MOST_PLACES, SeamCounter, SeamReport, compare_lines
from cytopave.engine.tiling import Grid


def ends(before: np.ndarray, after: np.ndarray) -> tuple[int, int]:
    """Objects met and objects that end, by definition: one object after the other."""
    met, cut = set(), 0
    for plane, other in ((before, after), (after, before)):
        for label in set(plane[plane > 0].tolist()):
            if (plane == label).sum() >= MIN_PIXELS:
                met.add(label)
                cut += label not in other
    return len(met), cut


def by_definition(grid: Grid, image: np.ndarray) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """For each axis what is met and cut at all seams, and at all control lines."""
    counts = []
    for axis in range(image.ndim):
        seam, control = np.zeros(2, int), np.zeros(2, int)
        for tile in grid:
            core = image[tile.core.slices]
            middle = core.shape[axis] // 2
            if middle:
                control += ends(core.take(middle - 1, axis), core.take(middle, axis))
            if tile.position[axis] < grid.counts[axis] - 1:
                step = tuple(int(a == axis) for a in range(image.ndim))
                (after,) = (t for s, t in grid.neighbours(tile) if s == step)
                seam += ends(core.take(-1, axis), image[after.core.slices].take(0, axis))
        counts.append((tuple(seam.tolist()), tuple(control.tolist())))
    return counts


def numbers(report: SeamReport) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return [((a.seams.met, a.seams.cut), (a.control.met, a.control.cut)) for a in report.axes]


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize(
    ("shape", "tile", "halo"),
    [((90, 70), (24, 20), (4, 4)), ((12, 40, 44), (5, 16, 15), (1, 3, 3))],
)
def test_counts_are_what_they_are_called(
    shape: tuple[int, ...],
    tile: tuple[int, ...],
    halo: tuple[int, ...],
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seams, "_PIXELS_AT_ONCE", at_once)
    grid = Grid(shape, tile, halo)
    image = worlds.confluent(shape, pitch=9, gap=1).astype(np.int64)
    image[grid[0].core.slices] += 1000 * (image[grid[0].core.slices] > 0)  # cuts along its seams
    counter = SeamCounter(grid)
    for t in grid:
        counter.add(t, image[t.core.slices].astype(np.uint32))
    assert numbers(counter.report("zyx"[-len(shape) :])) == by_definition(grid, image)


def test_parts_counted_apart_are_the_whole() -> None:
    grid = Grid((90, 70), (24, 20), (4, 4))
    image = worlds.confluent(grid.shape, pitch=9).astype(np.uint32)
    whole = SeamCounter(grid)
    for part in itertools.batched(np.random.default_rng(0).permutation(len(grid)).tolist(), 4):
        counter = SeamCounter(grid)
        for index in part:
            counter.add(grid[index], image[grid[index].core.slices])
        whole.join(counter.state())
    assert numbers(whole.report("yx")) == by_definition(grid, image)


def test_time_points_do_not_meet() -> None:
    grid = Grid((20, 40), (20, 20), (4, 4), times=2)
    counter = SeamCounter(grid)
    for tile in grid:
        counter.add(tile, np.full(tile.core.shape, 1 + tile.time, np.uint32))
    (axis,) = counter.report("yx").axes
    assert (axis.seams.met, axis.seams.cut) == (2, 0)


def test_ids_past_32_bits_are_told_apart() -> None:
    before = np.full(8, 2**33 + 1, np.uint64)
    after = np.full(8, 1, np.uint64)
    met, ends = compare_lines([(before, after), (after, after)])
    assert met == 3
    assert ends.tolist() == [[0, 0], [0, 0]]


def places_by_definition(grid: Grid, image: np.ndarray) -> set[tuple[int, ...]]:
    """The first pixel, beside its seam, of each object that ends there."""
    found = set()
    for tile in grid:
        for axis in range(image.ndim):
            seam = tile.core.stop[axis]
            if tile.position[axis] == grid.counts[axis] - 1:
                continue
            box = list(tile.core.slices)
            box[axis] = slice(seam - 1, seam)
            beyond = list(box)
            beyond[axis] = slice(seam, seam + 1)
            planes = image[tuple(box)], image[tuple(beyond)]
            for plane, other in (planes, planes[::-1]):
                for label in set(plane[plane > 0].tolist()) - set(other.ravel().tolist()):
                    at = np.argwhere(plane == label)
                    if len(at) >= MIN_PIXELS:
                        origin = [s.start for s in box]
                        found.add((tile.time, *(at[0] + origin).tolist()))
    return found


@pytest.mark.parametrize(
    ("shape", "tile"), [((90, 70), (24, 20)), ((12, 40, 44), (5, 16, 15)), ((300, 280), (24, 20))]
)
def test_the_places_are_where_objects_end(shape: tuple[int, ...], tile: tuple[int, ...]) -> None:
    grid = Grid(shape, tile, (1,) * len(shape))
    image = worlds.confluent(shape, pitch=9, gap=1).astype(np.uint32)
    for index in range(0, len(grid), 3):
        core = image[grid[index].core.slices]
        core[core > 0] += 1000 * index
    whole = SeamCounter(grid)
    for part in itertools.batched(np.random.default_rng(1).permutation(len(grid)).tolist(), 5):
        counter = SeamCounter(grid)
        for index in part:
            counter.add(grid[index], image[grid[index].core.slices])
        whole.join(counter.state())
    expected = sorted(places_by_definition(grid, image))
    assert len(expected) > 10
    assert whole.report("zyx"[-len(shape) :]).cut == expected[:MOST_PLACES]
