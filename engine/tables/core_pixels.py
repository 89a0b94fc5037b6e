"""Reading tiles once for two ends: their windows to be segmented, their cores to be measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.reading import TileReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cytopave.engine.boxes import Box
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.tiling import Tile


def channels_beside(
    image: Image, channels: tuple[int, ...], measured: tuple[int, ...]
) -> tuple[int, ...]:
    """The measured channels of which nothing but cores need be read.

    They are not segmented, and lie in other chunks than those that are: else each chunk is best
    decoded for both at once.
    """
    of_chunk = image.canonical_chunks[1]
    chunks = {c // of_chunk for c in channels}
    beside = tuple(c for c in measured if c not in channels)
    return () if any(c // of_chunk in chunks for c in beside) else beside


class MeasuredReader:
    """A `TileReader` of what a segmenter gets that also keeps the measured channels of the cores.

    Cores partition the image, so that of channels which are only measured each chunk is decoded
    once and hardly any is kept, however many there are.
    """

    def __init__(
        self,
        image: Image,
        tiles: Sequence[Tile],
        *,
        channels: tuple[int, ...],
        measured: tuple[int, ...],
        region: Callable[[Tile], Box],
    ) -> None:
        """Make a reader.

        Args:
            image: What is read.
            tiles: All tiles that will be read.
            channels: Those that the segmenter gets; empty where the image has no channel axis.
            measured: Those whose cores are kept; empty where the image has no channel axis.
            region: What the segmenter gets of a tile.
        """
        beside = channels_beside(image, channels, measured)
        self._channels, self._measured, self._beside = channels, measured, beside
        self._together = tuple(sorted({*channels, *measured} - {*beside}))
        if set(self._together) == set(channels):
            self._together = channels
        self._region = region
        self._windows = TileReader(image, tiles, channels=self._together, region=region)
        self._others = (
            TileReader(image, tiles, channels=beside, region=lambda tile: tile.core)
            if beside
            else None
        )
        self._cores: dict[int, np.ndarray] = {}

    @property
    def bytes_read(self) -> int:
        """Bytes of all pixels decoded so far."""
        return self._windows.bytes_read + (self._others.bytes_read if self._others else 0)

    def read(self, tile: Tile) -> np.ndarray:
        """What the segmenter gets of a tile, as `TileReader.read` gives it.

        Raises:
            CorruptError: A chunk is truncated or damaged.
        """
        found = self._windows.read(tile)
        region = self._region(tile)
        planes = found.reshape(-1, *region.shape)
        self._cores[tile.index] = self._core(tile, planes[(slice(None), *tile.core.within(region))])
        if self._together == self._channels:
            return found
        # A copy, which does not keep the other channels in memory.
        picked = planes[[self._together.index(c) for c in self._channels]]
        return picked if len(picked) > 1 else picked[0]

    def take_core(self, tile: Tile) -> np.ndarray:
        """The measured channels of a tile's core, ``(C, [Z], Y, X)``, which are kept no longer."""
        return self._cores.pop(tile.index)

    def let_go(self, tile: Tile) -> None:
        """Keep nothing of a tile, if anything is kept."""
        self._cores.pop(tile.index, None)

    def _core(self, tile: Tile, planes: np.ndarray) -> np.ndarray:
        """The measured channels in order: a copy, since the segmenter may change what it gets."""
        if self._measured == self._together:
            return planes.copy()
        core = np.empty((len(self._measured), *tile.core.shape), planes.dtype)
        others = self._others.read(tile).reshape(-1, *tile.core.shape) if self._others else planes
        for i, channel in enumerate(self._measured):
            beside = channel in self._beside
            source, order = (others, self._beside) if beside else (planes, self._together)
            core[i] = source[order.index(channel)]
        return core
