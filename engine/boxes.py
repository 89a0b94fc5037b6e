"""Axis-aligned integer boxes: the one way in which regions of an image are named."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cytopave.engine.lazy import Lazy, product

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Box:
    """A half-open region ``start <= p < stop`` in pixels, one entry an axis."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...]) -> Box:
        """The whole of an array of this shape."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Length along each axis, zero where the box is empty."""
        return tuple(max(0, b - a) for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> int:
        """Number of pixels."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """The box as an index of an array whose first pixel is the origin."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """The box as an index of an array that holds ``outer``."""
        return self.shift(tuple(-a for a in outer.start)).slices

    def contains(self, point: tuple[int, ...]) -> bool:
        """Whether a pixel lies in the box."""
        return all(a <= p < b for a, p, b in zip(self.start, point, self.stop, strict=True))

    def shift(self, by: tuple[int, ...]) -> Box:
        """The box moved by ``by`` pixels."""
        return Box(
            tuple(a + d for a, d in zip(self.start, by, strict=True)),
            tuple(b + d for b, d in zip(self.stop, by, strict=True)),
        )

    def grow(self, by: tuple[int, ...]) -> Box:
        """The box with ``by`` pixels more on both sides of each axis."""
        return Box(
            tuple(a - d for a, d in zip(self.start, by, strict=True)),
            tuple(b + d for b, d in zip(self.stop, by, strict=True)),
        )

    def intersect(self, other: Box) -> Box:
        """The pixels that both boxes hold; of size zero where there are none."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return Box(start, tuple(map(max, start, stop)))

    def blocks(self, step: tuple[int, ...]) -> Lazy[Box]:
        """Cut along multiples of ``step`` (counted from the origin), in raster order."""
        return boxes_between(
            [a, *range((a // s + 1) * s, b, s), b]
            for a, b, s in zip(self.start, self.stop, step, strict=True)
        )

    def __str__(self) -> str:
        return ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))


def boxes_between(edges: Iterable[Sequence[int]]) -> Lazy[Box]:
    """The boxes between edges, given per axis, in raster order."""
    spans = product([list(itertools.pairwise(axis)) for axis in edges])
    return Lazy(len(spans), lambda i: Box(*zip(*spans[i], strict=True)))


def halves(box: Box, chunks: tuple[int, ...]) -> tuple[int, Box, Box] | None:
    """Cut a box between chunks, along the axis on which it reaches over most of them.

    Returns:
        The axis and the two parts; None where the box lies within one chunk.
    """
    first = [a // c for a, c in zip(box.start, chunks, strict=True)]
    counts = [(b - 1) // c - a + 1 for a, b, c in zip(first, box.stop, chunks, strict=True)]
    axis = counts.index(max(counts))
    if counts[axis] == 1:
        return None
    cut = (first[axis] + counts[axis] // 2) * chunks[axis]
    stop = (*box.stop[:axis], cut, *box.stop[axis + 1 :])
    start = (*box.start[:axis], cut, *box.start[axis + 1 :])
    return axis, Box(box.start, stop), Box(start, box.stop)
