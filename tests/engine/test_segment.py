"""A batch of tiles: the same files however much overlaps, and what a failing tile does."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
from images import ImageOf
from placed import Run
from runs import blobs, components

from cytopave.engine import segment, split
from cytopave.engine.errors import LabelError, OutOfMemoryError, TileError
from cytopave.engine.gpu.vram import GIB, Gpu
from cytopave.engine.omezarr.image import Image
from cytopave.engine.reading import TileReader
from cytopave.engine.scratch.tiles import Scratch
from cytopave.engine.segment import Work, segment_tiles
from cytopave.engine.segmenters import Cellpose, Threshold
from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.place import Place  # noqa: TC001  pydantic looks it up
from cytopave.engine.segmenters.steps import Steps
from cytopave.engine.tiling import Grid, Tile

SECONDS = 20
"""Longest wait for what should happen meanwhile."""
SHAPE = (300, 260)
GRID = Grid(SHAPE, (64, 64), (16, 16))
ALL = tuple(range(len(GRID)))


class Call(SegmenterBase):
    """Any function, held by the class: a value that only tests need."""

    function: ClassVar[Callable[[np.ndarray], np.ndarray]]

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        return self

    def load(self) -> LabelFunction:
        return type(self).function


class OnDevice(SegmenterBase):
    """A device whose memory is the number of patches in it; it begins, settles and finishes.

    By count it is full, so that no tile is tried in parts: test_split.py is about these.
    """

    patches: int = 8
    room: ClassVar[Callable[[str, Place, int], bool]]
    steps_taken: ClassVar[list[tuple[str, int, int]]]
    held: ClassVar[weakref.WeakSet[Any]]
    released: ClassVar[int]

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        return self

    def load(self) -> LabelFunction:
        raise NotImplementedError

    def smaller(self) -> Self | None:
        return self.model_copy(update={"patches": self.patches // 2}) if self.patches > 1 else None

    def release(self) -> None:
        type(self).released += 1

    def device_bytes(self, window_shape: tuple[int, ...], itemsize: int, n_channels: int) -> int:
        return 3 * GIB // 2 + self.patches

    def _on_device(self, step: str, place: Place) -> object:
        type(self).steps_taken.append((step, tile_of(place), self.patches))
        held = Held()
        type(self).held.add(held)
        if not type(self).room(step, place, self.patches):
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return held

    def steps(self, place: Place) -> Steps:
        def begin(pixels: np.ndarray) -> Any:
            return self._on_device("begin", place), pixels

        def settle(begun: Any) -> Any:
            self._on_device("settle", place)
            return components(begun[1] > 0)

        return Steps(begin=begin, settle=settle)


class Held:
    """Memory of a device."""


def tile_of(place: Place) -> int:
    return next(tile.index for tile in GRID if tile.window == place.window)


def run_on(image: Image, root: Path, segmenter: SegmenterBase, **options: Any) -> Any:
    return Run("digest", image, (), GRID, segmenter, Scratch(root), **options)


def files(scratch: Scratch) -> dict[int, bytes]:
    """What was committed, without the times that a zip keeps."""
    return {
        i: b"".join(a.tobytes() for a in archive.read(*archive.index))
        for i in sorted(scratch.finished())
        for archive in [scratch.open(i)]
    }


@pytest.fixture
def mask() -> np.ndarray:
    return np.asarray(blobs(SHAPE))


@pytest.fixture
def image(tmp_path: Path, mask: np.ndarray) -> Image:
    return ImageOf(tmp_path)(mask.astype(np.uint8))


@pytest.mark.parametrize("in_flight", [2, 3, 6])
def test_the_same_files_as_one_tile_after_the_other(
    image: Image, tmp_path: Path, in_flight: int
) -> None:
    segmenter = Threshold(threshold=0.5)
    runs = [run_on(image, tmp_path / f"{n}", segmenter, in_flight=n) for n in (1, in_flight)]
    works = [segment_tiles(run, ALL) for run in runs]
    assert files(runs[0].scratch) == files(runs[1].scratch)
    assert len(files(runs[0].scratch)) == len(GRID)
    facts = [(w.tiles, w.reused, w.labels, w.bytes_read) for w in works]
    assert facts[0] == facts[1]
    assert segment_tiles(runs[1], ALL) == Work(reused=len(GRID))


def test_patches_are_shared_in_the_same_way(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels = (4000 * blobs((400, 420), sigma=5) + random.normal(500, 90, (400, 420))).clip(0)
    image = ImageOf(tmp_path)(pixels.astype(np.uint16))
    grid = Grid(image.spatial_shape, (160, 160), (16, 16))
    segmenter = Cellpose(model="nuclei-tiny", device="cpu").resolve(image, channels=())
    runs = [
        replace(run_on(image, tmp_path / f"{n}", segmenter, in_flight=n), grid=grid, digest=f"{n}")
        for n in (1, 4)
    ]
    evaluated = []
    for run in runs:
        segmenter.release()
        segment_tiles(run, tuple(range(len(grid))))
        evaluated.append(segmenter._evaluator().evaluated)
    assert files(runs[0].scratch) == files(runs[1].scratch)
    assert evaluated == [6, 6], "each of the 2 x 3 patches of the image once"


def test_each_chunk_is_decoded_once(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: Counter[tuple[int, ...]] = Counter()
    read = Image.read_block

    def counted(self: Image, box: Any) -> np.ndarray:
        decoded.update(block.start for block in box.blocks(self.canonical_chunks))
        return read(self, box)

    monkeypatch.setattr(Image, "read_block", counted)
    segment_tiles(run_on(image, tmp_path / "s", Threshold(threshold=0.5), in_flight=6), ALL)
    assert set(decoded.values()) == {1}


def test_reading_computing_and_committing_meet(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = threading.Barrier(3)
    computed: list[int] = []
    read, commit = TileReader.read, Scratch.commit

    def reading(self: TileReader, tile: Tile) -> np.ndarray:
        if tile.index == 3:
            meeting.wait(SECONDS)
        return read(self, tile)

    def committing(self: Scratch, grid: Grid, tile: Tile, *content: Any) -> int:
        if tile.index == 1:
            meeting.wait(SECONDS)
        return commit(self, grid, tile, *content)

    def computing(pixels: np.ndarray) -> np.ndarray:
        if len(computed) == 2:
            meeting.wait(SECONDS)
        computed.append(1)
        return components(pixels > 0)

    monkeypatch.setattr(TileReader, "read", reading)
    monkeypatch.setattr(Scratch, "commit", committing)
    monkeypatch.setattr(Call, "function", staticmethod(computing), raising=False)
    assert segment_tiles(run_on(image, tmp_path / "s", Call()), ALL).tiles == len(GRID)


def test_functions_are_called_in_one_thread_in_order(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []
    threads: set[int] = set()

    def function(pixels: np.ndarray) -> np.ndarray:
        threads.add(threading.get_ident())
        seen.append(pixels.tobytes())
        return components(pixels > 0)

    monkeypatch.setattr(Call, "function", staticmethod(function), raising=False)
    segment_tiles(run_on(image, tmp_path / "s", Call()), ALL)
    assert threads == {threading.get_ident()}
    whole = np.asarray(image.array[...])
    assert seen == [whole[GRID[i].window.slices].tobytes() for i in ALL]


def test_seconds_add_up(image: Image, tmp_path: Path) -> None:
    seconds = segment_tiles(run_on(image, tmp_path / "s", Threshold(threshold=0.5)), ALL).seconds
    assert set(seconds) == {"read", "segment", "commit", "wait", "batch"}
    assert min(seconds.values()) >= 0
    assert seconds["segment"] + seconds["wait"] == pytest.approx(seconds["batch"])


def test_a_failing_tile_stops_nobody(
    image: Image, mask: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [mask[GRID[i].window.slices].astype(np.uint8).tobytes() for i in (2, 7)]

    def function(pixels: np.ndarray) -> np.ndarray:
        if pixels.tobytes() in bad:
            raise ValueError("not these")
        return components(pixels > 0)

    monkeypatch.setattr(Call, "function", staticmethod(function), raising=False)
    run = run_on(image, tmp_path / "s", Call())
    with pytest.raises(TileError) as caught:
        segment_tiles(run, ALL)
    assert str(caught.value) == "; ".join(f"{GRID[i]}: ValueError: not these" for i in (2, 7))
    assert run.scratch.finished() == set(ALL) - {2, 7}
    monkeypatch.setattr(Call, "function", staticmethod(lambda p: components(p > 0)))
    assert segment_tiles(run, ALL).tiles == 2


def test_what_is_no_label_image_stops_the_batch(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def function(pixels: np.ndarray) -> np.ndarray:
        calls.append(1)
        return pixels.astype(float)

    monkeypatch.setattr(Call, "function", staticmethod(function), raising=False)
    run = run_on(image, tmp_path / "s", Call(), in_flight=3)
    with pytest.raises(LabelError, match="float64 values"):
        segment_tiles(run, ALL)
    assert len(calls) <= 4
    assert run.scratch.finished() == set()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> type[OnDevice]:
    monkeypatch.setattr(OnDevice, "room", staticmethod(lambda *_: True), raising=False)
    monkeypatch.setattr(OnDevice, "steps_taken", [], raising=False)
    monkeypatch.setattr(OnDevice, "held", weakref.WeakSet(), raising=False)
    monkeypatch.setattr(OnDevice, "released", 0, raising=False)
    card = Gpu(
        visible=True,
        name="Card",
        total_bytes=8 * GIB,
        free_bytes=GIB // 2,
        budget_bytes=GIB // 2,
        source="nvml",
        note="",
    )
    for module in (segment, split):
        monkeypatch.setattr(module, "probe_gpu", lambda: card)
    return OnDevice


def test_the_device_begins_the_next_tile_before_it_settles_the_last(
    image: Image, tmp_path: Path, device: type[OnDevice]
) -> None:
    run = run_on(image, tmp_path / "s", device())
    segment_tiles(run, (0, 1, 2))
    order = [(step, tile) for step, tile, _ in device.steps_taken]
    assert order == [
        ("begin", 0),
        ("begin", 1),
        ("settle", 0),
        ("begin", 2),
        ("settle", 1),
        ("settle", 2),
    ]


@pytest.mark.parametrize("step", ["begin", "settle"])
def test_out_of_memory_is_met_with_smaller_batches(
    image: Image,
    mask: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: type[OnDevice],
    step: str,
) -> None:
    alive: list[int] = []

    def room(at: str, place: Place, patches: int) -> bool:
        if tile_of(place) == 4:
            gc.collect()
            alive.append(len(device.held))
        return at != step or tile_of(place) != 4 or patches <= 2

    monkeypatch.setattr(device, "room", staticmethod(room))
    run = run_on(image, tmp_path / "s", device())
    plain = run_on(image, tmp_path / "plain", Threshold(threshold=0.5))
    assert segment_tiles(run, ALL[:8]).tiles == 8
    segment_tiles(plain, ALL[:8])
    assert files(run.scratch) == files(plain.scratch)
    tried = [patches for at, tile, patches in device.steps_taken if (at, tile) == (step, 4)]
    assert tried == [8, 4, 2]
    assert {p for _, tile, p in device.steps_taken if tile > 5} == {2}, "it stays at what sufficed"
    assert device.released == 2
    # One tile that has begun, one that is settled, and this attempt: nothing of those that failed.
    assert max(alive) <= 3


def test_a_tile_that_never_fits_is_reported_and_the_others_are_kept(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: type[OnDevice]
) -> None:
    monkeypatch.setattr(
        device, "room", staticmethod(lambda at, place, _: at != "settle" or tile_of(place) != 4)
    )
    run = run_on(image, tmp_path / "s", device())
    with pytest.raises(OutOfMemoryError) as caught:
        segment_tiles(run, ALL[:8])
    assert str(GRID[4]) in str(caught.value)
    assert "Tried to allocate 2.00 GiB" in str(caught.value)
    assert "needs 1.50 GiB at the least" in str(caught.value)
    assert "the Card has 0.50 of 8.00 GiB free" in str(caught.value)
    assert "take a smaller tile" in str(caught.value)
    assert run.scratch.finished() == set(range(8)) - {4}
    assert not device.held, "the wait for another attempt holds nothing"


@pytest.mark.parametrize(("few", "told"), [((4, 6), "1 other tile"), ((2, 4, 6), "2 other tiles")])
def test_a_card_that_is_full_is_told_of_once_and_each_tile_is_known(
    image: Image,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: type[OnDevice],
    few: tuple[int, ...],
    told: str,
) -> None:
    monkeypatch.setattr(
        device,
        "room",
        staticmethod(lambda at, place, _: at != "settle" or tile_of(place) not in few),
    )
    with pytest.raises(OutOfMemoryError) as caught:
        segment_tiles(run_on(image, tmp_path / "s", device()), ALL[:8])
    assert str(caught.value).count("Tried to allocate 2.00 GiB") == 1
    assert str(caught.value).endswith(f"; the same of {told}")
    assert set(caught.value.tiles) == set(few)


def test_a_tile_that_lost_what_it_had_begun_is_begun_again_as_large_as_before(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: type[OnDevice]
) -> None:
    """Memory ran out for the next one, and with the network went what was not settled yet."""
    lost = [True]

    def room(at: str, place: Place, patches: int) -> bool:
        if (at, tile_of(place)) == ("begin", 2):
            return patches <= 4
        if (at, tile_of(place)) == ("settle", 1) and lost:
            lost.pop()
            return False
        return True

    monkeypatch.setattr(device, "room", staticmethod(room))
    segment_tiles(run_on(image, tmp_path / "s", device()), ALL[:4])
    of_one = [(step, patches) for step, tile, patches in device.steps_taken if tile == 1]
    assert of_one == [("begin", 8), ("settle", 8), ("begin", 4), ("settle", 4)]
