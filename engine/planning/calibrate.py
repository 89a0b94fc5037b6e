"""Choosing a halo from the data: a crop is segmented undivided, and tiled with ever longer halos.

The shortest halo whose tiles change no object is the one to take. What a halo has to be depends on
the objects and the method and not on the tile, so a crop of some tiles is enough; it is the one
with the most foreground of those looked at.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from cytopave.engine.boxes import Box
from cytopave.engine.errors import PlanError
from cytopave.engine.gpu.oom import attempt
from cytopave.engine.merge.links import Merge, scan
from cytopave.engine.merge.paint import Painter
from cytopave.engine.merge.resolve import resolve
from cytopave.engine.planning.foreground import Mask
from cytopave.engine.scratch.tiles import OpenTiles, Scratch
from cytopave.engine.segmenters.checks import checked
from cytopave.engine.segmenters.place import Place
from cytopave.engine.segmenters.voxels import anisotropy
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.planning.foreground import Foreground
    from cytopave.engine.segmenters import Segmenter

SAME = 0.97
"""Intersection over union from which an object counts as unchanged."""

HALOS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Halos that are tried, in pixels of Y and X."""

_TILES = 8  # along Y and X of the crop, or fewer where the halo is longer than such a tile
_SMALLEST = 128  # pixels of such a tile, if the crop has four: networks see more than that anyway
_DEEPEST = 64  # planes of a crop; a stack of no more is not cut along Z
_LOOKED_AT = 1 << 26  # pixels that are read to find the crop
_PART = 0.1  # of an object that another one has to hold to count as a part of it


class Trial(BaseModel):
    """What a halo did.

    Attributes:
        halo: Pixels along ([Z], Y, X).
        tile: Core of a tile along the same: small, so that many objects lie on seams.
        objects: Objects of the undivided crop.
        on_seams: How many of them reach over a seam: what the figures below rest on.
        changed: How many of them are not in the tiled result with an IoU of `SAME` or more.
        split: How many are in several parts there.
        fused: How many share one with another.
        lowest: Smallest IoU of an object with its partner; 0 where one has none.
        work: Pixels that the tiles see, for each pixel of the crop.
        seconds: Wall time.
    """

    model_config = ConfigDict(frozen=True)

    halo: tuple[int, ...]
    tile: tuple[int, ...]
    objects: int
    on_seams: int
    changed: int
    split: int
    fused: int
    lowest: float
    work: float
    seconds: float

    @property
    def invisible(self) -> bool:
        """Whether the tiles cannot be seen in the result."""
        return not (self.changed or self.split or self.fused)


class Calibration(BaseModel):
    """A halo from the data.

    Attributes:
        time: Time point of the crop.
        crop: First and past last pixel of the crop along ([Z], Y, X).
        foreground: Share of the crop that is foreground.
        trials: What each halo did, shortest first.
        halo: The shortest that changed nothing; the one that changed least if none did.
        invisible: Whether it changed nothing.
    """

    model_config = ConfigDict(frozen=True)

    time: int
    crop: tuple[tuple[int, ...], tuple[int, ...]]
    foreground: float
    trials: list[Trial]
    halo: tuple[int, ...]
    invisible: bool

    def rows(self) -> list[dict[str, object]]:
        """The trials as a table for people."""
        return [
            {
                "halo": " x ".join(map(str, t.halo)),
                "tile": " x ".join(map(str, t.tile)),
                "objects": t.objects,
                "on seams": t.on_seams,
                "changed": t.changed,
                "split": t.split,
                "fused": t.fused,
                "lowest IoU": round(t.lowest, 3),
                "work": round(t.work, 2),
                "seconds": round(t.seconds, 1),
            }
            for t in self.trials
        ]


def calibrate(
    image: Image,
    segmenter: Segmenter,
    *,
    channels: tuple[int, ...],
    side: int = 1024,
    halos: Sequence[int] = HALOS,
    merge: Merge | None = None,
    mask: Mask | None = None,
    told: Callable[[Trial], None] | None = None,
) -> Calibration:
    """Find the shortest halo whose tiles change nothing, in this process.

    Args:
        image: The image at the level that will be segmented.
        segmenter: Resolved for it.
        channels: Indices of the selected channels.
        side: Height and width of the crop in pixels.
        halos: Those to try, in ascending order.
        merge: The merge rule.
        mask: What is foreground, for the choice of the crop; None: Otsu's threshold.
        told: Is told of each trial.

    Raises:
        PlanError: The crop is too small for any of the halos, or has no object.
        SegmenterError: The method cannot be used here.
        OutOfMemoryError: The crop does not fit the GPU's memory: take a smaller one.
    """
    asked = mask or Mask(threshold="otsu")
    moment, crop, share = choose_crop(image, asked.resolve(image, channels=channels), side=side)
    run = _Trials(image, segmenter, channels, moment, crop, merge or Merge())
    whole, _ = run.segment(crop)
    if not whole.any():
        raise PlanError(
            f"nothing was found in the crop {crop}, which has the most foreground: correct the "
            "method's options first"
        )
    fitting = [h for h in halos if len(run.grid(h)) > 1]
    if not fitting:
        raise PlanError(
            f"a crop of {crop.shape} pixels is too small to try a halo of {min(halos)}: take a "
            "larger one"
        )
    trials = []
    for halo in fitting:
        trials.append(run.trial(whole, halo))
        if told:
            told(trials[-1])
        if trials[-1].invisible:
            break
    segmenter.release()
    best = min(trials, key=lambda t: (t.changed + t.split + t.fused, t.work))
    return Calibration(
        time=moment,
        crop=(crop.start, crop.stop),
        foreground=share,
        trials=trials,
        halo=best.halo,
        invisible=best.invisible,
    )


def choose_crop(image: Image, foreground: Foreground, *, side: int) -> tuple[int, Box, float]:
    """The block with the most foreground: time point, box in the image, and its share.

    Of a large image evenly spread blocks are looked at, as many as can be read in seconds.

    Raises:
        PlanError: None of them has any.
    """
    shape = image.spatial_shape
    size = tuple(
        min(n, s) for n, s in zip(shape, (_DEEPEST, side, side)[-len(shape) :], strict=True)
    )
    best: tuple[float, int, Box] | None = None
    for moment, box in _candidates(image, foreground, size):
        spans = [
            lay.covering(a, b)
            for lay, a, b in zip(foreground.overlays, box.start, box.stop, strict=True)
        ]
        start, stop = zip(*spans, strict=True)
        moments = min(moment, foreground.source.n_times - 1)
        share = float(foreground.read(moments, Box(start, stop)).mean())
        if best is None or share > best[0]:
            best = (share, moment, box)
    if best is None or not best[0]:
        raise PlanError(
            "no foreground was found to choose a crop by: say what is foreground (--mask otsu "
            "--mask-dark for bright field, or a mask image)"
        )
    return best[1], best[2], best[0]


def _candidates(
    image: Image, foreground: Foreground, size: tuple[int, ...]
) -> Iterator[tuple[int, Box]]:
    """Blocks side by side, from the middle of their axis's rest; evenly thinned out if many."""
    starts = [
        [(n - n // s * s) // 2 + i * s for i in range(n // s)]
        for n, s in zip(image.spatial_shape, size, strict=True)
    ]
    pixels = math.prod(
        s / lay.ratio for s, lay in zip(size, foreground.overlays, strict=True)
    ) * max(1, len(foreground.channels))
    total = image.n_times * math.prod(map(len, starts))
    wanted = max(1, min(total, int(_LOOKED_AT / max(1.0, pixels))))
    chosen = {round((i + 0.5) * total / wanted - 0.5) for i in range(wanted)}
    places = itertools.product(range(image.n_times), *starts)
    for number, (moment, *start) in enumerate(places):
        if number in chosen:
            stop = tuple(a + s for a, s in zip(start, size, strict=True))
            yield moment, Box(tuple(start), stop)


class _Trials:
    """One crop, segmented whole and in tiles."""

    def __init__(
        self,
        image: Image,
        segmenter: Segmenter,
        channels: tuple[int, ...],
        moment: int,
        crop: Box,
        merge: Merge,
    ) -> None:
        self._image = image
        self._segmenter = segmenter
        self._channels = channels
        self._moment = moment
        self._crop = crop
        self._merge = merge
        self._digest = image.fingerprint()

    def grid(self, halo: int) -> Grid:
        """The tiles of the crop, as if it were the image.

        The halo is as long along Z, in physical units; a stack that fits a tile has none there.
        """
        shape = self._crop.shape
        across = (min(n, max(halo, min(_SMALLEST, n // 4), n // _TILES)) for n in shape[-2:])
        deep = _DEEPEST // 2
        reach = min(deep, math.ceil(halo / anisotropy(self._image)))
        if len(shape) == 3 and self._image.spatial_shape[0] <= _DEEPEST:
            deep, reach = shape[0], 0
        return Grid(shape, (deep, *across)[-len(shape) :], (reach, halo, halo)[-len(shape) :])

    def segment(self, window: Box) -> tuple[np.ndarray, int]:
        """Labels of a window of the image, 1..n, and their number n."""
        shape = self._image.spatial_shape
        region = self._segmenter.region(window, shape)
        pixels = self._image.read(region, time=self._moment, channels=self._channels)
        place = Place(self._digest, self._moment, shape, region, window)
        labels = attempt(lambda: self._segmenter.at(place)(pixels))
        return checked(labels, window.shape, self._segmenter.title)

    def trial(self, whole: np.ndarray, halo: int) -> Trial:
        """Segment and merge the crop's tiles, and compare."""
        since = time.perf_counter()
        grid = self.grid(halo)
        with tempfile.TemporaryDirectory(prefix="cytopave-") as folder:
            tiled = self._tiled(grid, Scratch(Path(folder)))
        seconds = time.perf_counter() - since
        work = sum(tile.window.size for tile in grid) / self._crop.size
        return Trial(
            halo=grid.halo,
            tile=grid.tile,
            on_seams=_on_seams(whole, grid),
            work=work,
            seconds=seconds,
            **compare(whole, tiled),
        )

    def _tiled(self, grid: Grid, scratch: Scratch) -> np.ndarray:
        for tile in grid:
            labels, _ = self.segment(tile.window.shift(self._crop.start))
            scratch.commit(grid, tile, labels)
        tiles = range(len(grid))
        links = scan(OpenTiles(scratch), grid, tiles, self._merge)
        tables = {i: scratch.open(i).read("views")[0] for i in tiles}
        counts = np.array([len(tables[i]) for i in tiles])
        resolution = resolve(counts, tables.items(), links, self._merge)
        painter = Painter(scratch, grid, resolution)
        out = np.zeros(grid.shape, resolution.final.dtype)
        for tile in grid:
            out[tile.core.slices] = painter.paint(tile.index)
        return out


def _on_seams(whole: np.ndarray, grid: Grid) -> int:
    """Number of labels with pixels in more than one core."""
    ids = [np.unique(whole[tile.core.slices]) for tile in grid]
    found, times = np.unique(np.concatenate(ids), return_counts=True)
    return int(((times > 1) & (found > 0)).sum())


def compare(whole: np.ndarray, tiled: np.ndarray) -> dict[str, Any]:
    """How the objects of an undivided image fare in the tiled result: see `Trial`."""
    a = np.bincount(whole.ravel()).astype(np.int64)
    b = np.bincount(tiled.ravel().astype(np.int64))
    both = (whole > 0) & (tiled > 0)
    keys = (whole[both].astype(np.int64) << 32) | tiled[both].astype(np.int64)
    pairs, n = np.unique(keys, return_counts=True)
    own, other = pairs >> 32, pairs & 0xFFFFFFFF
    best = np.zeros(len(a))
    np.maximum.at(best, own, n / (a[own] + b[other] - n))
    present = np.flatnonzero(a[1:]) + 1
    parts = np.bincount(own[n >= _PART * a[own]], minlength=len(a))
    holders = other[2 * n >= a[own]]
    shared = np.bincount(holders, minlength=len(b))
    return {
        "objects": len(present),
        "changed": int((best[present] < SAME).sum()),
        "split": int((parts[present] > 1).sum()),
        "fused": int((shared[holders] > 1).sum()),
        "lowest": float(best[present].min(initial=1.0)),
    }
