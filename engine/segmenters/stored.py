"""Labels that other tools' tiles already wrote: nothing is segmented, only merged.

The image is then a label image whose tiles were labelled one by one, so that an id means one
object within its tile and nothing beyond. Such an image holds no pixel twice, so there is no halo:
the two planes of pixels at each seam are compared (`cytopave.engine.merge.links`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from cytopave.engine.errors import SegmenterError
from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image


class Stored(SegmenterBase):
    """Takes each tile's labels as they are stored. The tile must be the other tool's tile."""

    kind: Literal["stored"] = "stored"

    def resolve(self, image: Image, *, channels: tuple[int, ...]) -> Self:
        """Check that the image can be a label image.

        Raises:
            SegmenterError: It has channels, or its pixels are no integers.
        """
        if len(channels) > 1:
            raise SegmenterError(
                f"labels have no channels and {len(channels)} are selected: name the one that "
                "holds the labels (--channels)"
            )
        if np.dtype(image.dtype).kind not in "ui":
            raise SegmenterError(
                f"{image.url} holds {image.dtype} pixels, which are no labels: merging takes "
                "integer labels that were written tile by tile"
            )
        return self

    def megapixels_per_second(self, *, on_gpu: bool) -> float:
        """Rough speed of one worker."""
        return 40.0

    @property
    def title(self) -> str:
        """Name for messages about what was found."""
        return "the stored labels"

    def load(self) -> LabelFunction:
        """The function that hands a tile on."""
        return _as_stored


def _as_stored(tile: np.ndarray) -> np.ndarray:
    return tile
