"""The patches that the network sees: one grid for the whole image, whatever the tiles.

Cellpose evaluates windows of 256 x 256 pixels that overlap, and averages them. It spreads them
evenly over the array that it is handed; handed one tile after another, it shows every cell to the
network at another place of its window, and one cell in ten changes with the tiles. Here the grid is
the one that Cellpose's `eval` lays over the *whole* image. That fixes it globally, so that two
tiles which see a pixel average the same patches there; and what comes out is what Cellpose itself
would find in the undivided image, for an image of any size.

Everything is separable, so that an axis knows all about itself: `Axis` for a whole image, `Span`
for what a window needs of it. Where the image is scaled to the network's object size, sample
positions too come from places in the whole image (`linear`).
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass

import numpy as np

SIDE = 256
"""Side of a patch in pixels: fixed by the positions that the network has learnt."""
_OVERLAP = 0.1
_UNIT = 16
"""Cellpose extends an image by 8 black pixels on each side, and then to multiples of this."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Linear interpolation along one axis: ``(1 - weight) * lower + weight * upper``.

    Attributes:
        lower: Index of the sample at or before each position.
        upper: Index of the next one.
        weight: Share of the upper one, float32.
    """

    lower: np.ndarray
    upper: np.ndarray
    weight: np.ndarray


def linear(source: int, target: int, start: int, stop: int) -> Sampling:
    """Where samples ``start..stop`` of an axis resized from ``source`` to ``target`` lie.

    Pixels are areas, as in OpenCV's INTER_LINEAR, which Cellpose uses: the borders of both axes
    coincide, and outside the outermost centres the outermost value holds.
    """
    at = (np.arange(start, stop) + 0.5) * (source / target) - 0.5
    at = at.clip(0, source - 1)
    lower = np.floor(at).astype(np.int64)
    upper = np.minimum(lower + 1, source - 1)
    return Sampling(lower, upper, (at - lower).astype(np.float32))


@dataclass(frozen=True, slots=True)
class Span:
    """What a window needs of one axis.

    Attributes:
        patches: Indices of the patches that cover it.
        wanted: First and last (exclusive) network pixel whose flows it needs.
        canvas: The network pixels of its patches; may reach beyond the image, which is black there.
        inside: The part of the canvas that lies in the image.
        read: The image's own pixels that the canvas is made of.
    """

    patches: range
    wanted: tuple[int, int]
    canvas: tuple[int, int]
    inside: tuple[int, int]
    read: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Axis:
    """The grid along one axis of a whole image.

    Attributes:
        length: Pixels of the image.
        scaled: Pixels that the network sees ("network pixels"): the same, or scaled.
        starts: First network pixel of each patch, ascending; below 0 in the black border.
    """

    length: int
    scaled: int
    starts: tuple[int, ...]

    @property
    def resized(self) -> bool:
        """Whether network pixels are not the image's."""
        return self.scaled != self.length

    def covering(self, start: int, stop: int) -> range:
        """Indices of the patches that hold any of these network pixels."""
        return range(bisect_right(self.starts, start - SIDE), bisect_left(self.starts, stop))

    def span(self, start: int, stop: int) -> Span:
        """What the window ``start..stop`` of the image needs."""
        wanted = (start, stop)
        if self.resized:
            wanted = _bounds(linear(self.scaled, self.length, start, stop))
        patches = self.covering(*wanted)
        canvas = (self.starts[patches[0]], self.starts[patches[-1]] + SIDE)
        inside = (max(0, canvas[0]), min(self.scaled, canvas[1]))
        return Span(patches, wanted, canvas, inside, self.read(*inside))

    def read(self, start: int, stop: int) -> tuple[int, int]:
        """The image's own pixels of which network pixels ``start..stop`` are made."""
        if not self.resized:
            return start, stop
        return _bounds(linear(self.length, self.scaled, start, stop))

    def weights(self, start: int, stop: int) -> np.ndarray:
        """Sum of the tapers of all patches at network pixels ``start..stop``, float32.

        Added up in the order of the patches, which is the same for every window.
        """
        total = np.zeros(stop - start, np.float32)
        for i in self.covering(start, stop):
            first, last = max(start, self.starts[i]), min(stop, self.starts[i] + SIDE)
            own = taper()[first - self.starts[i] : last - self.starts[i]]
            total[first - start : last - start] += own
        return total


def _bounds(sampling: Sampling) -> tuple[int, int]:
    return int(sampling.lower[0]), int(sampling.upper[-1]) + 1


@functools.lru_cache(maxsize=16)
def axis(length: int, rescale: float = 1.0, anisotropy: float = 1.0) -> Axis:
    """The grid of an axis of ``length`` pixels, scaled before the network.

    Args:
        length: Pixels of the image.
        rescale: Factor by which the network sees the image larger.
        anisotropy: A further one, along Z: the distance of planes in pixels.

    The rules are those of Cellpose's ``run_net`` and ``make_tiles``: 8 pixels of border, a multiple
    of 16 in all, at least one patch; 1.2 / 256 patches a pixel, spread evenly. A patch starts every
    200 to 213 pixels, so that neighbours share 43 to 56.
    """
    scaled = max(1, int(length * anisotropy * rescale))
    extra = -scaled % _UNIT if scaled >= SIDE else max(0, SIDE - scaled - _UNIT)
    before = _UNIT // 2 + extra // 2
    total = scaled + _UNIT + extra
    count = 1 if total <= SIDE else math.ceil((1 + 2 * _OVERLAP) * total / SIDE)
    starts = np.linspace(0, total - SIDE, count).astype(int) - before
    return Axis(length, scaled, tuple(starts.tolist()))


@functools.cache
def taper() -> np.ndarray:
    """Weight of a patch's pixels along one axis, float32: Cellpose's, falling towards the edges."""
    from_middle = np.abs(np.arange(SIDE) - (SIDE - 1) / 2)
    weight = 1 / (1 + np.exp((from_middle - (SIDE / 2 - 20)) / 7.5))
    return np.asarray(weight, np.float32)
