"""A measurement, decided: what is read, in which parts, and where the table goes."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.lazy import Lazy, grouped
from cytopave.engine.omezarr.image import Image
from cytopave.engine.omezarr.labels import LabelTarget
from cytopave.engine.scratch.saved import Saved
from cytopave.engine.tables.columns import Schema
from cytopave.engine.tables.target import TableTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_BYTES = 1 << 28
"""Memory that a block may take; `_pixel_bytes` says what a pixel takes."""

REGION_PIXELS = 1 << 22
"""About how many pixels a region has: what is read, measured and committed as one file."""

LEAST_PIXELS, MOST_PIXELS = 1 << 22, 1 << 26
"""Pixels of a task, which costs about 0.2 s beside its work: of small images and large ones."""

_TASKS = 64  # where neither bound holds


type Region = tuple[int, Box]
"""A time point, and a box of its pixels."""


ABOUT_PLACES = frozenset({"labels", "image"})
"""Facts that a copy or a move of the store changes, and nothing else."""


class Measurement(Saved):
    """Everything that a table depends on; workers read it from the scratch folder.

    Attributes:
        digest: Names the table's content.
        image: The image, at the level that has the labels' pixels.
        labels: The labels' array that is measured.
        channels: Channels that are measured; empty where the image has no channel axis.
        columns: The table's columns.
        target: Where the table goes.
        place: URL of the label image, or of the array that holds the labels.
        region: The same as a path relative to the table, where there is one.
        made: What the labels' attributes say, or will say, of how cytopave made them.
        fingerprint: Of the labels.
        resolution: Folder of the merge that made the labels; None where it is not known.
        painted: The labels whose sums were taken when they were painted, block by block
            (`cytopave.engine.tables.tile_sums`); None where they have yet to be taken.
    """

    digest: str
    image: Image
    labels: Image
    channels: tuple[int, ...]
    columns: Schema
    target: TableTarget
    place: str
    region: str
    made: dict[str, Any] | None
    fingerprint: str
    resolution: Path | None = None
    painted: LabelTarget | None = None

    @property
    def regions(self) -> Lazy[Region]:
        """The parts of all time points that are measured by themselves, each into one file."""
        if self.painted is not None:
            blocks = self.painted.blocks()
            return Lazy(len(blocks), lambda i: (blocks[i].time, blocks[i].box))
        shape = self.labels.spatial_shape
        boxes = Box.of(shape).blocks(region_shape(self.image, self.labels))
        return Lazy(
            self.labels.n_times * len(boxes),
            lambda i: (i // len(boxes), boxes[i % len(boxes)]),
        )

    @property
    def groups(self) -> Sequence[tuple[int, ...]]:
        """Indices of the regions of each task. The same on any number of workers."""
        if self.painted is not None:
            return ()
        whole = math.prod(self.labels.spatial_shape) * self.labels.n_times
        task = min(max(whole // _TASKS, LEAST_PIXELS), MOST_PIXELS)
        return grouped(range(len(self.regions)), -(-whole // task))

    def blocks(self, region: Box) -> Lazy[Box]:
        """The parts of a region that are in memory at once."""
        pixels = BLOCK_BYTES // _pixel_bytes(self.image, max(1, len(self.channels)))
        return region.blocks(block_shape(self.labels, pixels))

    def part(self, region: int) -> Path:
        """Where the sums of a region lie once they are taken; other regions have another place."""
        return part_path(self.root, self.regions[region])

    def hull(self, region: int) -> Path:
        """Where its objects' rows of pixels lie, which are written before the sums."""
        return hull_path(self.part(region))

    @property
    def is_flat(self) -> bool:
        """Whether objects lie in planes, which is where their convex area is measured."""
        return len(self.columns.axes) == 2

    def facts(self) -> dict[str, Any]:
        """What the table's attributes say of what it holds and where that was: JSON values."""
        columns = self.columns.model_dump(
            mode="json", include={"axes", "units", "scale", "translation"}
        )
        return {
            "labels": self.place,
            "fingerprint": self.fingerprint,
            "image": self.image.url,
            "pixels": self.image.fingerprint(times=False),
            "level": self.image.level,
            "channels": list(self.channels),
            **columns,
        }


def part_path(root: Path, region: Region) -> Path:
    """Where the sums of a region lie in the scratch folder of a measurement."""
    name = hashlib.sha256(repr(region).encode()).hexdigest()
    return root / "parts" / name[:2] / f"{name[:16]}.npy"


def hull_path(part: Path) -> Path:
    """Where the rows of pixels of a region's objects lie, beside its sums."""
    return part.with_suffix(".hulls.npy")


def region_shape(image: Image, labels: Image) -> tuple[int, ...]:
    """Shape of a region that no chunk of image or labels reaches out of, if that is possible.

    Chunks of the one need not divide those of the other. Where a common multiple holds no more than
    `MOST_PIXELS`, each chunk is decoded once in all; else, those of the image at the borders
    between two regions are decoded once for each.

    Returns:
        As many such multiples as make about `REGION_PIXELS`, at least one.
    """
    shape = labels.spatial_shape
    chunk = _chunk(labels)
    both = zip(chunk, image.canonical_chunks[-len(shape) :], shape, strict=True)
    common = tuple(min(math.lcm(a, b), n) for a, b, n in both)
    step = common if math.prod(common) <= MOST_PIXELS else chunk
    return _grown(step, step, shape, REGION_PIXELS)


def block_shape(labels: Image, pixels: int) -> tuple[int, ...]:
    """Shape of a block of at most so many pixels: whole chunks of labels, if one has no more."""
    chunk = _halved(_chunk(labels), pixels)
    return _grown(chunk, chunk, labels.spatial_shape, pixels)


def _chunk(labels: Image) -> tuple[int, ...]:
    shape = labels.spatial_shape
    return tuple(map(min, labels.canonical_chunks[-len(shape) :], shape))


def _halved(sizes: tuple[int, ...], pixels: int) -> tuple[int, ...]:
    """Halve the longest axis until no more than ``pixels`` are left: some chunks are very large."""
    halved = list(sizes)
    while math.prod(halved) > max(1, pixels):
        axis = max(range(len(halved)), key=lambda i: halved[i])
        halved[axis] = -(-halved[axis] // 2)
    return tuple(halved)


def _grown(
    sizes: tuple[int, ...], step: tuple[int, ...], shape: tuple[int, ...], pixels: int
) -> tuple[int, ...]:
    """Add steps along the shortest axis, Y and X before Z, as long as ``pixels`` are not passed."""
    grown = list(sizes)
    while True:
        axes = [i for i in range(len(grown)) if grown[i] < shape[i]]
        if not axes:
            return tuple(grown)
        axis = min(axes, key=lambda i: (i < len(grown) - 2, grown[i]))
        if math.prod(grown) // grown[axis] * (grown[axis] + step[axis]) > pixels:
            return tuple(grown)
        grown[axis] += step[axis]


def _pixel_bytes(image: Image, n_channels: int) -> int:
    """Labels, the image, and what is derived of one channel at a time."""
    return 8 + np.dtype(image.dtype).itemsize * (n_channels + 1) + 3 * 8
