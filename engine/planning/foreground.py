"""Which tiles are segmented at all: those in whose window there is foreground.

The foreground is what a mask says (any label image or array of the same field of view, at any
resolution), or what is brighter (or darker) than a threshold at some level of the image's pyramid.

What is guaranteed. A tile is skipped only if no pixel of the mask that may overlap its window is
foreground, the halo included. For a mask, and for a threshold at the level that is segmented, that
is exact. At a coarser level a threshold speaks of that level's pixels. An object that is brighter
than the threshold throughout and holds one of these pixels whole (any square of twice its side
does) is then certain to be looked at, and seen whole if it is no larger than the halo; smaller or
dimmer ones may be averaged away, or fall between the pixels that were picked.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from cytopave.engine.boxes import Box
from cytopave.engine.errors import ImageError
from cytopave.engine.intensity import coarse_level, histogram
from cytopave.engine.lazy import Lazy
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.planning.placement import Overlay, overlays
from cytopave.engine.segmenters.checks import checked
from cytopave.engine.segmenters.cutoff import brighter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cytopave.engine.tiling import Grid

_BLOCK_PIXELS = 1 << 24

Finite = Annotated[float, Field(allow_inf_nan=False)]


class Mask(BaseModel):
    """What is foreground: an image that says so, or a threshold. A text or number will do.

    Where a mask is asked for, ``"otsu"``, ``500`` and ``"tissue.zarr"`` are short for a threshold
    by Otsu's method, one of 500, and a mask image.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: Annotated[
        str | None,
        Field(description="Path or URL of a mask of the same field of view: not 0 is foreground."),
    ] = None
    axes: Annotated[
        str | None, Field(description="Axes of a mask that is a plain array, such as 'yx'.")
    ] = None
    threshold: Annotated[
        Literal["otsu"] | Finite | tuple[Finite, ...] | None,
        Field(
            description="Instead of a mask: what is brighter is foreground. One value, or one per "
            "selected channel; any of them suffices."
        ),
    ] = None
    dark: Annotated[
        bool,
        Field(description="What is not brighter than the threshold is foreground: bright field."),
    ] = False
    level: Annotated[
        NonNegativeInt | None,
        Field(
            description="Level of the pyramid: of the mask (empty: its finest), or of the image "
            "where there is a threshold (empty: a coarse one)."
        ),
    ] = None
    clip: Annotated[
        bool,
        Field(
            description="Remove what is labelled outside the mask. Otherwise only whole tiles are "
            "skipped, and what they hold of objects outside depends on the tiles."
        ),
    ] = False

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "otsu":
            try:
                value = float(value)
            except ValueError:
                return {"image": value}
        return value if isinstance(value, dict | Mask | bool) else {"threshold": value}

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.image is None) == (self.threshold is None):
            raise ValueError("give a mask image or a threshold, and not both")
        if self.dark and self.threshold is None:
            raise ValueError("dark belongs to a threshold: invert the mask image instead")
        return self

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Foreground:
        """Open the mask, see whether it fits the image, and take what is global from all of it.

        Args:
            image: The image at the level that is segmented.
            channels: Indices of the selected channels.

        Raises:
            ImageError: There is no such mask or level, or it shows another field of view.
        """
        if self.image is not None:
            source = open_image(self.image, level=self.level or 0, axes=self.axes)
            _check_mask(source, image)
            asked = self.model_copy(update={"image": source.url, "level": source.level})
            return Foreground(
                asked=asked, source=source, overlays=overlays(source, image), channels=(), cuts=()
            )
        source = self._level_of(image)
        cuts = self._cuts(image, channels)
        asked = self.model_copy(update={"threshold": cuts, "level": source.level})
        return Foreground(
            asked=asked,
            source=source,
            overlays=overlays(source, image),
            channels=channels,
            cuts=cuts,
        )

    def _level_of(self, image: Image) -> Image:
        if self.level is None:
            return coarse_level(image)
        if self.level < image.level:
            raise ImageError(
                f"level {image.level} is segmented and the mask is asked for at level {self.level},"
                f" which is finer: give {image.level} or more"
            )
        return image.at_level(self.level)

    def _cuts(self, image: Image, channels: tuple[int, ...]) -> tuple[float, ...]:
        if self.threshold == "otsu":
            return tuple(h.otsu() for h in histogram(image, channels=channels))
        n = max(1, len(channels))
        given = self.threshold
        cuts = given if isinstance(given, tuple) else (float(given or 0.0),) * n
        if len(cuts) != n:
            raise ImageError(
                f"the mask has {len(cuts)} thresholds and {n} channels are selected: give one, or "
                "one per channel"
            )
        return cuts


class Foreground(BaseModel):
    """A mask, opened and placed on the image that is segmented.

    Attributes:
        asked: What was asked for, with every global value filled in.
        source: The mask, or the level of the image that the thresholds are applied to.
        overlays: How its pixels lie on the image's, along ([Z], Y, X).
        channels: Channels of the source that are looked at; empty for a mask.
        cuts: Their thresholds; empty for a mask.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    asked: Mask
    source: Image
    overlays: tuple[Overlay, ...]
    channels: tuple[int, ...]
    cuts: tuple[float, ...]

    def digest(self) -> str:
        """SHA-256 of all that the foreground depends on; the mask's pixels by its fingerprint."""
        facts = {
            "content": self.source.fingerprint(),
            "cuts": self.cuts,
            "dark": self.asked.dark,
            "clip": self.asked.clip,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def provenance(self) -> dict[str, Any]:
        """What a reader of the labels needs to know about the mask; JSON-able."""
        return {**self.asked.model_dump(mode="json", exclude_none=True), "digest": self.digest()}

    def blocks(self) -> Lazy[tuple[int, Box]]:
        """Pieces of the source to be looked at one by one: time point, and box ([Z], Y, X)."""
        shape = tuple(lay.length for lay in self.overlays)
        step = [*self.source.canonical_chunks[2:]][-len(shape) :]
        step = [1] * (len(shape) - len(step)) + step
        for axis in reversed(range(len(step))):  # rows first: they lie together
            room = max(1, _BLOCK_PIXELS // math.prod(step))
            step[axis] = min(step[axis] * room, -(-shape[axis] // step[axis]) * step[axis])
        boxes = Box.of(shape).blocks(tuple(step))
        return Lazy(
            self.source.n_times * len(boxes), lambda i: (i // len(boxes), boxes[i % len(boxes)])
        )

    def tiles(self, grid: Grid, blocks: Iterable[tuple[int, Box]]) -> np.ndarray:
        """Which tiles have foreground in their windows, as far as some blocks of the source show.

        Args:
            grid: The tiles.
            blocks: Some of `blocks`; join the answers of all of them by "or".

        Returns:
            ``(len(grid),)`` bool.

        Raises:
            CorruptError: A chunk of the source is truncated or damaged.
        """
        spans = [
            [lay.covering(*span) for span in axis]
            for lay, axis in zip(self.overlays, grid.windows, strict=True)
        ]
        found = np.zeros((self.source.n_times, *grid.counts), bool)
        for time, box in blocks:
            mask = self.read(time, box)
            if mask.any():
                _mark(found[time], mask, box, spans)
        return np.broadcast_to(found, (grid.times, *grid.counts)).ravel()

    def clipped(
        self, labels: np.ndarray, n: int, *, time: int, window: Box
    ) -> tuple[np.ndarray, int]:
        """Labels of a window without what lies outside the mask, if that was asked for.

        Which pixels these are is the same for every tile. An object of which the mask leaves
        several parts stays one.

        Args:
            labels: ``([Z], Y, X)`` uint32, 1..n without gaps.
            n: Number of labels.
            time: Time point.
            window: Region of the image.

        Returns:
            The labels, without gaps again, and their number.
        """
        if not self.asked.clip or not n:
            return labels, n
        return checked(np.where(self.inside(time, window), labels, 0), window.shape, "the mask")

    def inside(self, time: int, window: Box) -> np.ndarray:
        """Which pixels of a window are foreground, ``([Z], Y, X)`` bool.

        Args:
            time: Time point of the image.
            window: Region of the image, in its pixels.

        Raises:
            CorruptError: A chunk of the source is truncated or damaged.
        """
        covered = [
            lay.at(a, b) for lay, a, b in zip(self.overlays, window.start, window.stop, strict=True)
        ]
        box = Box(tuple(int(c[0]) for c in covered), tuple(int(c[-1]) + 1 for c in covered))
        mask = self.read(min(time, self.source.n_times - 1), box)
        return mask[np.ix_(*(c - a for c, a in zip(covered, box.start, strict=True)))]

    def read(self, time: int, box: Box) -> np.ndarray:
        """What is foreground in a box of the source.

        Args:
            time: Time point of the source.
            box: In its pixels, along the image's spatial axes ([Z], Y, X).

        Returns:
            Bool of the box's shape.

        Raises:
            CorruptError: A chunk of the source is truncated or damaged.
        """
        n = len(self.source.spatial_shape)
        # One has Z and the other has not: then the one that has it has one plane, or is on all.
        start, stop = ((0,) * (n - len(c)) + c[-n:] for c in (box.start, box.stop))
        stop = tuple(max(a + 1, b) for a, b in zip(start, stop, strict=True))
        pixels = self.source.read(Box(start, stop), time=time, channels=self.channels)
        if not self.cuts:
            found = np.asarray(pixels != 0)
            return (found & ~np.isnan(pixels) if pixels.dtype.kind == "f" else found).reshape(
                box.shape
            )
        each = pixels.reshape(len(self.cuts), *box.shape)
        pairs = zip(each, self.cuts, strict=True)
        if self.asked.dark:
            return np.any([one <= cut for one, cut in pairs], axis=0)
        return np.any([brighter(one, cut) for one, cut in pairs], axis=0)


def _mark(
    found: np.ndarray, mask: np.ndarray, box: Box, spans: list[list[tuple[int, int]]]
) -> None:
    """Note which tiles a block of the mask shows to have foreground."""
    here = [
        [
            (i, slice(max(0, a - low), b - low))
            for i, (a, b) in enumerate(axis)
            if a < high and b > low
        ]
        for axis, low, high in zip(spans, box.start, box.stop, strict=True)
    ]
    for parts in itertools.product(*here):
        position = tuple(i for i, _ in parts)
        if not found[position]:
            found[position] = mask[tuple(cut for _, cut in parts)].any()


def _check_mask(mask: Image, image: Image) -> None:
    if mask.n_channels > 1:
        raise ImageError(
            f"the mask {mask.url} has {mask.n_channels} channels: give a label image, or an array "
            "of one channel"
        )
    if mask.n_times not in (1, image.n_times):
        raise ImageError(
            f"the mask {mask.url} has {mask.n_times} time points and {image.url} {image.n_times}: "
            "give one mask for all of them, or one each"
        )
