"""A reader gives every window exactly, and decodes each chunk once."""

from __future__ import annotations

import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import ZstdCodec

from cytopave.engine.boxes import Box
from cytopave.engine.errors import CorruptError
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.reading import TileReader, _runs, chunk_reads
from cytopave.engine.tiling import Grid, Tile


def grid_of(image: Image, tile: int, halo: int) -> Grid:
    shape = image.spatial_shape
    return Grid(shape, (tile,) * len(shape), (halo,) * len(shape), times=image.n_times)


def check(image: Image, tiles: list[Tile], reader: TileReader, channels: tuple[int, ...]) -> None:
    for tile in tiles:
        want = image.read(tile.window, time=tile.time, channels=channels)
        np.testing.assert_array_equal(reader.read(tile), want)


@pytest.fixture
def decodes(monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """Counts what is decompressed, by its compressed bytes (noise: no two chunks are alike)."""
    counts: Counter[bytes] = Counter()
    decode = ZstdCodec._decode_sync

    def counted(self: ZstdCodec, chunk_bytes: Any, chunk_spec: Any) -> Any:
        counts[chunk_bytes.to_bytes()] += 1
        return decode(self, chunk_bytes, chunk_spec)

    monkeypatch.setattr(ZstdCodec, "_decode_sync", counted)
    return counts


def test_tiles_that_are_done_without(tmp_path: Path, decodes: Counter[bytes]) -> None:
    """Chunks that only they need are not decoded, and none is kept for them."""
    data = stores.pixels((150, 130))
    stores.plain_array(tmp_path / "a.zarr", data, chunks=(16, 16))
    image = open_image(tmp_path / "a.zarr")
    tiles = list(grid_of(image, 32, 4))
    reader = TileReader(image, tiles, channels=())
    for one in tiles:
        if one.position[0] < 2:
            np.testing.assert_array_equal(reader.read(one), data[one.window.slices])
        else:
            reader.skip(one)
    assert (decodes.total(), reader.decoded) == (5 * 9, 5 * 9)  # 64 rows and the halo
    assert (reader.kept_bytes, reader._kept) == (0, {})


@pytest.mark.parametrize("shards", [None, (64, 64)])
@pytest.mark.parametrize(("tile", "halo"), [(32, 4), (48, 5), (20, 20), (200, 7)])
def test_each_chunk_is_decoded_once(
    tmp_path: Path,
    decodes: Counter[bytes],
    shards: tuple[int, int] | None,
    tile: int,
    halo: int,
) -> None:
    data = stores.pixels((150, 130))
    stores.plain_array(tmp_path / "a.zarr", data, chunks=(16, 16), shards=shards)
    image = open_image(tmp_path / "a.zarr")
    decodes.clear()  # compressing shards decodes them
    tiles = list(grid_of(image, tile, halo))
    reader = TileReader(image, tiles, channels=())
    for one in tiles:
        np.testing.assert_array_equal(reader.read(one), data[one.window.slices])
    # 10 x 9 chunks; a shard's index is not compressed.
    assert (len(decodes), decodes.total(), reader.decoded) == (90, 90, 90)
    assert (reader.kept_bytes, reader._kept) == (0, {})


def test_each_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stores.pixels((2, 100, 100))
    stores.ome_image(tmp_path / "i.zarr", data, axes="cyx", version="0.4", chunks=(1, 20, 20))
    image = open_image(tmp_path / "i.zarr")
    image.array  # noqa: B018  (opened before counting)
    traffic = stores.Traffic(monkeypatch)
    tiles = list(grid_of(image, 40, 8))
    check_reader = TileReader(image, tiles, channels=(1,))
    for one in tiles:
        np.testing.assert_array_equal(check_reader.read(one), data[1][one.window.slices])
    reads = traffic.chunks(traffic.reads)
    assert set(reads.values()) == {1}
    assert len(reads) == 25  # none of the other channel's


def test_runs_take_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores.plain_array(tmp_path / "a.zarr", stores.pixels((128, 128)), chunks=(16, 16))
    image = open_image(tmp_path / "a.zarr")
    calls: list[Any] = []
    getitem = zarr.Array.__getitem__

    def counted(self: Any, selection: Any) -> Any:
        calls.append(selection)
        return getitem(self, selection)

    monkeypatch.setattr(zarr.Array, "__getitem__", counted)
    tiles = list(grid_of(image, 64, 8))
    reader = TileReader(image, tiles, channels=())
    per_tile = []
    for one in tiles:
        before = len(calls)
        reader.read(one)
        per_tile.append(len(calls) - before)
    # The first takes its square of 5 x 5 chunks at once, the others what is left beside it.
    assert per_tile == [1, 1, 1, 1]


def test_what_is_kept_is_bounded(tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "a.zarr", stores.pixels((256, 256), "uint8"), chunks=(16, 16))
    image = open_image(tmp_path / "a.zarr")
    tiles = list(grid_of(image, 64, 8))
    reader = TileReader(image, tiles, channels=())
    for one in tiles:
        reader.read(one)
    # The two rows of chunks along the image that the next tiles share, and one tile's chunks.
    assert 2 * 16 * 256 <= reader.peak_bytes <= 2 * 16 * 256 + (64 + 2 * 16) ** 2


def test_outside_the_windows_nothing_is_kept(tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "a.zarr", stores.pixels((9, 3, 64, 64)), chunks=(9, 3, 64, 64))
    image = open_image(tmp_path / "a.zarr", axes="tcyx")
    grid = grid_of(image, 16, 2)
    tiles = [grid[0], grid[1]]
    reader = TileReader(image, tiles, channels=(1,))
    reader.read(tiles[0])
    assert reader.peak_bytes == 18 * 34 * 2  # one time, one channel, both windows, two bytes


@pytest.mark.parametrize(
    ("axes", "shape", "chunks"),
    [
        ("tczyx", (2, 3, 9, 40, 33), (1, 1, 4, 16, 16)),
        ("tczyx", (3, 3, 9, 40, 33), (2, 2, 9, 40, 10)),
        ("zcyx", (9, 3, 40, 33), (2, 3, 7, 33)),
        ("yxc", (40, 33, 3), (16, 16, 3)),
        ("yx", (40, 33), (40, 33)),
    ],
)
@pytest.mark.parametrize("channels", [(0,), (2, 0), (0, 1, 2)])
def test_all_axes(
    tmp_path: Path,
    axes: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    channels: tuple[int, ...],
) -> None:
    stores.plain_array(tmp_path / "a.zarr", stores.pixels(shape, "int16"), chunks=chunks)
    image = open_image(tmp_path / "a.zarr", axes=axes)
    picked = channels if "c" in axes else ()
    tiles = list(grid_of(image, 12, 3))
    reader = TileReader(image, tiles, channels=picked)
    check(image, tiles, reader, picked)
    decodes, chunks_needed = chunk_reads(image, [tiles], channels=picked)
    assert reader.decoded == decodes == chunks_needed
    assert reader.kept_bytes == 0


def test_a_tile_may_be_read_again(tmp_path: Path) -> None:
    data = stores.pixels((64, 64))
    stores.plain_array(tmp_path / "a.zarr", data, chunks=(16, 16))
    image = open_image(tmp_path / "a.zarr")
    tiles = list(grid_of(image, 32, 4))
    reader = TileReader(image, tiles, channels=())
    reader.read(tiles[0])
    decoded = reader.decoded
    np.testing.assert_array_equal(reader.read(tiles[0]), data[tiles[0].window.slices])
    assert decoded == 9
    assert reader.decoded == decoded + 1  # the corner that no other tile needs
    check(image, tiles[1:], reader, ())
    assert (reader.decoded, reader.kept_bytes) == (16 + 1, 0)


def test_another_readers_tile_is_a_bug(tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "a.zarr", stores.pixels((64, 64)), chunks=(16, 16))
    image = open_image(tmp_path / "a.zarr")
    tiles = list(grid_of(image, 32, 4))
    with pytest.raises(ValueError, match="is not one of the 1 tiles"):
        TileReader(image, tiles[:1], channels=()).read(tiles[1])


def test_threads(tmp_path: Path) -> None:
    data = stores.pixels((160, 160))
    stores.plain_array(tmp_path / "a.zarr", data, chunks=(16, 16))
    image = open_image(tmp_path / "a.zarr")
    tiles = list(grid_of(image, 32, 8))
    reader = TileReader(image, tiles, channels=())
    start = threading.Barrier(4)

    def work(part: list[Tile]) -> None:
        start.wait()
        for one in part:
            np.testing.assert_array_equal(reader.read(one), data[one.window.slices])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, [tiles[i::4] for i in range(4)]))
    assert (reader.decoded, reader.kept_bytes) == (100, 0)


def test_damage_is_named(tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "a.zarr", stores.pixels((64, 64)), chunks=(16, 16))
    file = stores.chunk_files(tmp_path / "a.zarr")[0]
    file.write_bytes(file.read_bytes()[:-9])
    image = open_image(tmp_path / "a.zarr")
    tiles = list(grid_of(image, 32, 4))
    reader = TileReader(image, tiles, channels=())
    name = re.escape(str(file.relative_to(tmp_path / "a.zarr")))
    with pytest.raises(CorruptError, match=rf"a\.zarr, file {name}, region y=0:16, x=0:16, is"):
        reader.read(tiles[0])
    assert reader.read(tiles[3]).any()


@pytest.mark.parametrize(("tile", "chunk", "batch"), [(256, 256, 5), (256, 128, 3), (512, 64, 1)])
def test_decodes_stay_within_twice_the_chunks(
    tmp_path: Path, tile: int, chunk: int, batch: int
) -> None:
    zarr.create_array(
        str(tmp_path / "a.zarr"), shape=(8192, 8192), chunks=(chunk, chunk), dtype="u2"
    )
    image = open_image(tmp_path / "a.zarr")
    grid = grid_of(image, tile, tile // 8)
    batches = [[grid[i] for i in block] for block in grid.blocks((batch, batch))]
    decodes, distinct = chunk_reads(image, batches)
    assert distinct == (8192 // chunk) ** 2
    assert distinct < decodes <= 2 * distinct


@given(st.sets(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4)), max_size=40))
def test_runs_cover_each_position_once(positions: set[tuple[int, int, int]]) -> None:
    cover = stores.partition_count((5, 5, 5), _runs(positions))
    want = np.zeros((5, 5, 5), int)
    for position in positions:
        want[position] = 1
    np.testing.assert_array_equal(cover, want)


def test_a_full_grid_is_one_run() -> None:
    assert list(_runs((y, x) for y in range(2, 5) for x in range(3))) == [Box((2, 0), (5, 3))]


@settings(max_examples=25, deadline=None)
@given(
    order=st.permutations(range(20)),
    tile=st.integers(20, 33),
    halo=st.integers(0, 20),
    chunk=st.integers(5, 60),
)
def test_any_order_and_tiling(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], tile: int, halo: int, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("a") / "a.zarr"
    data = stores.pixels((70, 90))
    stores.plain_array(path, data, chunks=(chunk, chunk))
    image = open_image(path)
    grid = grid_of(image, tile, halo)
    tiles = [grid[i] for i in order if i < len(grid)]
    reader = TileReader(image, tiles, channels=())
    for one in tiles:
        np.testing.assert_array_equal(reader.read(one), data[one.window.slices])
    assert reader.decoded == chunk_reads(image, [tiles])[1]
    assert reader.kept_bytes == 0


def test_a_region_around_the_window_is_read_and_decoded_once(
    tmp_path: Path, decodes: Counter[bytes]
) -> None:
    data = stores.pixels((150, 130))
    stores.plain_array(tmp_path / "a.zarr", data, chunks=(16, 16))
    image = open_image(tmp_path / "a.zarr")

    def around(tile: Tile) -> Box:
        return tile.window.grow((21, 9)).intersect(Box.of((150, 130)))

    tiles = list(grid_of(image, 40, 5))
    reader = TileReader(image, tiles, channels=(), region=around)
    for one in tiles:
        np.testing.assert_array_equal(reader.read(one), data[around(one).slices])
    assert (decodes.total(), reader.decoded, reader.kept_bytes) == (90, 90, 0)
