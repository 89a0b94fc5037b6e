"""Reading what many tiles need: each chunk is decoded once, and kept until its last use."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.boxes import Box

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.tiling import Tile

type Chunk = tuple[int, ...]
"""Position of a chunk in the grid of chunks: (T, C, [Z], Y, X)."""


def _window(tile: Tile) -> Box:
    return tile.window


class TileReader:
    """Reads the windows of tiles that are known in advance, or larger regions around them.

    Windows overlap by their halos, and chunks rarely end where tiles do, so that neighbours
    need the same chunks. The reader counts how many of its tiles need a chunk (the inner chunk
    where the image is sharded), decodes it for the first, and drops it after the last. Chunks
    that are needed together and lie side by side are read in one call. A tile may be read
    again: that decodes again what was dropped.

    Safe to use from several threads, one of which reads at a time.

    Attributes:
        decoded: Number of chunks decoded so far.
        kept_bytes: Bytes of the chunks kept now.
        bytes_read: Bytes of all pixels decoded so far.
        peak_bytes: The most that they ever were.
    """

    def __init__(
        self,
        image: Image,
        tiles: Sequence[Tile],
        *,
        channels: Sequence[int],
        region: Callable[[Tile], Box] = _window,
    ) -> None:
        """Make a reader.

        Args:
            image: What is read.
            tiles: All tiles that will be read.
            channels: Indices of channels; empty where the image has no channel axis.
            region: What to read for a tile; within the image.
        """
        self.decoded = 0
        self.kept_bytes = 0
        self.bytes_read = 0
        self.peak_bytes = 0
        self._image = image
        self._channels = tuple(channels) or tuple(range(image.n_channels))
        self._regions = {tile.index: region(tile) for tile in tiles}
        parts = [(tile.time, self._regions[tile.index]) for tile in tiles]
        self._bounds = _bounds(image, parts, self._channels)
        self._uses = Counter(c for part in parts for c in _chunks(image, *part, self._channels))
        self._unread = set(self._regions)
        self._kept: dict[Chunk, np.ndarray] = {}
        self._lock = threading.Lock()

    def read(self, tile: Tile) -> np.ndarray:
        """Pixels of a tile's region in native byte order.

        Returns:
            (C, [Z], Y, X) for more than one channel, else ([Z], Y, X).

        Raises:
            CorruptError: A chunk is truncated or damaged.
            ValueError: The tile is not one of the reader's.
        """
        if tile.index not in self._regions:
            raise ValueError(f"{tile} is not one of the {len(self._regions)} tiles of this reader")
        region = self._regions[tile.index]
        out = np.empty((len(self._channels), *region.shape), self._image.dtype)
        with self._lock:
            needed = list(_chunks(self._image, tile.time, region, self._channels))
            last = self._last_uses(tile, needed)
            for chunk in needed:
                if chunk in self._kept:
                    self._paste(self._kept[chunk], self._box(chunk), tile, out)
            for run in _runs(c for c in needed if c not in self._kept):
                self._read_run(run, tile, out, last)
            self._let_go(last)
        return out if len(self._channels) > 1 else out[0]

    def skip(self, tile: Tile) -> None:
        """Do without a tile: chunks that only it still needed are not read, or let go."""
        with self._lock:
            region = self._regions[tile.index]
            needed = list(_chunks(self._image, tile.time, region, self._channels))
            self._let_go(self._last_uses(tile, needed))

    def _let_go(self, chunks: set[Chunk]) -> None:
        for chunk in chunks & self._kept.keys():
            self.kept_bytes -= self._kept.pop(chunk).nbytes

    def _last_uses(self, tile: Tile, needed: Sequence[Chunk]) -> set[Chunk]:
        if tile.index in self._unread:
            self._unread.discard(tile.index)
            self._uses.subtract(needed)
        return {chunk for chunk in needed if self._uses[chunk] <= 0}

    def _read_run(self, run: Box, tile: Tile, out: np.ndarray, last: set[Chunk]) -> None:
        first, final = self._box(run.start), self._box(tuple(i - 1 for i in run.stop))
        region = Box(first.start, final.stop)
        block = self._image.read_block(region)
        self.bytes_read += block.nbytes
        self._paste(block, region, tile, out)
        for chunk in itertools.product(*map(range, run.start, run.stop)):
            self.decoded += 1
            if chunk not in last:
                # A copy: a view would keep the whole block in memory.
                self._kept[chunk] = block[self._box(chunk).within(region)].copy()
                self.kept_bytes += self._kept[chunk].nbytes
        self.peak_bytes = max(self.peak_bytes, self.kept_bytes)

    def _box(self, chunk: Chunk) -> Box:
        """What a chunk holds of the region that the tiles need."""
        size = self._image.canonical_chunks
        start = tuple(i * n for i, n in zip(chunk, size, strict=True))
        stop = tuple(a + n for a, n in zip(start, size, strict=True))
        return Box(start, stop).intersect(self._bounds)

    def _paste(self, block: np.ndarray, box: Box, tile: Tile, out: np.ndarray) -> None:
        spatial = Box(box.start[2:], box.stop[2:])
        region = self._regions[tile.index]
        shared = spatial.intersect(region)
        source, target = shared.within(spatial), shared.within(region)
        pixels = block[tile.time - box.start[0]]
        for i, channel in enumerate(self._channels):
            if box.start[1] <= channel < box.stop[1]:
                out[i][target] = pixels[channel - box.start[1]][source]


def chunk_reads(
    image: Image, batches: Iterable[Sequence[Tile]], *, channels: Sequence[int] = ()
) -> tuple[int, int]:
    """How many chunks are decoded if a reader of its own serves each batch, and how many exist.

    With batches of ``n x n`` tiles and halos of at most 1/8 tile, a batch needs at most one
    chunk more on each side than its cores hold, if chunks divide tiles: that is
    ``((n k + 2) / (n k))^2`` decodes a chunk for ``k`` chunks along a tile, below 2 from
    ``n k = 5`` on.

    Returns:
        Decodes of all batches together, and the number of distinct chunks among them.
    """
    picked = tuple(channels) or tuple(range(image.n_channels))
    decodes = 0
    distinct: set[Chunk] = set()
    for batch in batches:
        needed = {c for tile in batch for c in _chunks(image, tile.time, tile.window, picked)}
        decodes += len(needed)
        distinct |= needed
    return decodes, len(distinct)


def _chunks(image: Image, time: int, region: Box, channels: Sequence[int]) -> Iterator[Chunk]:
    t, c, *spatial = image.canonical_chunks
    ranges = [
        range(a // n, -(-b // n))
        for a, b, n in zip(region.start, region.stop, spatial, strict=True)
    ]
    return itertools.product([time // t], sorted({i // c for i in channels}), *ranges)


def _bounds(image: Image, parts: Sequence[tuple[int, Box]], channels: Sequence[int]) -> Box:
    """The smallest box that holds all these (time, region): nothing outside it need be kept."""
    starts = [(time, min(channels), *region.start) for time, region in parts]
    stops = [(time + 1, max(channels) + 1, *region.stop) for time, region in parts]
    if not parts:
        return Box.of((0,) * len(image.canonical_chunks))
    columns = zip(*starts, strict=True), zip(*stops, strict=True)
    return Box(tuple(map(min, columns[0])), tuple(map(max, columns[1])))


def _runs(chunks: Iterable[Chunk]) -> Iterator[Box]:
    """Cover a set of positions by few boxes that hold nothing else, each position once."""
    left = dict.fromkeys(sorted(chunks))
    while left:
        start = next(iter(left))
        stop = [i + 1 for i in start]
        for axis in reversed(range(len(start))):  # rows first: they lie together in a file
            while True:
                face = [
                    [stop[axis]] if i == axis else range(a, b)
                    for i, (a, b) in enumerate(zip(start, stop, strict=True))
                ]
                if not all(position in left for position in itertools.product(*face)):
                    break
                stop[axis] += 1
        for position in itertools.product(*map(range, start, stop)):
            del left[position]
        yield Box(start, tuple(stop))
