"""Images for pictures: what is damaged is black in them, and ends nothing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.boxes import halves
from cytopave.engine.errors import CorruptError
from cytopave.engine.omezarr.image import Image

if TYPE_CHECKING:
    from cytopave.engine.boxes import Box

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
            parts = halves(box, self.canonical_chunks)
            if parts is None:
                _log.warning("left black in the picture: %s", error)
                return np.zeros(box.shape, self.dtype)
        axis, first, second = parts
        return np.concatenate([self.read_block(first), self.read_block(second)], axis)

    def at_level(self, level: int) -> Image:
        """As `Image.at_level`; that level is read in the same way."""
        return legible(super().at_level(level))


def legible(image: Image) -> LegibleImage:
    """The same image, for pictures."""
    return LegibleImage(**{f.name: getattr(image, f.name) for f in fields(image)})
