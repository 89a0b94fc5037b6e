"""Tiles that fit a device only in parts: the same labels, and nothing tried that cannot work."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import math
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import stores
import torch
from hypothesis import given
from hypothesis import strategies as st
from images import ImageOf, nuclei
from placed import Run
from runs import blobs, components, labels_of, merge_here, plan_of
from tiled import merge

from cytopave.engine import samples, segment, split
from cytopave.engine.boxes import Box
from cytopave.engine.errors import LabelError, OutOfMemoryError, TileError
from cytopave.engine.gpu.vram import GIB, Gpu
from cytopave.engine.omezarr.image import Image  # noqa: TC001  pydantic looks it up
from cytopave.engine.scratch.tiles import Scratch
from cytopave.engine.segment import Work, segment_tiles
from cytopave.engine.segmenters import Cellpose, Custom, Threshold
from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.cellpose_weights import installed
from cytopave.engine.segmenters.memory import CONTEXT_BYTES
from cytopave.engine.segmenters.place import Place  # noqa: TC001  pydantic looks it up
from cytopave.engine.segmenters.steps import Steps
from cytopave.engine.split import ever_smaller
from cytopave.engine.tables.read import open_table
from cytopave.engine.tiling import Grid, Tiling

SHAPE = (200, 150)
GRID = Grid(SHAPE, (64, 64), (16, 16))
ALL = tuple(range(len(GRID)))
WHOLE = Box((48, 48), (144, 144))  # the window of tile 4
HALVES = [Box((48, 48), (112, 144)), Box((80, 48), (144, 144))]
QUARTERS = [
    Box((48, 48), (112, 112)),
    Box((48, 80), (112, 144)),
    Box((80, 48), (144, 112)),
    Box((80, 80), (144, 144)),
]
SHORTAGE = "CUDA out of memory. Tried to allocate 2.00 GiB"


class Held:
    """Memory of a device."""


class Card(SegmenterBase):
    """Connected components on a device that takes the windows that a test lets it take.

    It reads some pixels more than the window, and writes into what it gets.
    """

    patches: int = 2
    takes: ClassVar[Callable[[str, Box, int], bool]]
    tried: ClassVar[list[tuple[Box, int]]]
    held: ClassVar[weakref.WeakSet[Any]]
    released: ClassVar[int]

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        return self

    def load(self) -> LabelFunction:
        raise NotImplementedError

    def region(self, window: Box, shape: tuple[int, ...]) -> Box:
        return window.grow((3,) * len(shape)).intersect(Box.of(shape))

    def smaller(self) -> Self | None:
        return self.model_copy(update={"patches": self.patches // 2}) if self.patches > 1 else None

    def release(self) -> None:
        type(self).released += 1

    def device_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        return CONTEXT_BYTES + 1024 * math.prod(window_shape)

    def _take(self, step: str, place: Place) -> Held:
        held = Held()
        type(self).held.add(held)
        if not type(self).takes(step, place.window, self.patches):
            raise RuntimeError(SHORTAGE)
        return held

    def steps(self, place: Place) -> Steps:
        def prepare(pixels: np.ndarray) -> np.ndarray:
            mask: np.ndarray = pixels[place.window.within(place.region)] > 0
            pixels[:] = 1
            return mask

        def begin(mask: np.ndarray) -> tuple[Held, np.ndarray]:
            type(self).tried.append((place.window, self.patches))
            return self._take("begin", place), mask

        def settle(begun: tuple[Held, np.ndarray]) -> list[np.ndarray]:
            self._take("settle", place)
            return [begun[1]]

        def finish(settled: list[np.ndarray]) -> np.ndarray:
            return components(settled[0])

        return Steps(prepare=prepare, begin=begin, settle=settle, finish=finish)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> type[Card]:
    monkeypatch.setattr(Card, "tried", [], raising=False)
    monkeypatch.setattr(Card, "held", weakref.WeakSet(), raising=False)
    monkeypatch.setattr(Card, "released", 0, raising=False)
    return Card


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch, card: type[Card]) -> Callable[..., None]:
    """Sets which windows the device takes."""

    def set_it(function: Callable[[str, Box, int], bool]) -> None:
        monkeypatch.setattr(card, "takes", staticmethod(function), raising=False)

    return set_it


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many bytes of the device the driver says are free."""

    def set_it(size: int) -> None:
        sizes = {"total_bytes": GIB, "free_bytes": size, "budget_bytes": size}
        seen = Gpu(visible=True, name="Card", source="nvml", note="", **sizes)
        for module in (segment, split):
            monkeypatch.setattr(module, "probe_gpu", lambda: seen)

    return set_it


@pytest.fixture
def mask() -> np.ndarray:
    return np.asarray(blobs(SHAPE))


@pytest.fixture
def image(tmp_path: Path, mask: np.ndarray) -> Image:
    return ImageOf(tmp_path)(mask.astype(np.uint8))


def run_on(image: Image, root: Path, segmenter: SegmenterBase, grid: Grid = GRID) -> Any:
    return Run("digest", image, (), grid, segmenter, Scratch(root))


def files(scratch: Scratch) -> dict[int, bytes]:
    """What was committed, without the times that a zip keeps."""
    return {
        i: b"".join(a.tobytes() for a in archive.read(*archive.index))
        for i in sorted(scratch.finished())
        for archive in [scratch.open(i)]
    }


def undisturbed(image: Image, root: Path, grid: Grid = GRID) -> dict[int, bytes]:
    run = run_on(image, root, Threshold(threshold=0.5), grid)
    segment_tiles(run, tuple(range(len(grid))))
    return files(run.scratch)


def left_in(run: Any) -> list[Path]:
    """What is left of parts."""
    return list((run.scratch.root / "parts").glob("*"))


@pytest.mark.parametrize("step", ["begin", "settle"])
@pytest.mark.parametrize(("room", "parts"), [(96 * 64, 2), (64 * 64, 4)])
def test_a_tile_in_parts_is_the_tile(
    image: Image,
    mask: np.ndarray,
    tmp_path: Path,
    card: type[Card],
    takes: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    room: int,
    parts: int,
    step: str,
) -> None:
    takes(lambda at, window, _: at != step or window.size <= room)
    run = run_on(image, tmp_path / "s", card())
    work = segment_tiles(run, ALL)
    large = [tile for tile in GRID if tile.window.size > room]
    assert (work.tiles, work.split) == (len(GRID), len(large))
    assert 0 < len(large) <= len(GRID)
    assert files(run.scratch) == undisturbed(image, tmp_path / "plain")
    np.testing.assert_array_equal(merge(GRID, run.scratch)[0], components(mask))
    assert left_in(run) == []
    told = [r.getMessage() for r in caplog.records if "parts" in r.getMessage()]
    assert len(told) == len(large)
    assert f"{GRID[4]}: {SHORTAGE}; it was computed in {parts} parts" in told
    whole = components(mask[WHOLE.slices])
    assert len(np.unique(whole[47:49, :][:, (whole[47] > 0) & (whole[48] > 0)])) > 2, "cut objects"


@pytest.mark.parametrize("step", ["begin", "settle"])
def test_parts_that_do_not_fit_are_cut_again(
    image: Image, tmp_path: Path, card: type[Card], takes: Callable[..., None], step: str
) -> None:
    alive: list[int] = []

    def room(at: str, window: Box, _: int) -> bool:
        gc.collect()
        alive.append(len(card.held))
        return at != step or window not in (WHOLE, HALVES[1])

    takes(room)
    run = run_on(image, tmp_path / "s", card())
    assert segment_tiles(run, (4,)).split == 1
    smallest = [*HALVES, *QUARTERS]
    assert card.tried == [(WHOLE, 2), (WHOLE, 1), *((window, 1) for window in smallest)]
    assert card.released == 3, "after the whole tile, twice, and after the halves"
    assert max(alive) <= 2, "one of this step and one of the step before: none of what failed"
    assert files(run.scratch)[4] == undisturbed(image, tmp_path / "plain")[4]
    assert left_in(run) == []


def test_a_full_card_is_left_alone(
    image: Image,
    tmp_path: Path,
    card: type[Card],
    takes: Callable[..., None],
    free: Callable[[int], None],
) -> None:
    takes(lambda *_: False)
    free(1024 * 64 * 64 - 1)
    run = run_on(image, tmp_path / "s", card())
    with pytest.raises(OutOfMemoryError, match=r"needs 0\.69 GiB at the least, and the Card has"):
        segment_tiles(run, (4,))
    assert card.tried == [(WHOLE, 2), (WHOLE, 1)]
    assert not (run.scratch.root / "parts").exists()


def test_parts_are_as_small_as_the_card_is_full(
    image: Image,
    tmp_path: Path,
    card: type[Card],
    takes: Callable[..., None],
    free: Callable[[int], None],
) -> None:
    takes(lambda _, window, __: window.size <= 64 * 64)
    free(1024 * 64 * 64)
    segment_tiles(run_on(image, tmp_path / "s", card()), (4,))
    assert card.tried == [(WHOLE, 2), (WHOLE, 1), *((window, 1) for window in QUARTERS)]


def test_a_tile_of_which_no_part_fits_waits_for_another_attempt(
    image: Image, tmp_path: Path, card: type[Card], takes: Callable[..., None]
) -> None:
    takes(lambda step, window, _: step != "settle" or window.intersect(WHOLE) != window)
    run = run_on(image, tmp_path / "s", card())
    with pytest.raises(OutOfMemoryError) as caught:
        segment_tiles(run, ALL)
    assert str(caught.value) == f"{GRID[4]}: {SHORTAGE}"
    within = [window for window, _ in card.tried if window.intersect(WHOLE) == window]
    assert within == [WHOLE, WHOLE, HALVES[0], QUARTERS[0]]
    assert run.scratch.finished() == set(ALL) - {4}
    assert not card.held, "the wait for another attempt holds nothing"
    assert left_in(run) == []


def test_any_other_failure_of_a_part_is_the_tiles(
    image: Image, tmp_path: Path, card: type[Card], takes: Callable[..., None]
) -> None:
    def fails(step: str, window: Box, patches: int) -> bool:
        if window == HALVES[1]:
            raise ValueError("not this one")
        return window != WHOLE

    takes(fails)
    run = run_on(image, tmp_path / "s", card())
    with pytest.raises(TileError, match=r"tile 4 .*ValueError: not this one"):
        segment_tiles(run, ALL)
    assert run.scratch.finished() == set(ALL) - {4}
    assert left_in(run) == []


def test_parts_are_checked_as_tiles_are(
    image: Image,
    tmp_path: Path,
    card: type[Card],
    takes: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takes(lambda _, window, __: window != WHOLE)
    of = card.steps
    wrong = {"finish": lambda settled: settled[0].astype(float)}
    monkeypatch.setattr(card, "steps", lambda *a: dataclasses.replace(of(*a), **wrong))
    run = run_on(image, tmp_path / "s", card())
    with pytest.raises(LabelError, match=r"on a part of tile 4 .* returned float64 values"):
        segment_tiles(run, (4,))
    assert left_in(run) == []


def test_a_tile_with_nothing_in_it(
    tmp_path: Path, card: type[Card], takes: Callable[..., None]
) -> None:
    takes(lambda _, window, __: window != WHOLE)
    run = run_on(ImageOf(tmp_path)(np.zeros(SHAPE, np.uint8)), tmp_path / "s", card())
    work = segment_tiles(run, (4,))
    assert (work.tiles, work.labels, work.split) == (1, 0, 1)


@pytest.mark.parametrize(
    ("thick", "halo"), [(1, (0, 16, 16)), (3, (0, 16, 16)), (3, (1, 16, 16))], ids=str
)
def test_planes_stay_together(
    tmp_path: Path,
    card: type[Card],
    takes: Callable[..., None],
    thick: int,
    halo: tuple[int, ...],
) -> None:
    """Cut along Z, where tiles have no halo, sections would be joined by their looks."""
    image = ImageOf(tmp_path)(blobs((3, 100, 130)).astype(np.uint8))
    grid = Grid((3, 100, 130), (thick, 64, 64), halo)
    takes(lambda _, window, __: window.size <= thick * 64 * 64)
    run = run_on(image, tmp_path / "s", card(), grid)
    assert segment_tiles(run, tuple(range(len(grid)))).split == len(grid)
    assert files(run.scratch) == undisturbed(image, tmp_path / "plain", grid)
    assert {window.shape[0] for window, _ in card.tried} == {thick}


def test_tiles_that_are_measured_while_they_are_in_memory(tmp_path: Path) -> None:
    """Whose pixels are read for two ends, of several channels, and are read again."""
    world = 30 * blobs((150, 170)).astype(np.uint16)
    noise = [stores.pixels(world.shape, seed=seed) for seed in (1, 2)]
    pixels = np.stack([noise[0], world, noise[1]])
    found = []
    for name, room in (("plain", 10**9), ("parts", 4096)):
        (tmp_path / name).mkdir()
        image = stores.ome_image(tmp_path / name / "image.zarr", pixels, axes="cyx")
        plan = plan_of(
            image,
            segmenter=Custom(function="tile_functions:of_little_memory", kwargs={"pixels": room}),
            channels=[2, 1],
            tiling=Tiling(tile=(64, 64), halo=16),
            measure=True,
        )
        assert plan.measured_in_tiles
        count = sum(segment_tiles(plan, batch).split for batch in plan.batches)
        merge_here(plan, table=True)
        table = open_table(image, "cells").read()
        found.append((labels_of(image), {k: v.tobytes() for k, v in table.items()}, count))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[0][0].max() > 10
    assert found[0][1] == found[1][1]
    large = [tile for tile in plan.grid if tile.window.size > 4096]
    assert (found[0][2], found[1][2]) == (0, len(large)) == (0, 6)


@pytest.mark.skipif(installed()[1] != 4, reason="the bundled network runs in Cellpose 4")
def test_cellpose_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose patches reach far beyond the window of a part, and are the same in all of them."""
    pixels, _ = samples.mosaic(samples.nuclei_fields("held-out"), 1, 1, side=384)
    image = ImageOf(tmp_path)(pixels[:300, :320])
    tiny = Cellpose(model="nuclei-tiny", device="cpu", batch_size=1).resolve(image, channels=())
    grid = Grid((300, 320), (300, 320), (64, 64))
    whole = run_on(image, tmp_path / "whole", tiny, grid)
    assert segment_tiles(whole, (0,)).split == 0
    of = Cellpose.steps

    def tight(self: Cellpose, place: Place) -> Steps:
        steps = of(self, place)

        def begin(prepared: Any) -> Any:
            begun = steps.begin(prepared)
            if place.window.shape == (300, 320):
                raise RuntimeError(SHORTAGE)
            return begun

        return dataclasses.replace(steps, begin=begin)

    monkeypatch.setattr(Cellpose, "steps", tight)
    parts = run_on(image, tmp_path / "parts", tiny, grid)
    work = segment_tiles(parts, (0,))
    assert (work.split, work.labels > 10) == (1, True)
    assert files(parts.scratch) == files(whole.scratch)


@pytest.mark.gpu
@pytest.mark.skipif(installed()[1] != 4, reason="the bundled network runs in Cellpose 4")
def test_a_card_whose_memory_suffices_for_parts_alone(tmp_path: Path) -> None:
    """The real thing: torch may have six tenths of what the whole tile takes."""
    image = ImageOf(tmp_path)(np.tile(nuclei((512, 512)), (4, 4)))
    tiny = Cellpose(model="nuclei-tiny", device="cuda", batch_size=1).resolve(image, channels=())
    grid = Grid(image.spatial_shape, (2048, 2048), (64, 64))
    whole, parts = (run_on(image, tmp_path / name, tiny, grid) for name in ("whole", "parts"))
    tiny.release()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert segment_tiles(whole, (0,)).split == 0
    peak = torch.cuda.max_memory_allocated()
    tiny.release()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        0.6 * peak / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        assert segment_tiles(parts, (0,)).split == 1
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    np.testing.assert_array_equal(merge(grid, whole.scratch)[0], merge(grid, parts.scratch)[0])


def test_results_of_earlier_versions_are_read() -> None:
    work = Work(tiles=3, labels=70)
    del vars(work)["split"]
    again = pickle.loads(pickle.dumps(work))
    assert (again.split, again) == (0, Work(tiles=3, labels=70))


def test_the_longest_axis_is_cut_first() -> None:
    def cuts(*args: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [grid.tile for grid in ever_smaller(*args)]

    assert cuts((96, 96), (16, 16)) == [(48, 96), (48, 48)]
    assert cuts((100, 400), (20, 20)) == [
        (100, 200),
        (100, 100),
        (50, 100),
        (50, 50),
        (50, 25),
    ]
    assert cuts((1, 96, 96), (0, 16, 16)) == [(1, 48, 96), (1, 48, 48)]
    assert cuts((200, 96, 96), (0, 16, 16)) == [(200, 48, 96), (200, 48, 48)]
    assert cuts((40, 300, 300), (8, 64, 64)) == [(40, 150, 300), (40, 150, 150), (20, 150, 150)]
    assert cuts((96, 96), (0, 0)) == []
    assert cuts((96, 96), (60, 60)) == []
    assert cuts((5, 5), (1, 1)) == []


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 70)), min_size=2, max_size=3).filter(
        lambda axes: math.prod(n for n, _ in axes) < 10**6
    )
)
def test_parts_partition_the_window_and_shrink_to_an_end(axes: list[tuple[int, int]]) -> None:
    shape, halo = zip(*axes, strict=True)
    grids = list(itertools.islice(ever_smaller(shape, halo), 100))
    assert len(grids) < 100
    largest = [math.prod(shape)]
    for grid in grids:
        assert (grid.shape, grid.halo) == (shape, halo)
        assert all(t == n for n, t, h in zip(shape, grid.tile, halo, strict=True) if not h)
        sizes = []
        drawn = np.zeros(shape, np.uint8) if len(grid) < 100 else None
        for part in grid:
            sizes.append(part.window.size)
            assert part.window == part.core.grow(halo).intersect(Box.of(shape))
            if drawn is not None:
                drawn[part.core.slices] += 1
        assert drawn is None or (drawn == 1).all()
        largest.append(max(sizes))
    assert all(4 * b <= 3 * a for a, b in itertools.pairwise(largest))
