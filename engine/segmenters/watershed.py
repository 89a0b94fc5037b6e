"""Round objects that touch, parted where they are narrowest: a classical method for nuclei.

Foreground is what is brighter than one global threshold after smoothing. Each connected clump of it
is then parted on its own: its seeds are the maxima of the distance to the background that rise at
least ``depth`` above the way to any higher one, and the watershed of that distance grows them.

How far a label depends on pixels: whether a pixel is foreground, on those within four standard
deviations of the smoothing, which are read beyond the window of a tile, so that all tiles agree on
the foreground. To which object it belongs, on its clump and nothing else. A clump that a tile sees
whole, with a pixel around it, is therefore parted as in the whole image. Of one that the window
cuts, which may be any distance long, the parts near the cut may be drawn differently; the merge
then treats them as it does all outlines that are not alike. Hence: take a halo as long as clumps,
not as objects.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from cytopave.engine.boxes import Box
from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.cutoff import brighter, global_threshold
from cytopave.engine.segmenters.objects import drop_small
from cytopave.engine.segmenters.voxels import anisotropy

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.segmenters.place import Place

_REACH = 4.0  # standard deviations that the smoothing looks at
_SLACK = 1e-5  # by which a smoothed pixel has to exceed a threshold: flat places come out rounded
_STEPS = 64  # distances are counted in this part of a pixel: maxima of whole numbers are exact


class Watershed(SegmenterBase):
    """Nuclei by threshold, distance and watershed. Needs no GPU and no model."""

    kind: Literal["watershed"] = "watershed"
    threshold: Annotated[
        float | None,
        Field(
            allow_inf_nan=False,
            description="Foreground is what is brighter than this after smoothing. Empty: Otsu's "
            "threshold of the whole image, taken once.",
        ),
    ] = None
    sigma: Annotated[
        NonNegativeFloat,
        Field(le=64, description="Standard deviation of the smoothing in pixels; 0 does not."),
    ] = 1.0
    max_hole: Annotated[
        NonNegativeInt, Field(description="Holes of up to so many pixels are filled.")
    ] = 64
    depth: Annotated[
        PositiveFloat,
        Field(
            le=1e6,
            description="How much narrower than both objects the place between them has to be, in "
            "pixels of radius. Smaller parts more.",
        ),
    ] = 1.5
    min_size: Annotated[
        NonNegativeInt, Field(description="Objects of fewer pixels are dropped.")
    ] = 15
    spacing: Annotated[
        PositiveFloat | None,
        Field(
            description="Distance of planes in pixels, for stacks. Empty: from the image's voxel "
            "size."
        ),
    ] = None
    diameter: Annotated[
        PositiveFloat | None,
        Field(description="Typical diameter of a clump in pixels; sizes an automatic halo."),
    ] = None

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Fill the threshold from the whole image's histogram, and the distance of planes.

        Raises:
            SegmenterError: More than one channel is selected.
            ImageError: The image has no finite pixel.
        """
        cut = global_threshold(image, channels, self.threshold, method="the watershed")
        spacing = self.spacing or anisotropy(image)
        return self.model_copy(update={"threshold": cut, "spacing": spacing})

    def without_effect(self) -> set[str]:
        """A hint for the planner."""
        return {"diameter"}

    @property
    def diameter_px(self) -> float | None:
        """The diameter that was given."""
        return self.diameter

    def megapixels_per_second(self, *, on_gpu: bool) -> float:
        """Rough speed of one worker; the GPU is not used."""
        return 2.0

    def region(self, window: Box, shape: tuple[int, ...]) -> Box:
        """The window and what the smoothing of its pixels looks at."""
        reach = (math.ceil(_REACH * self.sigma),) * len(shape)
        return window.grow(reach).intersect(Box.of(shape))

    def at(self, place: Place) -> LabelFunction:
        """The function from the pixels of a region to the labels of its window."""
        return functools.partial(self._segment, window=place.window.within(place.region))

    def load(self) -> LabelFunction:
        """The function that segments an image by itself.

        Raises:
            SegmenterError: The segmenter was not resolved.
        """
        return functools.partial(self._segment, window=np.s_[...])

    def _segment(self, pixels: np.ndarray, *, window: Any) -> np.ndarray:
        if self.threshold is None or self.spacing is None:
            raise SegmenterError("the threshold is open: call resolve(image) before load()")
        if pixels.ndim not in (2, 3):
            raise SegmenterError(
                f"the watershed segments planes and stacks, and this tile has {pixels.ndim} axes"
            )
        mask = _filled(self._foreground(pixels, self.threshold)[window], self.max_hole)
        spacing = (self.spacing, 1.0, 1.0)[-mask.ndim :]
        return drop_small(part_clumps(mask, depth=self.depth, spacing=spacing), self.min_size)

    def _foreground(self, pixels: np.ndarray, threshold: float) -> np.ndarray:
        from scipy import ndimage

        if not self.sigma:
            return brighter(pixels, threshold)
        kind = np.float32 if pixels.dtype.itemsize <= 2 else np.float64
        values = pixels.astype(kind)
        if pixels.dtype.kind == "f":
            # What is no finite number would spread; at the threshold it has no say.
            values[~np.isfinite(values)] = threshold
        smooth = ndimage.gaussian_filter(values, self.sigma, mode="nearest", truncate=_REACH)
        return np.asarray(smooth > kind(threshold + _SLACK * abs(threshold)))


def part_clumps(mask: np.ndarray, *, depth: float, spacing: tuple[float, ...]) -> np.ndarray:
    """Part each connected clump of a foreground where it is narrow.

    The labels of a clump are a function of that clump alone, wherever it lies.

    Args:
        mask: ``([Z], Y, X)`` bool.
        depth: How far a maximum of the distance to the background has to rise above the way to a
            higher one to be an object of its own, in the unit of ``spacing``.
        spacing: Distance of neighbouring pixels along each axis.

    Returns:
        Labels of the same shape; every foreground pixel has one.
    """
    import cc3d
    from scipy import ndimage
    from skimage.segmentation import watershed

    clumps = cc3d.connected_components(mask.view(np.uint8), connectivity=_FULL[mask.ndim])
    distance = np.rint(_STEPS * ndimage.distance_transform_edt(mask, sampling=spacing))
    seeds, n = _seeds(distance.astype(np.int32), clumps, max(1, round(_STEPS * depth)))
    labels = np.asarray(clumps, np.int64)
    # Seeds carry numbers beyond those of the clumps, which name what is not parted.
    first = int(clumps.max(initial=0))
    for number, box in _clumps_of_many_seeds(seeds, n, clumps):
        own = clumps[box] == number
        # One by one: scikit-image settles ties by the order of its heap, which holds all it is
        # given, so that a clump's parts would depend on its neighbours.
        markers = np.where(own, seeds[box], 0)
        parts = watershed(-distance[box], markers, mask=own, connectivity=mask.ndim)
        labels[box][own] = first + parts[own]
    return labels


def _seeds(distance: np.ndarray, clumps: np.ndarray, depth: int) -> tuple[np.ndarray, int]:
    """Maxima that rise by the depth or more, as labels, and their number.

    They are the regional maxima of the distance with every summit cut down by the depth.
    """
    import cc3d
    from skimage.morphology import local_maxima, reconstruction

    # No way from clump to clump: the background lies lower than any cut summit.
    ground = np.where(clumps > 0, distance, -depth - 1)
    cut = reconstruction(ground - depth, ground, footprint=np.ones((3,) * ground.ndim))
    summits = local_maxima(cut, connectivity=ground.ndim) & (clumps > 0)
    seeds, n = cc3d.connected_components(
        summits.view(np.uint8), connectivity=_FULL[ground.ndim], return_N=True
    )
    return seeds, n


def _clumps_of_many_seeds(
    seeds: np.ndarray, n: int, clumps: np.ndarray
) -> list[tuple[int, tuple[slice, ...]]]:
    """Number and bounding box of each clump that has more than one seed."""
    from scipy import ndimage

    of_seed = np.zeros(n + 1, np.int64)
    of_seed[seeds.ravel()] = clumps.ravel()
    many = np.flatnonzero(np.bincount(of_seed[1:]) > 1)
    boxes = ndimage.find_objects(clumps) if len(many) else []
    return [(int(number), boxes[number - 1]) for number in many]


def _filled(mask: np.ndarray, max_hole: int) -> np.ndarray:
    """The mask with small holes filled; what reaches the edge of the array is no hole."""
    import cc3d

    if not max_hole:
        return mask
    # The background is connected by faces where the foreground is by corners.
    gaps, n = cc3d.connected_components(
        np.ascontiguousarray(~mask).view(np.uint8),
        connectivity=2 * mask.ndim,
        return_N=True,
    )
    holes = np.bincount(gaps.ravel(), minlength=n + 1) <= max_hole
    holes[0] = False
    for axis in range(mask.ndim):
        for end in (0, -1):
            holes[gaps.take(end, axis=axis)] = False
    return np.asarray(mask | holes[gaps])


_FULL = {2: 8, 3: 26}
