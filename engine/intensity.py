"""Intensities of the whole image: measured once, whatever the tiling.

A percentile or a threshold taken a tile at a time changes from tile to tile, which is a seam in
itself. Here each channel gets one histogram, from a coarse pyramid level where there is one, else
from chunks spread evenly over the image. Both are functions of the image alone.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cytopave.engine.omezarr.image import Image

ENOUGH_PIXELS = 4 * 1024 * 1024
"""Pixels of a plane or volume from which a coarse level stands for the image."""

SAMPLE_CHUNKS = 64
"""Chunks that a sample holds at least, if there are as many; more where they are small."""

SAMPLE_BYTES = 128 * 1024 * 1024
"""Decoded bytes that a sample holds at most (but always one chunk)."""

FINE_BINS = 1 << 20
"""Bins over the range of values that are not integers of up to 16 bits."""


@dataclass(frozen=True)
class Histogram:
    """How often each intensity occurs, in bins of equal width.

    Attributes:
        counts: Number of finite pixels in each bin.
        lowest: Value at the centre of the first bin.
        width: Distance between the centres of neighbouring bins.
        exact: Whether each bin holds one value alone; otherwise percentiles are right to
            within one bin.
    """

    counts: np.ndarray
    lowest: float
    width: float
    exact: bool

    @property
    def minimum(self) -> float:
        """Smallest intensity."""
        return self._value(int(np.flatnonzero(self.counts)[0]))

    @property
    def maximum(self) -> float:
        """Largest intensity."""
        return self._value(int(np.flatnonzero(self.counts)[-1]))

    def percentile(self, q: float) -> float:
        """The intensity below which ``q`` percent of the pixels lie.

        Linear interpolation between order statistics, as `numpy.percentile` does by default:
        equal to it where the histogram is exact.
        """
        if not 0 <= q <= 100:
            raise ValueError(f"a percentile lies between 0 and 100, not at {q}")
        cumulated = np.cumsum(self.counts)
        rank = q / 100 * (int(cumulated[-1]) - 1)
        low, high = (
            self._value(int(np.searchsorted(cumulated, r, side="right")))
            for r in (math.floor(rank), math.ceil(rank))
        )
        return low + (high - low) * (rank - math.floor(rank))

    def otsu(self) -> float:
        """Threshold by Otsu's method (1979): pixels above it are foreground.

        The only value of an image that has just one, so that nothing is foreground.
        """
        from skimage.filters import threshold_otsu

        bins = np.flatnonzero(self.counts)
        if len(bins) == 1:
            return self.minimum
        # Empty bins change nothing but the time it takes.
        centres = self.lowest + self.width * bins
        return float(threshold_otsu(hist=(self.counts[bins].astype(float), centres)))

    def _value(self, index: int) -> float:
        return self.lowest + self.width * index


def histogram(image: Image, *, channels: Sequence[int], time: int | None = None) -> list[Histogram]:
    """Histogram of each channel, over all time points or one.

    Taken from the smallest pyramid level (of those no finer than the image's) whose plane or
    volume has at least `ENOUGH_PIXELS`, or from the image's own level where none has. Coarse
    levels are averages in most files: noise is smaller in them and small bright spots are
    dimmer, so extreme percentiles come out less extreme than at full resolution. That is
    accepted: it is the same for every tile. Of a level too large to read whole, chunks spread
    evenly over time and space are read (`sample_boxes`).

    Integers of up to 16 bits and booleans are counted value by value, as are wider ones whose
    range fits into `FINE_BINS`; everything else falls into that many bins between the smallest
    and the largest value found. NaN and infinities do not count.

    Args:
        image: The image; its level is the finest one looked at.
        channels: Indices from `Image.channel_indices`; empty for all.
        time: A time point, or None for all.

    Raises:
        ImageError: A channel has no finite pixel.
        CorruptError: A chunk is truncated or damaged.
    """
    source = coarse_level(image)
    picked = tuple(channels) or tuple(range(image.n_channels))
    boxes = sample_boxes(source, n_channels=len(picked), time=time)
    return [_histogram(source, channel, boxes) for channel in picked]


def coarse_level(image: Image) -> Image:
    """The level that intensities are taken from: small, but with enough pixels."""
    best = image.level
    for index in range(image.level + 1, len(image.levels)):
        shape = image.of(image.spatial_axes, image.levels[index].shape)
        if math.prod(shape) >= ENOUGH_PIXELS:
            best = index
    return image if best == image.level else image.at_level(best)


def sample_boxes(image: Image, *, n_channels: int, time: int | None) -> list[tuple[int, Box]]:
    """The regions that a sample is made of, each a time point and a spatial box.

    As many chunks as make `ENOUGH_PIXELS`, at least `SAMPLE_CHUNKS`, and no more than
    `SAMPLE_BYTES` hold; all of them if there are no more. They lie at the points of an additive
    recurrence over time and space, which fills a box evenly for any number of points (Roberts
    2018, "The unreasonable effectiveness of quasirandom sequences": the steps are powers of
    the root of x^(d+1) = x + 1).
    """
    step = image.canonical_chunks[2:]
    times = range(image.n_times) if time is None else [time]
    counts = (len(times), *(-(-n // s) for n, s in zip(image.spatial_shape, step, strict=True)))
    pixels = math.prod(map(min, image.spatial_shape, step))
    affordable = SAMPLE_BYTES // (pixels * np.dtype(image.dtype).itemsize * n_channels)
    wanted = max(SAMPLE_CHUNKS, -(-ENOUGH_PIXELS // pixels))
    whole = Box.of(image.spatial_shape)
    boxes = []
    for index in _spread(counts, max(1, min(affordable, wanted))):
        start = tuple(i * s for i, s in zip(index[1:], step, strict=True))
        stop = tuple(a + s for a, s in zip(start, step, strict=True))
        boxes.append((times[index[0]], Box(start, stop).intersect(whole)))
    return boxes


def _spread(counts: tuple[int, ...], wanted: int) -> list[tuple[int, ...]]:
    if math.prod(counts) <= wanted:
        return list(itertools.product(*map(range, counts)))
    root = 1.0
    for _ in range(64):
        root = (1 + root) ** (1 / (len(counts) + 1))
    found: dict[tuple[int, ...], None] = {}
    # Points may share a cell: 8 times as many fill nearly all that were wanted.
    for i in range(8 * wanted):
        point = ((0.5 + (i + 1) * root ** -(a + 1)) % 1 for a in range(len(counts)))
        found[tuple(int(p * n) for p, n in zip(point, counts, strict=True))] = None
        if len(found) == wanted:
            break
    return sorted(found)  # in the order in which they lie on disk


def _histogram(image: Image, channel: int, boxes: Sequence[tuple[int, Box]]) -> Histogram:
    blocks = (image.read(box, time=t, channels=(channel,)) for t, box in boxes)
    dtype = np.dtype(image.dtype)
    if dtype.kind == "b":
        return _count((b.astype(np.uint8) for b in blocks), 0, 2)
    if dtype.kind in "ui" and dtype.itemsize <= 2:
        info = np.iinfo(dtype)
        return _count(blocks, int(info.min), int(info.max) - int(info.min) + 1)
    finite = [b[np.isfinite(b)] if dtype.kind == "f" else b.ravel() for b in blocks]
    values = np.concatenate(finite)
    del finite
    if values.size == 0:
        name = f"channel {image.channels[channel]} of " if image.channels else ""
        raise ImageError(f"{name}{image.url} has no finite pixel: there is nothing to segment")
    low, high = values.min(), values.max()
    if dtype.kind in "ui" and int(high) - int(low) < FINE_BINS:
        return _count([values], int(low), int(high) - int(low) + 1)
    return _bin(values, float(low), float(high))


def _count(blocks: Iterable[np.ndarray], lowest: int, n: int) -> Histogram:
    counts = np.zeros(n, np.int64)
    for block in blocks:
        shifted = block.ravel() if lowest == 0 else (block.astype(np.int64) - lowest).ravel()
        counts += np.bincount(shifted, minlength=n)
    return Histogram(counts, float(lowest), 1.0, exact=True)


def _bin(values: np.ndarray, low: float, high: float) -> Histogram:
    # Centres of the first and last bin are the extremes themselves, so that both are exact.
    width = (high - low) / (FINE_BINS - 1)
    if width == 0:
        return Histogram(np.array([values.size]), low, 1.0, exact=True)
    counts = np.zeros(FINE_BINS, np.int64)
    for part in np.array_split(values, -(-values.size // FINE_BINS)):  # bounds the copies
        index = np.rint((part.astype(np.float64) - low) / width).astype(np.int64)
        counts += np.bincount(index, minlength=FINE_BINS)
    return Histogram(counts, low, width, exact=False)
