"""The tile grid: cores that partition the image, and halos that neighbours share."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt

from cytopave.engine.boxes import Box
from cytopave.engine.errors import PlanError
from cytopave.engine.lazy import Lazy

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tiling(BaseModel):
    """How the image is cut. Lengths are pixels of the level that is segmented."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tile: Annotated[
        Literal["auto"] | tuple[PositiveInt, ...],
        Field(
            description="Core of a tile per spatial axis ([Z], Y, X), or 'auto' to size it by "
            "memory. Two numbers for a stack mean Y and X: a tile then holds every plane."
        ),
    ] = "auto"
    halo: Annotated[
        Literal["auto"] | NonNegativeInt | tuple[NonNegativeInt, ...],
        Field(
            description="Pixels that a tile sees beyond its core, per spatial axis or one number "
            "for all of them. 'auto' takes one and a half object diameters, or 64."
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile: its place in the grid, what it owns and what it sees."""

    index: int
    time: int
    position: tuple[int, ...]
    core: Box
    window: Box

    def __str__(self) -> str:
        where = f"time {self.time}, " if self.time else ""
        return f"tile {self.index} ({where}pixels {self.core})"


@dataclass(frozen=True)
class Grid:
    """All tiles of an image, for every time point: tile ``i`` is found by arithmetic.

    Attributes:
        shape: Spatial shape of the image, ``([Z], Y, X)`` pixels.
        tile: Length of a core per axis. A rest at the end of an axis that is shorter than the
            halo joins the core before it: that core's window is no longer than any other
            (it needs no halo on the image's border), and every core is at least as long as
            the halo, so that only adjacent tiles share pixels.
        halo: Length of the halo per axis.
        times: Number of time points; tiles of different time points are never neighbours.
    """

    shape: tuple[int, ...]
    tile: tuple[int, ...]
    halo: tuple[int, ...]
    times: int = 1

    def __post_init__(self) -> None:
        """Refuse what no grid can serve.

        Raises:
            PlanError: An axis is missing, or a halo is longer than its tile.
        """
        if not len(self.shape) == len(self.tile) == len(self.halo):
            raise PlanError(
                f"the image has {len(self.shape)} spatial axes {self.shape}, but the tile "
                f"{self.tile} and the halo {self.halo} name {len(self.tile)} and "
                f"{len(self.halo)}: give one number an axis"
            )
        for n, t, h in zip(self.shape, self.tile, self.halo, strict=True):
            if h > t and t < n:
                raise PlanError(
                    f"a halo of {h} pixels does not fit a tile of {t}: a tile may only see its "
                    f"direct neighbours; take a tile of at least {h} or a smaller halo"
                )

    @cached_property
    def edges(self) -> tuple[tuple[int, ...], ...]:
        """Where the cores begin and end, per axis: ``counts[axis] + 1`` numbers."""
        return tuple(
            _edges(n, t, h) for n, t, h in zip(self.shape, self.tile, self.halo, strict=True)
        )

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of tiles per axis."""
        return tuple(len(e) - 1 for e in self.edges)

    @property
    def largest_core(self) -> tuple[int, ...]:
        """Length of the longest core per axis: longer than a tile where a rest joined it."""
        return tuple(max(b - a for a, b in itertools.pairwise(e)) for e in self.edges)

    @cached_property
    def _spans(self) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
        """First and past last pixel of each core, and of each window, per axis."""
        cores = [list(itertools.pairwise(e)) for e in self.edges]
        windows = [
            [(max(0, a - h), min(n, b + h)) for a, b in axis]
            for axis, h, n in zip(cores, self.halo, self.shape, strict=True)
        ]
        return cores, windows

    @property
    def windows(self) -> list[list[tuple[int, int]]]:
        """First and past last pixel of what the tiles see, per axis and position."""
        return self._spans[1]

    @property
    def tiles_per_time(self) -> int:
        """Number of tiles of one time point."""
        return math.prod(self.counts)

    def __len__(self) -> int:
        return self.tiles_per_time * self.times

    def __getitem__(self, index: int) -> Tile:
        """Tile by its index: raster order of the position, time slowest."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        time, rest = divmod(index, self.tiles_per_time)
        position = _unravel(rest, self.counts)
        core, window = (
            Box(*zip(*(axis[p] for axis, p in zip(spans, position, strict=True)), strict=True))
            for spans in self._spans
        )
        return Tile(index, time, position, core, window)

    def __iter__(self) -> Iterator[Tile]:
        return (self[i] for i in range(len(self)))

    def index(self, time: int, position: tuple[int, ...]) -> int:
        """Index of the tile at a position."""
        flat = 0
        for p, n in zip(position, self.counts, strict=True):
            flat = flat * n + p
        return time * self.tiles_per_time + flat

    def neighbours(self, tile: Tile) -> Iterator[tuple[tuple[int, ...], Tile]]:
        """All tiles that share a face, an edge or a corner, with the step that leads to each."""
        return ((step, self[index]) for step, index in self.steps(tile))

    def steps(self, tile: Tile) -> Iterator[tuple[tuple[int, ...], int]]:
        """The steps to all neighbours of a tile, and their indices."""
        axes = [
            [s for s in (-1, 0, 1) if 0 <= p + s < n]
            for p, n in zip(tile.position, self.counts, strict=True)
        ]
        strides = [math.prod(self.counts[axis + 1 :]) for axis in range(len(axes))]
        for step in itertools.product(*axes):
            if any(step):
                yield step, tile.index + sum(s * n for s, n in zip(step, strides, strict=True))

    def covering(self, time: int, box: Box) -> Iterator[Tile]:
        """The tiles whose cores hold pixels of a box, in raster order."""
        ranges = [
            range(bisect_right(e, a) - 1, bisect_left(e, b))
            for e, a, b in zip(self.edges, box.start, box.stop, strict=True)
        ]
        for position in itertools.product(*ranges):
            yield self[self.index(time, position)]

    def blocks(self, per_axis: tuple[int, ...]) -> Lazy[tuple[int, ...]]:
        """Tile indices in compact blocks of at most ``per_axis`` tiles, each in raster order."""
        blocks = Box.of(self.counts).blocks(per_axis)
        return Lazy(
            self.times * len(blocks),
            lambda i: self._indices(i // len(blocks), blocks[i % len(blocks)]),
        )

    def _indices(self, time: int, block: Box) -> tuple[int, ...]:
        spans = (range(a, b) for a, b in zip(block.start, block.stop, strict=True))
        return tuple(self.index(time, position) for position in itertools.product(*spans))


def _edges(length: int, tile: int, halo: int) -> tuple[int, ...]:
    edges = [*range(0, length, tile), length]
    if len(edges) > 2 and edges[-1] - edges[-2] < halo:
        del edges[-2]
    return tuple(edges)


def _unravel(flat: int, counts: tuple[int, ...]) -> tuple[int, ...]:
    position = []
    for n in reversed(counts):
        flat, p = divmod(flat, n)
        position.append(p)
    return tuple(reversed(position))
