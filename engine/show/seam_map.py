"""A map of the seams: where objects end at a tile's edge, and where two may have been fused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.show.planes import draw_lines, grey, picture_shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.report import Missing
    from cytopave.engine.seams import Place, SeamReport

CUT, SUSPECT = (255, 80, 60), (255, 220, 40)
"""Red and yellow: an object ends at a seam; an object may be two."""
SIDE = 1024
"""Pixels of the map's longer side at most."""
MISSING = (255, 150, 60)
"""Orange: a tile that failed."""
_DIM = 0.45
_RADIUS = 4


def draw_seam_map(
    image: Image,
    labels: Image,
    seams: SeamReport,
    *,
    lines: Sequence[Sequence[int]],
    missing: Sequence[Missing] = (),
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
        missing: Tiles that failed: they are crossed out.
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
    for tile in missing:
        _cross_out(picture, tile.start[-2:], tile.stop[-2:], full)
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


def _cross_out(
    picture: np.ndarray, start: tuple[int, ...], stop: tuple[int, ...], full: tuple[int, ...]
) -> None:
    """Draw a frame and its diagonals."""
    scale = [n / m for n, m in zip(picture.shape, full, strict=False)]
    top, left = (int(p * s) for p, s in zip(start, scale, strict=True))
    bottom, right = (max(0, int(p * s) - 1) for p, s in zip(stop, scale, strict=True))
    steps = np.linspace(0, 1, 2 * max(bottom - top, right - left) + 2)
    down, across = (
        np.rint(a + (b - a) * steps).astype(int) for a, b in ((top, bottom), (left, right))
    )
    for rows, columns in (
        (down, across),
        (down, across[::-1]),
        (down, np.full_like(down, left)),
        (down, np.full_like(down, right)),
        (np.full_like(across, top), across),
        (np.full_like(across, bottom), across),
    ):
        picture[rows, columns] = MISSING
