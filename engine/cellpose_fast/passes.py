"""What the three passes over a stack need: of the image for a window, and at a time.

Free of torch, since runs are planned with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cytopave.engine.boxes import Box
from cytopave.engine.patchwise.grid import Axis, Span, axis

_CUT_OFF = 4.0
"""Standard deviations at which Cellpose's filter ends: scipy's default."""

AT_ONCE = 256
"""Patches that are cut out at once, about: they are held as 32 bit input and as answers."""


@dataclass(frozen=True, slots=True)
class Volume:
    """How a stack is evaluated in three dimensions.

    Attributes:
        anisotropy: Distance of planes in pixels.
        smooth: Standard deviations in pixels (Z, Y, X) by which flows are smoothed.
    """

    anisotropy: float = 1.0
    smooth: tuple[float, float, float] = (0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the network.

    Attributes:
        across: The axis along which its planes are counted.
        along: The axes of its planes: the network's first flow is along the first one.
    """

    across: int
    along: tuple[int, int]


PASSES = (Pass(0, (1, 2)), Pass(1, (0, 2)), Pass(2, (0, 1)))
"""Cellpose's, in its order."""


@dataclass(frozen=True)
class Window:
    """What a window needs of each axis.

    Attributes:
        bounds: The image's own pixels whose flows are needed: the window, or more for smoothing.
        axes: The grid of each axis.
        spans: What is needed of it.
    """

    bounds: Box
    axes: tuple[Axis, Axis, Axis]
    spans: tuple[Span, Span, Span]

    @classmethod
    def of(cls, window: Box, shape: tuple[int, ...], volume: Volume, *, rescale: float) -> Window:
        """Of a window within a stack of ``shape`` pixels (Z, Y, X)."""
        bounds = window.grow(tuple(map(reach, volume.smooth))).intersect(Box.of(shape))
        stretch = (volume.anisotropy, 1.0, 1.0)
        z, y, x = (axis(n, rescale, by) for n, by in zip(shape, stretch, strict=True))
        ends = zip(bounds.start, bounds.stop, strict=True)
        spans = [one.span(a, b) for one, (a, b) in zip((z, y, x), ends, strict=True)]
        return cls(bounds, (z, y, x), (spans[0], spans[1], spans[2]))

    @property
    def region(self) -> Box:
        """What is read of the image: all patches of the window's planes, in each pass."""
        return Box(*zip(*(span.read for span in self.spans), strict=True))


def reach(sigma: float) -> int:
    """How many pixels on each side a pixel is averaged with where flows are smoothed."""
    return int(_CUT_OFF * sigma + 0.5)


def planes_at_once(patches: int, batch: int) -> int:
    """How many planes to evaluate at once, so that few places in the network's batches stay empty.

    Args:
        patches: Those of a plane.
        batch: Patches that the network evaluates at a time.
    """
    most = max(1, max(AT_ONCE, batch) // patches)
    return min(range(1, most + 1), key=lambda planes: math.ceil(planes * patches / batch) / planes)
