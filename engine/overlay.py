"""A picture of the result: the image in grey, the outline of every object in a vivid colour.

It shows one plane of the whole image, at most `SIDE` pixels wide and high, taken from the pyramid
where there is one. Whatever the image's size, no more than `BLOCK` x `BLOCK` of its pixels are
read at a time.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.errors import OutputError
from cytopave.engine.intensity import histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image

SIDE = 2048
"""Pixels of the picture's longer side at most."""
BLOCK = 4096
"""Pixels of the image's plane that are read at a time, along each side."""
WINDOW = (1.0, 99.8)
"""Percentiles of the whole image that become black and white."""

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
_LINE = 0.35  # how much of a grid line is white


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
    shape = _picture_shape(labels, side)
    picture = np.repeat(_grey(image, shape, tuple(channels))[..., None], 3, axis=2)
    if lines is not None:
        _draw_lines(picture, lines, labels.spatial_shape[-2:])
    return _outlined(picture, _plane(labels, shape, channel=0))


def draw_detail(
    image: Image, labels: Image, *, channels: Sequence[int] = (), side: int = 512
) -> np.ndarray:
    """The middle of the image at full resolution, drawn as `draw_overlay` does.

    However large the image is, only the chunks of this part are read.

    Args:
        image: The image, at the level that was segmented.
        labels: The label image, at its finest level.
        channels: Channels to show; empty for all.
        side: Pixels of the part along Y and X at most.

    Returns:
        ``(Y, X, 3)`` uint8, red, green, blue.
    """
    *depth, height, width = labels.spatial_shape
    middle = [n // 2 for n in depth]
    top, left = max(0, (height - side) // 2), max(0, (width - side) // 2)
    box = Box(
        (*middle, top, left),
        (*(z + 1 for z in middle), min(height, top + side), min(width, left + side)),
    )
    picked = tuple(channels) or tuple(range(image.n_channels))
    grey = _brightest(image, picked, lambda c: _part(image, box, c))
    ids = _part(labels, box, 0)
    return _outlined(np.repeat(grey[..., None], 3, axis=2), ids)


def pixels_to_read(image: Image, labels: Image, *, side: int = SIDE) -> int:
    """Pixels of the image that `draw_overlay` reads for a picture of this size, a channel."""
    source = _coarsest(image, _picture_shape(labels, side))
    return math.prod(source.spatial_shape[-2:])


def jpeg(picture: np.ndarray, *, quality: int = 80) -> bytes:
    """A picture as the content of a JPEG file: a tenth of a PNG of the same noisy image."""
    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.fromarray(picture).save(file, "JPEG", quality=quality)
    return file.getvalue()


def save_png(picture: np.ndarray, path: Path) -> None:
    """Write a picture as a PNG file, and the folders above it where they are absent.

    Raises:
        OutputError: It cannot be written.
    """
    from PIL import Image as Pillow

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(picture).save(path)
    except OSError as error:
        raise OutputError(f"the picture {path} cannot be written: {error}") from error


def _picture_shape(labels: Image, side: int) -> tuple[int, int]:
    """Y and X of the picture: the finest level that fits, else an even part of the coarsest."""
    planes = [labels.of("yx", level.shape) for level in labels.levels]
    height, width = next((p for p in planes if max(p) <= side), planes[-1])
    step = math.ceil(max(height, width) / side)
    return -(-height // step), -(-width // step)


def _grey(image: Image, shape: tuple[int, int], channels: tuple[int, ...]) -> np.ndarray:
    picked = channels or tuple(range(image.n_channels))
    return _brightest(image, picked, lambda c: _plane(image, shape, channel=c))


def _brightest(
    image: Image, channels: tuple[int, ...], plane_of: Callable[[int], np.ndarray]
) -> np.ndarray:
    """The brightest of some channels, each stretched to its window over the whole image."""
    planes = []
    for channel, counts in zip(channels, histogram(image, channels=channels), strict=True):
        low, high = (counts.percentile(q) for q in WINDOW)
        plane = np.nan_to_num(plane_of(channel).astype(np.float32))
        planes.append((plane - low) / ((high - low) or 1.0))
    return np.asarray(np.max(planes, axis=0).clip(0, 1) * 255, np.uint8)


def _part(source: Image, box: Box, channel: int) -> np.ndarray:
    block = source.read(box, channels=(channel,))
    return block.reshape(block.shape[-2:])


def _outlined(picture: np.ndarray, ids: np.ndarray) -> np.ndarray:
    edge = _outlines(ids)
    picture[edge] = _COLOURS[ids[edge] % len(_COLOURS)]
    return picture


def _plane(image: Image, shape: tuple[int, int], *, channel: int) -> np.ndarray:
    """The middle plane at the first time point, sampled to a shape."""
    source = _coarsest(image, shape)
    *depth, height, width = source.spatial_shape
    middle = [n // 2 for n in depth]
    rows, cols = _centres(height, shape[0]), _centres(width, shape[1])
    plane = np.empty(shape, source.dtype)
    for y in _spans(rows):
        for x in _spans(cols):
            start = (*middle, int(rows[y][0]), int(cols[x][0]))
            stop = (*(z + 1 for z in middle), int(rows[y][-1]) + 1, int(cols[x][-1]) + 1)
            block = _part(source, Box(start, stop), channel)
            plane[y, x] = block[np.ix_(rows[y] - start[-2], cols[x] - start[-1])]
    return plane


def _coarsest(image: Image, shape: tuple[int, int]) -> Image:
    """The coarsest level that is no coarser than the picture."""
    best = image.level
    for index in range(image.level, len(image.levels)):
        plane = image.of("yx", image.levels[index].shape)
        if all(n >= m for n, m in zip(plane, shape, strict=True)):
            best = index
    return image if best == image.level else image.at_level(best)


def _centres(length: int, parts: int) -> np.ndarray:
    """The pixel in the middle of each of ``parts`` equal parts of an axis."""
    return ((np.arange(parts) + 0.5) * length / parts).astype(np.int64)


def _spans(picks: np.ndarray) -> list[slice]:
    """Cut picked pixels into runs that reach over at most `BLOCK` pixels (or hold one pick)."""
    stride = (int(picks[-1]) - int(picks[0])) / max(1, len(picks) - 1)
    count = max(1, int(BLOCK / max(1.0, stride)))
    return [slice(a, min(a + count, len(picks))) for a in range(0, len(picks), count)]


def _outlines(ids: np.ndarray) -> np.ndarray:
    """Pixels of objects with a pixel of something else above, below, left or right of them."""
    edge = np.zeros(ids.shape, np.bool_)
    for axis in range(2):
        a, b = np.moveaxis(ids, axis, 0)[:-1], np.moveaxis(ids, axis, 0)[1:]
        along = np.moveaxis(edge, axis, 0)
        along[:-1] |= a != b
        along[1:] |= a != b
    return edge & (ids > 0)


def _draw_lines(picture: np.ndarray, lines: Sequence[Sequence[int]], full: tuple[int, ...]) -> None:
    for axis, edges in enumerate(lines):
        scale = picture.shape[axis] / full[axis]
        at = [int(e * scale) for e in edges if 0 < e < full[axis]]
        view = np.moveaxis(picture, axis, 0)
        view[at] = (view[at] * (1 - _LINE) + 255 * _LINE).astype(np.uint8)
