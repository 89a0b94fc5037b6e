"""The layout of a label image's pyramid: shapes, chunks, shards, units of writing, sampling.

Each level is sampled from the one before it: pixel ``i`` along an axis is pixel
``index[i]`` there. So a level does not depend on which of the finer ones it was made from, nor
on the tiling, and its ids are a subset of theirs.
"""

from __future__ import annotations

import itertools
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from cytopave.engine.boxes import Box, boxes_between

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.lazy import Lazy
    from cytopave.engine.omezarr.image import Image, Level

CHUNK = 512
"""Length of a chunk in Y and X to come close to: 1 MB of uint32, which viewers page well."""

CHUNK_Z = 8
"""Length of a chunk in Z to come close to."""

UNIT_PIXELS = 1 << 24
"""Pixels that a unit of writing, and so a shard, holds at most (64 MB of uint32)."""

GROUP_PIXELS = 1 << 22
"""Pixels up to which several small tiles are grouped into one unit."""

OVERVIEW = 1024
"""Pixels in Y and X down to which a single level is halved."""

_SMALLEST = 128  # a chunk in Y and X below which a level is left for later


class LabelLevel(BaseModel):
    """One level of a label image; tuples are in the order of the label image's axes.

    Attributes:
        path: Path of the zarr array in the label image's group.
        shape: Pixels per axis.
        chunks: Shape of a chunk (of the inner chunks of a shard).
        shards: Shape of a shard, or None.
        scale: Physical size of a pixel.
        translation: Physical position of the first pixel.
    """

    model_config = ConfigDict(frozen=True)

    path: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    scale: tuple[float, ...]
    translation: tuple[float, ...]


class Blocks(BaseModel):
    """How level 0 is chunked and cut into units of writing; tuples are ([Z], Y, X).

    Attributes:
        chunk: Shape of a chunk.
        unit: Shape of a unit of writing, which lies in one file if the format has shards: a
            multiple of the chunk, and of the tile core unless that has no divisor that makes a
            good chunk, or is too large.
    """

    model_config = ConfigDict(frozen=True)

    chunk: tuple[int, ...]
    unit: tuple[int, ...]


def plan_blocks(shape: Sequence[int], tile: Sequence[int]) -> Blocks:
    """Choose chunks, shards and units for level 0 of shape ``([Z], Y, X)``.

    A chunk is the divisor of the tile core nearest to `CHUNK` (`CHUNK_Z`), the core itself if
    it has none, or else `CHUNK`; several cores if they are smaller than that in Y or X. A unit is
    a core, as long as it holds no more than `UNIT_PIXELS`, or a group of small ones: every file
    costs as much as compressing a chunk.
    """
    targets = (CHUNK_Z, CHUNK, CHUNK)[-len(shape) :]
    chunk, grain = [], []
    for n, t, target in zip(shape, tile, targets, strict=True):
        if t >= n:
            c = min(n, target)
        elif t < target:
            c = t * min(target // t, -(-n // t)) if target == CHUNK else t
        else:
            c = divisor(t, target) or target
        chunk.append(c)
        grain.append(-(-n // c) * c if t >= n else max(1, round(t / c)) * c)
    return Blocks(chunk=tuple(chunk), unit=_grow(_shrink(grain, chunk), shape))


def divisor(length: int, target: int) -> int | None:
    """The divisor of ``length`` nearest to ``target`` by ratio.

    Returns:
        None if none is at least a quarter and at most twice ``target``, and ``length`` itself
        is more than four times that.
    """
    found = [d for d in range(1, length + 1) if length % d == 0]
    best = min(found, key=lambda d: abs(math.log(d / target)))
    if target / 4 <= best <= 2 * target:
        return best
    return length if length <= 4 * target else None


def _shrink(grain: Sequence[int], chunk: Sequence[int]) -> tuple[int, ...]:
    """Halve (or third, ...) what is too large for a unit, keeping it a multiple of the chunk."""
    sizes = list(grain)
    while math.prod(sizes) > UNIT_PIXELS and sizes != list(chunk):
        axis = max(range(len(sizes)), key=lambda i: sizes[i] / chunk[i])
        n = sizes[axis] // chunk[axis]
        sizes[axis] = chunk[axis] * next(n // p for p in range(2, n + 1) if n % p == 0)
    return tuple(sizes)


def _grow(unit: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Double a unit along its shortest axes while it stays small; Y and X before Z."""
    sizes = list(unit)
    while math.prod(sizes) * 2 <= GROUP_PIXELS:
        axes = [i for i in range(len(sizes)) if sizes[i] < shape[i]]
        if not axes:
            break
        axis = min(axes, key=lambda i: (i < len(sizes) - 2, sizes[i], -i))
        sizes[axis] *= 2
    return tuple(sizes)


def unit_edges(shape: Sequence[int], blocks: Blocks) -> list[list[int]]:
    """Where units begin and end per axis; a rest below a quarter joins the unit before."""
    edges = []
    for n, unit in zip(shape, blocks.unit, strict=True):
        cuts = [*range(0, n, unit), n]
        if len(cuts) > 2 and 4 * (n - cuts[-2]) < unit:
            del cuts[-2]
        edges.append(cuts)
    return edges


def units(edges: Sequence[Sequence[int]]) -> Lazy[Box]:
    """The boxes between edges, in raster order."""
    return boxes_between(edges)


def sample_index(fine: int, coarse: int, *, shift: float = 0.0) -> np.ndarray:
    """Which pixel of a finer level each pixel of a coarser one shows, along one axis.

    Args:
        fine: Length of the finer level.
        coarse: Length of the coarser level.
        shift: Position of the coarser level's first pixel among the finer level's, from the
            translations; halves round down.

    Returns:
        ``coarse`` increasing indices below ``fine``.
    """
    factor: float = max(1, round(fine / coarse))
    if coarse not in (fine // factor, -(-fine // factor)):
        factor = fine / coarse
    offset = min(max(math.ceil(shift - 0.5), 0), max(0, math.ceil(factor) - 1))
    index = np.floor(np.arange(coarse) * factor).astype(np.int64) + offset
    return np.minimum(index, fine - 1)


def coarse_spans(
    edges: Sequence[Sequence[int]],
    indices: Sequence[np.ndarray],
    chunk: Sequence[int],
    unit: Sequence[int],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Chunk and shard of a coarse level that can be written unit by unit.

    Args:
        edges: Edges of the units on level 0.
        indices: For each axis, the pixel of level 0 that each pixel of the coarse level shows.
        chunk: Length of a chunk to come close to.
        unit: Shape of a unit on level 0.

    Returns:
        Both shapes, or None where a chunk of useful size would belong to several units.
    """
    chunks, shards = [], []
    smallest = (1, _SMALLEST, _SMALLEST)[-len(chunk) :]
    for cuts, index, target, length, least in zip(
        edges, indices, chunk, unit, smallest, strict=True
    ):
        if len(cuts) == 2:
            size = min(target, len(index))
            span = -(-len(index) // size) * size
        else:
            span = int(np.searchsorted(index, length))
            size = (divisor(span, target) or target) if span else 0
            starts = np.searchsorted(index, cuts[1:-1])
            if size < least or span % size or np.any(starts % span):
                return None
        chunks.append(size)
        shards.append(span)
    return tuple(chunks), tuple(shards)


def lay_out(image: Image, axes: str, plan: Blocks) -> tuple[tuple[LabelLevel, ...], int]:
    """The levels of an image's labels, and how many of them are written unit by unit.

    They are the image's own from the segmented one on, so that viewers align them, and coarser
    ones where it has too few.

    Args:
        image: The image, at the level that is segmented.
        axes: Axes of the labels, those of the image without C.
        plan: Chunks, shards and units of level 0.
    """
    bare = [_bare(image, axes, level) for level in image.levels[image.level :]]
    bare = _extend(bare, axes, at_least=len(image.levels))
    n = len(plan.chunk)
    steps = sampling(tuple(bare), n)
    edges = unit_edges(bare[0].shape[-n:], plan)
    targets = (CHUNK_Z, CHUNK, CHUNK)[-n:]
    indices = [np.arange(length) for length in bare[0].shape[-n:]]
    levels, direct = [], 0
    for k, level in enumerate(bare):
        spans: Any = (plan.chunk, plan.unit)
        if k:
            indices = [i[s] for i, s in zip(indices, steps[k - 1], strict=True)]
            spans = coarse_spans(edges, indices, targets, plan.unit)
        if spans is not None and direct == k:
            direct = k + 1
        else:
            chunk = tuple(map(min, targets, level.shape[-n:]))
            spans = (chunk, chunk)
        levels.append(_with_chunks(level, *spans, sharded=image.zarr_format == 3))
    return tuple(levels), direct


def _with_chunks(
    level: LabelLevel, chunk: tuple[int, ...], shard: tuple[int, ...], *, sharded: bool
) -> LabelLevel:
    ones = (1,) * (len(level.shape) - len(chunk))
    shards = (*ones, *shard) if sharded and shard != chunk else None
    return level.model_copy(update={"chunks": (*ones, *chunk), "shards": shards})


def _bare(image: Image, axes: str, level: Level) -> LabelLevel:
    return LabelLevel(
        path="0",
        shape=image.of(axes, level.shape),
        chunks=(),
        shards=None,
        scale=image.of(axes, level.scale),
        translation=image.of(axes, level.translation),
    )


def _extend(levels: list[LabelLevel], axes: str, *, at_least: int) -> list[LabelLevel]:
    """The image's levels, and coarser ones made by halving Y and X.

    A single level is halved until it is an overview. And the specification asks for as many
    levels as the image has, also where a coarser one was segmented.
    """
    alone = len(levels) == 1
    while len(levels) < at_least or (alone and max(levels[-1].shape[-2:]) > OVERVIEW):
        last = levels[-1]
        double = [a in "yx" for a in axes]
        shape = [-(-s // 2) if d else s for s, d in zip(last.shape, double, strict=True)]
        scale = [s * 2 if d else s for s, d in zip(last.scale, double, strict=True)]
        levels.append(last.model_copy(update={"shape": tuple(shape), "scale": tuple(scale)}))
    return [level.model_copy(update={"path": str(k)}) for k, level in enumerate(levels)]


@lru_cache(maxsize=64)
def sampling(levels: tuple[LabelLevel, ...], n: int) -> list[list[np.ndarray]]:
    """`sample_index` of each level but the first, for each of the ``n`` spatial axes."""
    steps = []
    for fine, coarse in itertools.pairwise(levels):
        shifts = [
            (b - a) / s if s else 0.0
            for a, b, s in zip(fine.translation, coarse.translation, fine.scale, strict=True)
        ]
        steps.append(
            [
                sample_index(fine.shape[i], coarse.shape[i], shift=shifts[i])
                for i in range(len(fine.shape) - n, len(fine.shape))
            ]
        )
    return steps


def coarser(region: Box, part: np.ndarray, index: Sequence[np.ndarray]) -> tuple[Box, np.ndarray]:
    """What a coarser level shows of a region.

    Args:
        region: A region of a level.
        part: Its pixels.
        index: `sample_index` of the next coarser level, per axis.

    Returns:
        The region there, and its pixels.
    """
    start = tuple(int(np.searchsorted(i, a)) for i, a in zip(index, region.start, strict=True))
    stop = tuple(int(np.searchsorted(i, b)) for i, b in zip(index, region.stop, strict=True))
    picks = [i[a:b] - o for i, a, b, o in zip(index, start, stop, region.start, strict=True)]
    for axis, pick in enumerate(picks):
        part = part[(slice(None),) * axis + (_even(pick),)]
    return Box(start, stop), np.ascontiguousarray(part)


def _even(pick: np.ndarray) -> np.ndarray | slice:
    """A slice in place of evenly spaced indices, which copies no pixel that is not wanted."""
    step = int(pick[1] - pick[0]) if len(pick) > 1 else 1
    if not len(pick) or step < 1 or (np.diff(pick) != step).any():
        return pick
    return slice(int(pick[0]), int(pick[-1]) + 1, step)
