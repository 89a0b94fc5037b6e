"""Where in its image a piece of it lies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cytopave.engine.boxes import Box


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pixels lie that a segmentation function is given, and which labels are wanted.

    Attributes:
        image: Names the image: under one name, one time and one shape, a pixel has one value.
        time: Index of the time point.
        shape: Spatial shape of the whole image, ``([Z], Y, X)`` pixels.
        region: What the pixels cover.
        window: Whose labels are wanted; within the region.
    """

    image: str
    time: int
    shape: tuple[int, ...]
    region: Box
    window: Box
