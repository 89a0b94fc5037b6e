"""A conversion, decided: which image becomes which store, in which parts."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from cytopave.engine.boxes import Box
from cytopave.engine.convert.scene import Scene
from cytopave.engine.lazy import Lazy, grouped
from cytopave.engine.omezarr.pyramid import UNIT_PIXELS
from cytopave.engine.omezarr.pyramid import LabelLevel as Level
from cytopave.engine.scratch.archive import write_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

CHUNK = 512
"""Length of a chunk in Y and X."""

OVERVIEW = 512
"""Levels are added until Y and X are no longer than this."""

SPANS = (4096, 2048, 1024)
"""Length of a unit in Y and X; the first that keeps a part below `PART_BYTES`, or the last."""

PART_BYTES = 1 << 29
"""Bytes that are read at once, unless the file gives its pixels in larger pieces only."""

GROUP_PIXELS = 1 << 28
"""About how many pixels a task takes, some ten seconds' work."""

# Raise it whenever a store written by an earlier version must not count as done.
CODE_VERSION = 1


class Conversion(BaseModel):
    """Everything that a store depends on: plain values.

    A *unit* is a shard of level 0 in Y and X. A *part* is what is read at once: a unit, or as many
    as the file's own pieces span. It is halved in memory, so that the image is read once.

    Attributes:
        scene: The image.
        store: Where the store will be.
        digest: Names the content of the source, and how it is converted.
        labels: Whether pixels are ids, of which coarser levels take one instead of the mean.
        scale: Size of a pixel per axis of `Scene.ngff_axes`; 1 where it is not known.
        units: Unit per axis, or None.
        notes: What there is to be said, a sentence each.
        span: Length of a unit in Y and X.
        part: Pixels of a part per axis.
        group_pixels: About how many pixels a task takes.
        overwrite: Whether a store that is there is replaced.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scene: Scene
    store: Path
    digest: str
    labels: bool
    scale: tuple[float, ...]
    units: tuple[str | None, ...]
    notes: tuple[str, ...]
    span: int
    part: tuple[int, ...]
    group_pixels: int = Field(default_factory=lambda: GROUP_PIXELS)
    overwrite: bool

    @property
    def work(self) -> Path:
        """The hidden folder beside the store in which it is made."""
        return self.store.parent / f".{self.store.name}.{self.digest[:8]}.converting"

    @property
    def staging(self) -> Path:
        """The store while it is made."""
        return self.work / "store"

    @property
    def axes(self) -> str:
        """Letters of the axes."""
        return self.scene.ngff_axes

    @property
    def shape(self) -> tuple[int, ...]:
        """Pixels per axis."""
        return self.scene.ngff_shape

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The levels, finest first; Y and X are halved from one to the next."""
        found: list[Level] = []
        shape = self.shape
        while True:
            found.append(self._level(len(found), shape))
            if max(shape[-2:]) <= OVERVIEW:
                return tuple(found)
            shape = (*shape[:-2], *(-(-n // 2) for n in shape[-2:]))

    @property
    def direct(self) -> int:
        """How many levels are written part by part; the others are made of the last of them."""
        if all(n <= self.span for n in self.shape[-2:]):
            return len(self.levels)
        return min(len(self.levels), int(math.log2(self.span // CHUNK)) + 1)

    @property
    def parts(self) -> Lazy[Box]:
        """What is read at once, box by box."""
        return Box.of(self.shape).blocks(self.part)

    @property
    def groups(self) -> Sequence[tuple[int, ...]]:
        """Indices of the parts of each task. The same on any number of workers."""
        return grouped(range(len(self.parts)), -(-math.prod(self.shape) // self.group_pixels))

    def units_of(self, part: Box) -> Lazy[Box]:
        """The units of a part, one channel and time point each."""
        depth = self.levels[0].shards or self.levels[0].chunks
        return part.blocks(depth)

    def is_done(self, group: int) -> bool:
        """Whether the parts of a group are written."""
        return self._mark(group).exists()

    def commit(self, group: int) -> None:
        """Note that the parts of a group are written."""
        write_bytes(self._mark(group), b"")

    def _mark(self, group: int) -> Path:
        return self.work / "done" / str(group)

    def _level(self, k: int, shape: tuple[int, ...]) -> Level:
        sizes = [self._spans(n, n0, k) for n, n0 in zip(shape[-2:], self.shape[-2:], strict=True)]
        chunk, shard = (tuple(size) for size in zip(*sizes, strict=True))
        ones = [1] * (len(shape) - 2)
        outer = list(ones)
        if "z" in self.axes:
            outer[-1] = self._depth()
        factors = [2**k if a in "yx" else 1 for a in self.axes]
        shift = [(f - 1) / 2 if a in "yx" else 0.0 for a, f in zip(self.axes, factors, strict=True)]
        return Level(
            path=str(k),
            shape=shape,
            chunks=(*ones, *chunk),
            shards=(*outer, *shard),
            scale=tuple(s * f for s, f in zip(self.scale, factors, strict=True)),
            translation=tuple(s * d for s, d in zip(self.scale, shift, strict=True)),
        )

    def _depth(self) -> int:
        """Planes of a shard: a divisor of the part's, so that no two parts write to one file."""
        most = max(1, UNIT_PIXELS // math.prod(min(self.span, n) for n in self.shape[-2:]))
        planes = self.part[-3]
        return max(d for d in range(1, min(most, planes) + 1) if planes % d == 0)

    def _spans(self, n: int, n0: int, k: int) -> tuple[int, int]:
        """Length of a chunk and of a shard of level ``k`` along an axis."""
        if n0 > self.span and self.span >> k >= CHUNK:
            return CHUNK, self.span >> k
        chunk = min(n, CHUNK)
        return chunk, min(-(-n // chunk) * chunk, self.span)


def part_shape(scene: Scene) -> tuple[int, tuple[int, ...]]:
    """Choose the length of a unit, and what is read at once.

    A part is a unit in Y and X, several planes if they are small, one time point, and the channels
    that lie together; and along each axis as much as the file gives at once anyway.

    Returns:
        Length of a unit in Y and X; pixels of a part per axis.
    """
    shape, block = scene.ngff_shape, scene.ngff_block
    bytes_ = np.dtype(scene.dtype).itemsize
    found = []
    for span in SPANS:
        plane = [min(n, -(-b // span) * span) for n, b in zip(shape[-2:], block[-2:], strict=True)]
        outer = [min(n, b) for n, b in zip(shape[:-2], block[:-2], strict=True)]
        if "z" in scene.ngff_axes:
            unit = math.prod(min(span, n) for n in shape[-2:])
            depth = max(1, UNIT_PIXELS // max(unit, math.prod(plane)))
            outer[-1] = min(shape[-3], -(-depth // block[-3]) * block[-3])
        found.append((span, (*outer, *plane)))
    fitting = (f for f in found if math.prod(f[1]) * bytes_ <= PART_BYTES)
    # Where the file gives whole planes only, smaller units make no smaller parts.
    return next(fitting, min(found, key=lambda f: (math.prod(f[1]), -f[0])))


def digest_of(**facts: object) -> str:
    """Digest of all that a store depends on."""
    text = repr(sorted({"code": CODE_VERSION, **facts}.items()))
    return hashlib.sha256(text.encode()).hexdigest()
