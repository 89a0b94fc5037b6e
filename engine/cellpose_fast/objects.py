"""Numbered objects as lists of their pixels, and what is measured of each."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Objects:
    """The pixels of numbered objects, object by object, and each object's extent.

    Attributes:
        pixels: Flat indices, int64: sorted by object, and within an object ascending.
        ids: Object of each, from 0, int64.
        area: Pixels of each object.
        low: Per axis, the first place of each object.
        extent: Per axis, the number of places from the first to the last of each object.
        shape: ``([Z], Y, X)`` of the array.
    """

    pixels: torch.Tensor
    ids: torch.Tensor
    area: torch.Tensor
    low: tuple[torch.Tensor, ...]
    extent: tuple[torch.Tensor, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls, pixels: torch.Tensor, ids: torch.Tensor, count: int, shape: tuple[int, ...]
    ) -> Objects:
        """Sort and measure objects ``0..count``, each of which has pixels.

        Args:
            pixels: Flat indices, ascending.
            ids: Object of each.
            count: Number of objects.
            shape: ``([Z], Y, X)`` of the array.
        """
        ids, order = ids.sort(stable=True)
        pixels = pixels[order]
        low, extent = [], []
        for at in places(pixels, shape):
            low.append(_extreme(at, ids, count, "amin"))
            extent.append(_extreme(at, ids, count, "amax") - low[-1] + 1)
        area = torch.bincount(ids, minlength=count)
        return cls(pixels, ids, area, tuple(low), tuple(extent), shape)

    @classmethod
    def numbered(
        cls,
        pixels: torch.Tensor,
        numbers: torch.Tensor,
        count: int,
        min_size: int,
        shape: tuple[int, ...],
    ) -> Objects:
        """The objects that have enough pixels (one at least), numbered without gaps.

        Args:
            pixels: Flat indices, ascending.
            numbers: Object of each, from 1, or 0.
            count: Number of objects; some may have no pixel.
            min_size: Pixels.
            shape: ``([Z], Y, X)`` of the array.
        """
        area = torch.bincount(numbers, minlength=count + 1)
        keep = area >= max(1, min_size)
        keep[0] = False
        new = keep.cumsum(0) - 1
        own = keep[numbers]
        return cls.of(pixels[own], new[numbers[own]], int(keep.sum()), shape)

    @property
    def front(self) -> torch.Tensor:
        """First plane of each object of a stack."""
        return self.low[-3]

    @property
    def planes(self) -> torch.Tensor:
        """Number of planes of each object of a stack."""
        return self.extent[-3]

    @property
    def top(self) -> torch.Tensor:
        """First row of each object."""
        return self.low[-2]

    @property
    def left(self) -> torch.Tensor:
        """First column of each object."""
        return self.low[-1]

    @property
    def rows(self) -> torch.Tensor:
        """Number of rows of each object."""
        return self.extent[-2]

    @property
    def columns(self) -> torch.Tensor:
        """Number of columns of each object."""
        return self.extent[-1]

    def where(self, keep: torch.Tensor) -> Objects:
        """Some of the objects, numbered anew in the same order.

        Args:
            keep: One bool an object.
        """
        own = keep[self.ids]
        numbers = keep.cumsum(0) - 1
        return Objects(
            pixels=self.pixels[own],
            ids=numbers[self.ids[own]],
            area=self.area[keep],
            low=tuple(low[keep] for low in self.low),
            extent=tuple(extent[keep] for extent in self.extent),
            shape=self.shape,
        )

    def image(self) -> torch.Tensor:
        """The label image: ``([Z], Y, X)`` int32, objects counted from 1."""
        labels = torch.zeros(self.shape, dtype=torch.int32, device=self.pixels.device)
        labels.view(-1)[self.pixels] = (self.ids + 1).to(torch.int32)
        return labels

    def __len__(self) -> int:
        return len(self.area)

    @property
    def steps(self) -> torch.Tensor:
        """Steps for which heat spreads: twice the object's rows and columns, and a few.

        In multiples of 32, so that many objects end together.
        """
        return -(-2 * (self.rows + self.columns + 2) // 32) * 32

    def sources(self) -> torch.Tensor:
        """Where in `pixels` each object's centre stands: the pixel nearest to their mean.

        The mean is rounded to whole pixels before; of several, the first in raster order.
        """
        width = self.shape[1]
        y, x = self.pixels // width - self.top[self.ids], self.pixels % width - self.left[self.ids]
        away = (y - self._mean(y)[self.ids]) ** 2 + (x - self._mean(x)[self.ids]) ** 2
        nearest = _extreme(away, self.ids, len(self), "amin")
        hit = (away == nearest[self.ids]).nonzero().squeeze(1)
        return _extreme(hit, self.ids[hit], len(self), "amin")

    def hollow(self) -> torch.Tensor:
        """Which objects may have a hole: those with a gap in some line along every axis.

        A hole has pixels of its object on all sides of it.
        """
        at = [
            place - low[self.ids]
            for place, low in zip(places(self.pixels, self.shape), self.low, strict=True)
        ]
        hollow = torch.ones_like(self.area, dtype=torch.bool)
        for axis in range(len(at)):
            across = [i for i in range(len(at)) if i != axis]
            line, lines = at[across[0]], self.extent[across[0]]
            for i in across[1:]:
                line = line * self.extent[i][self.ids] + at[i]
                lines = lines * self.extent[i]
            hollow &= self._gaps(line, at[axis], lines)
        return hollow

    def _gaps(self, line: torch.Tensor, at: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
        """Whether any of an object's lines has pixels, and fewer than it spans."""
        first = lines.cumsum(0) - lines
        line = first[self.ids] + line
        count = int(lines.sum())
        low, high = (_extreme(at, line, count, how) for how in ("amin", "amax"))
        filled = torch.bincount(line, minlength=count)
        gap = (filled > 0) & (high - low + 1 > filled)
        ids = torch.repeat_interleave(torch.arange(len(self), device=lines.device), lines)
        return _extreme(gap.to(torch.int32), ids, len(self), "amax") > 0

    def _mean(self, at: torch.Tensor) -> torch.Tensor:
        """Mean of integers over each object, rounded: exact, as a sum of integers is."""
        total = torch.zeros_like(self.area).index_add_(0, self.ids, at)
        return (total.double() / self.area).round().to(torch.int64)


def places(pixels: torch.Tensor, shape: tuple[int, ...]) -> list[torch.Tensor]:
    """Per axis, where flat indices lie."""
    found = []
    for length in reversed(shape[1:]):
        found.append(pixels % length)
        pixels = pixels // length
    return [pixels, *reversed(found)]


def _extreme(values: torch.Tensor, ids: torch.Tensor, count: int, how: str) -> torch.Tensor:
    out = torch.zeros(count, dtype=values.dtype, device=values.device)
    return out.scatter_reduce_(0, ids, values, how, include_self=False)
