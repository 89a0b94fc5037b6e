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
        top: First row of each object.
        left: First column of each object.
        rows: Number of rows of each object.
        columns: Number of columns of each object.
        shape: ``(Y, X)`` of the array.
    """

    pixels: torch.Tensor
    ids: torch.Tensor
    area: torch.Tensor
    top: torch.Tensor
    left: torch.Tensor
    rows: torch.Tensor
    columns: torch.Tensor
    shape: tuple[int, int]

    @classmethod
    def of(
        cls, pixels: torch.Tensor, ids: torch.Tensor, count: int, shape: tuple[int, int]
    ) -> Objects:
        """Sort and measure objects ``0..count``, each of which has pixels.

        Args:
            pixels: Flat indices, ascending.
            ids: Object of each.
            count: Number of objects.
            shape: ``(Y, X)`` of the array.
        """
        ids, order = ids.sort(stable=True)
        pixels = pixels[order]
        y, x = pixels // shape[1], pixels % shape[1]
        top, left = (_extreme(at, ids, count, "amin") for at in (y, x))
        bottom, right = (_extreme(at, ids, count, "amax") for at in (y, x))
        area = torch.bincount(ids, minlength=count)
        return cls(pixels, ids, area, top, left, bottom - top + 1, right - left + 1, shape)

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
            top=self.top[keep],
            left=self.left[keep],
            rows=self.rows[keep],
            columns=self.columns[keep],
            shape=self.shape,
        )

    def image(self) -> torch.Tensor:
        """The label image: ``(Y, X)`` int32, objects counted from 1."""
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
        """Which objects may have a hole: those with a gap in some row and in some column.

        A hole has pixels of its object on all four sides of it.
        """
        y, x = self.pixels // self.shape[1] - self.top[self.ids], self.pixels % self.shape[1]
        x = x - self.left[self.ids]
        return self._gaps(y, x, self.rows) & self._gaps(x, y, self.columns)

    def _gaps(self, line: torch.Tensor, at: torch.Tensor, lines: torch.Tensor) -> torch.Tensor:
        """Whether any of an object's lines has fewer pixels than it spans."""
        first = lines.cumsum(0) - lines
        line = first[self.ids] + line
        count = int(lines.sum())
        low, high = (_extreme(at, line, count, how) for how in ("amin", "amax"))
        gap = (high - low + 1) > torch.bincount(line, minlength=count)
        ids = torch.repeat_interleave(torch.arange(len(self), device=lines.device), lines)
        return _extreme(gap.to(torch.int32), ids, len(self), "amax") > 0

    def _mean(self, at: torch.Tensor) -> torch.Tensor:
        """Mean of integers over each object, rounded: exact, as a sum of integers is."""
        total = torch.zeros_like(self.area).index_add_(0, self.ids, at)
        return (total.double() / self.area).round().to(torch.int64)


def _extreme(values: torch.Tensor, ids: torch.Tensor, count: int, how: str) -> torch.Tensor:
    out = torch.zeros(count, dtype=values.dtype, device=values.device)
    return out.scatter_reduce_(0, ids, values, how, include_self=False)
