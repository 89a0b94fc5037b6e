"""A picture of the result: the image in grey, the outline of every object in a vivid colour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.show.planes import SIDE, draw_lines, grey, picture_shape, plane

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.omezarr.image import Image

_COLOURS = np.array(
    [
        (255, 225, 25),
        (245, 60, 60),
        (60, 200, 75),
        (70, 170, 255),
        (245, 130, 48),
        (240, 50, 230),
        (66, 212, 244),
        (191, 239, 69),
        (250, 140, 180),
        (170, 110, 255),
    ],
    np.uint8,
)


def draw_overlay(
    image: Image,
    labels: Image,
    *,
    channels: Sequence[int] = (),
    lines: Sequence[Sequence[int]] | None = None,
    side: int = SIDE,
) -> np.ndarray:
    """Draw the outlines of labels on the image that they were made from.

    Of a stack the middle plane is shown, of a time series the first time point, of several
    channels the brightest. Outlines lie inside their objects and are one pixel wide; the colour
    follows from the id, so that a cut object shows as two colours. Where the picture is coarser
    than the labels, it takes every n-th pixel of both, and objects smaller than that vanish.

    Args:
        image: The image, at the level that was segmented.
        labels: The label image, at its finest level.
        channels: Channels to show, from `Image.channel_indices`; empty for all.
        lines: Where the tiles' edges are along Y and X, in pixels of ``labels``; drawn faintly.
        side: Most pixels of the picture along Y and X.

    Returns:
        ``(Y, X, 3)`` uint8, red, green, blue.
    """
    shape = picture_shape(labels, side)
    picture = np.repeat(grey(image, shape, tuple(channels))[..., None], 3, axis=2)
    if lines is not None:
        draw_lines(picture, lines, labels.spatial_shape[-2:])
    return outlined(picture, plane(labels, shape, channel=0))


def outlined(picture: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Draw the outline of every object into a picture ``(Y, X, 3)``; ``ids`` are its pixels'."""
    edge = outlines(ids)
    picture[edge] = _COLOURS[ids[edge] % len(_COLOURS)]
    return picture


def outlines(ids: np.ndarray) -> np.ndarray:
    """Pixels of objects ``(Y, X)`` with a pixel of something else above, below, left or right."""
    edge = np.zeros(ids.shape, np.bool_)
    for axis in range(2):
        a, b = np.moveaxis(ids, axis, 0)[:-1], np.moveaxis(ids, axis, 0)[1:]
        along = np.moveaxis(edge, axis, 0)
        along[:-1] |= a != b
        along[1:] |= a != b
    return edge & (ids > 0)
