"""Segmentation methods, one a file."""

from typing import Annotated

from pydantic import Field

from cytopave.engine.segmenters.base import LabelFunction, SegmenterBase
from cytopave.engine.segmenters.cellpose import Cellpose
from cytopave.engine.segmenters.custom import Custom
from cytopave.engine.segmenters.stardist import StarDist
from cytopave.engine.segmenters.stored import Stored
from cytopave.engine.segmenters.threshold import Threshold
from cytopave.engine.segmenters.watershed import Watershed

Segmenter = Annotated[
    Threshold | Watershed | Cellpose | StarDist | Custom | Stored, Field(discriminator="kind")
]
"""Any of the methods, told apart by `kind`."""

__all__ = [
    "Cellpose",
    "Custom",
    "LabelFunction",
    "Segmenter",
    "SegmenterBase",
    "StarDist",
    "Stored",
    "Threshold",
    "Watershed",
]
