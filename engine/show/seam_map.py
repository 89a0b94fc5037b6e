"""A map of the seams: where objects end at a tile's edge, and where two may have been fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.show.planes import draw_lines, grey, picture_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.seams import Place, SeamReport

CUT, SUSPECT = (255, 80, 60), (255, 220, 40)
"""Red and yellow: an object ends at a seam; an object may be two."""
SIDE = 1024
"""Pixels of the map's longer side at most."""
_DIM = 0.45
_RADIUS = 4


def draw_seam_map(
    image: Image,
    labels: Image,
    seams: SeamReport,
    *,
    lines: Sequence[Sequence[int]],
    channels: Sequence[int] = (),
    side: int = SIDE,
) -> np.ndarray:
    """Mark the places of a seam report on the dimmed image.

    The places of all planes and time points are drawn into one picture: a map says where to look,
    the report's lists say where exactly. Objects end at any line now and then; red marks that
    crowd on the seams, and nowhere else, are the ones that tell of a bad halo.

    Args:
        image: The image, at the level that was segmented.
        labels: The label image, at its finest level.
        seams: The report.
        lines: Where the tiles' edges are along Y and X, in pixels of ``labels``.
        channels: Channels to show; empty for all.
        side: Most pixels of the picture along Y and X.

    Returns:
        ``(Y, X, 3)`` uint8, red, green, blue.
    """
    shape = picture_shape(labels, side)
    dim = (grey(image, shape, tuple(channels)) * _DIM).astype(np.uint8)
    picture = np.repeat(dim[..., None], 3, axis=2)
    full = labels.spatial_shape[-2:]
    draw_lines(picture, lines, full)
    for places, colour, ring in ((seams.cut, CUT, False), (seams.suspects, SUSPECT, True)):
        _mark(picture, places, full, colour, ring=ring)
    return picture


def _mark(
    picture: np.ndarray,
    places: Sequence[Place],
    full: tuple[int, ...],
    colour: tuple[int, int, int],
    *,
    ring: bool,
) -> None:
    """Draw a disk, or a ring around where a disk may be, at each place."""
    y, x = np.mgrid[-_RADIUS : _RADIUS + 1, -_RADIUS : _RADIUS + 1]
    distance = np.hypot(y, x)
    inside = (distance > _RADIUS - 1.5) & (distance < _RADIUS + 0.5) if ring else distance < 2.5
    dots = np.stack([y[inside], x[inside]])
    for place in places:
        centre = [int(p * n / m) for p, n, m in zip(place[-2:], picture.shape, full, strict=False)]
        rows, columns = (
            d.clip(0, n - 1)
            for d, n in zip(dots + np.reshape(centre, (2, 1)), picture.shape, strict=False)
        )
        picture[rows, columns] = colour
