"""Images for pictures: what is damaged is black in them, and ends nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.errors import CorruptError
from cytopave.engine.omezarr.image import Image

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LegibleImage(Image):
    """An image whose damaged chunks read as zeros.

    A run may leave out tiles that cannot be read; the picture of its result shows the others.
    """

    def read_block(self, box: Box) -> np.ndarray:
        """As `Image.read_block`, chunk by chunk where it is damaged."""
        try:
            return super().read_block(box)
        except CorruptError as error:
            halves = _halves(box, self.canonical_chunks)
            if halves is None:
                _log.warning("left black in the picture: %s", error)
                return np.zeros(box.shape, self.dtype)
        axis, first, second = halves
        return np.concatenate([self.read_block(first), self.read_block(second)], axis)

    def at_level(self, level: int) -> Image:
        """As `Image.at_level`; that level is read in the same way."""
        return legible(super().at_level(level))


def legible(image: Image) -> LegibleImage:
    """The same image, for pictures."""
    return LegibleImage(**{f.name: getattr(image, f.name) for f in fields(image)})


def _halves(box: Box, chunks: tuple[int, ...]) -> tuple[int, Box, Box] | None:
    """The axis along which a box reaches over most chunks, and its parts; None within a chunk."""
    first = [a // c for a, c in zip(box.start, chunks, strict=True)]
    last = [(b - 1) // c for b, c in zip(box.stop, chunks, strict=True)]
    counts = [b - a + 1 for a, b in zip(first, last, strict=True)]
    axis = int(np.argmax(counts))
    if counts[axis] == 1:
        return None
    cut = (first[axis] + counts[axis] // 2) * chunks[axis]
    stop, start = list(box.stop), list(box.start)
    stop[axis] = start[axis] = cut
    return axis, Box(box.start, tuple(stop)), Box(tuple(start), box.stop)
