"""Foreground by one global threshold, objects by connectivity: the reference method.

Exact: whether a pixel is foreground depends on that pixel alone, and an object on its pixels
alone, so tiles agree to the last pixel. Nothing here smooths: a filter would see the tile's edge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt

from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.cutoff import brighter, global_threshold
from cytopave.engine.segmenters.objects import drop_small

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image


class Threshold(SegmenterBase):
    """Pixels brighter than one global threshold, as connected components. Needs no GPU."""

    kind: Literal["threshold"] = "threshold"
    threshold: Annotated[
        float | None,
        Field(
            allow_inf_nan=False,
            description="Foreground is what is brighter than this. Empty: Otsu's threshold of "
            "the whole image, taken once.",
        ),
    ] = None
    min_size: Annotated[
        NonNegativeInt,
        Field(
            description="Objects of fewer pixels are dropped. Exact up to the halo: an object "
            "that reaches from a tile's core to the edge of its window has more pixels than that.",
        ),
    ] = 0
    connectivity: Annotated[
        Literal["full", "face"],
        Field(description="Whether pixels that only share a corner or an edge are connected."),
    ] = "full"

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Fill the threshold from the histogram of the whole image.

        Raises:
            SegmenterError: More than one channel is selected.
            ImageError: The image has no finite pixel.
        """
        cut = global_threshold(image, channels, self.threshold, method="a threshold")
        return self.model_copy(update={"threshold": cut})

    def megapixels_per_second(self, *, on_gpu: bool) -> float:
        """Rough speed of one worker; the GPU is not used."""
        return 20.0

    def load(self) -> LabelFunction:
        """The function that labels one tile.

        Raises:
            SegmenterError: The segmenter was not resolved.
        """
        if self.threshold is None:
            raise SegmenterError("the threshold is open: call resolve(image) before load()")
        return self._segment

    def _segment(self, tile: np.ndarray) -> np.ndarray:
        import cc3d

        assert self.threshold is not None
        if tile.ndim not in _NEIGHBOURS:
            raise SegmenterError(
                f"a threshold segments planes and stacks, and this tile has {tile.ndim} axes"
            )
        neighbours = _NEIGHBOURS[tile.ndim][self.connectivity]
        # As numbers, not as a mask: cc3d 4.1.1 takes a short cut for masks (and binary_image=True)
        # that adds pixels at the border where the width is odd and diagonals count.
        foreground = np.ascontiguousarray(brighter(tile, self.threshold)).view(np.uint8)
        labels = cc3d.connected_components(foreground, connectivity=neighbours)
        return drop_small(labels, self.min_size)


_NEIGHBOURS = {2: {"face": 4, "full": 8}, 3: {"face": 6, "full": 26}}
