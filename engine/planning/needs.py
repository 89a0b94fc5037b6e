"""What memory tiles take: a GPU's, and the host's while they are in hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.tables.core_pixels import channels_beside
from cytopave.engine.tables.tile_sums import kept_bytes

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.planning.budget import Budget
    from cytopave.engine.segmenters import Segmenter
    from cytopave.engine.tiling import Grid

_MOST_IN_FLIGHT = 6
"""One tile computed, one to be settled, two read ahead and two being finished."""
_LEAST_IN_FLIGHT = 3
"""One computed, one read ahead and one finished: rather than fewer, the image is read twice."""


def tile_need(
    image: Image, segmenter: Segmenter, budget: Budget, grid: Grid, *, n_channels: int
) -> int:
    """Bytes that the largest tile of a grid needs: on the GPU, or of the worker's own memory."""
    if budget.on_gpu and segmenter.wants_gpu:
        itemsize = np.dtype(image.dtype).itemsize
        return segmenter.device_bytes(_window(grid), itemsize, n_channels)
    return host_need(image, segmenter, grid, n_channels=n_channels) + _computing(
        image, segmenter, grid, n_channels=n_channels
    )


def host_need(image: Image, segmenter: Segmenter, grid: Grid, *, n_channels: int) -> int:
    """Bytes of the host's memory that the largest tile of a grid needs while it is in hand."""
    middle, region = _largest_tile(segmenter, grid)
    # Pixels as read and as float32 for the function, its labels (int64 at worst), the dense copy.
    itemsize = np.dtype(image.dtype).itemsize
    return region.size * n_channels * (itemsize + 4) + middle.size * (8 + 4)


def _computing(image: Image, segmenter: Segmenter, grid: Grid, *, n_channels: int) -> int:
    """Bytes of the host's memory that a worker takes while it computes one of the tiles."""
    itemsize = np.dtype(image.dtype).itemsize
    return segmenter.host_bytes(_window(grid), itemsize, n_channels)


def _largest_tile(segmenter: Segmenter, grid: Grid) -> tuple[Box, Box]:
    """What an inner tile sees, and what is read for it."""
    window = _window(grid)
    start = tuple((n - w) // 2 for n, w in zip(grid.shape, window, strict=True))
    middle = Box(start, tuple(a + w for a, w in zip(start, window, strict=True)))
    return middle, segmenter.region(middle, grid.shape)


def _measuring(image: Image, segmenter: Segmenter, grid: Grid, chosen: tuple[int, ...]) -> int:
    """Bytes of the host's memory that a tile needs to be measured as well while it is in hand.

    All measured channels of its core; and what is read with the segmenter's channels because it
    shares their chunks.
    """
    _, region = _largest_tile(segmenter, grid)
    itemsize, everything = np.dtype(image.dtype).itemsize, image.channel_indices()
    beside = channels_beside(image, chosen, everything)
    together = len(everything) - len(beside)
    read = region.size * itemsize * together if together > len(chosen) else 0
    return read + kept_bytes(grid, itemsize, max(1, len(everything)))


def tiles_in_hand(
    image: Image,
    segmenter: Segmenter,
    grid: Grid,
    chosen: tuple[int, ...],
    *,
    room: int,
    measure: bool,
) -> tuple[int, bool]:
    """How many tiles a worker may have in hand, and whether they are measured meanwhile.

    Args:
        image: The image.
        segmenter: What computes the labels.
        grid: The tiles.
        chosen: Channels that the segmenter gets; empty where there is no channel axis.
        room: Bytes of the host's memory for a worker.
        measure: Whether the objects shall be measured.
    """
    n_channels = max(1, len(chosen))
    return _in_flight(
        room - _computing(image, segmenter, grid, n_channels=n_channels),
        host_need(image, segmenter, grid, n_channels=n_channels),
        _measuring(image, segmenter, grid, chosen) if measure else None,
    )


def _in_flight(budget: int, need: int, measuring: int | None) -> tuple[int, bool]:
    alone = max(1, min(_MOST_IN_FLIGHT, budget // need))
    if measuring is None:
        return alone, False
    together = min(_MOST_IN_FLIGHT, budget // (need + measuring))
    if together < min(_LEAST_IN_FLIGHT, alone):
        return alone, False
    return together, True


def _window(grid: Grid) -> tuple[int, ...]:
    """Shape of what an inner tile sees."""
    lengths = zip(grid.shape, grid.tile, grid.halo, strict=True)
    return tuple(min(n, t + 2 * h) for n, t, h in lengths)
