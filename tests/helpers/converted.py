"""Conversions in the tests' own process, and what became of the pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.convert.planner import Wanted, plan_conversions
from cytopave.engine.convert.write import convert_whole
from cytopave.engine.omezarr.image import Image, open_image

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.convert.conversion import Conversion


def convert_here(*sources: Path, output: Path | None = None, **wanted: Any) -> list[Image]:
    """Convert all images of some files; the stores in order."""
    made = conversions(*sources, output=output, **wanted)
    for conversion in made:
        convert_whole(conversion, {})
    return [open_image(c.store) for c in made]


def conversions(*sources: Path, output: Path | None = None, **wanted: Any) -> list[Conversion]:
    """What there is to be done; nothing may be wrong, or done before."""
    planned = plan_conversions(
        [str(s) for s in sources], Wanted(**wanted), output=str(output) if output else None
    )
    assert (planned.done, planned.failed) == ([], {})
    return planned.todo


def level(image: Image, k: int = 0) -> np.ndarray:
    """All pixels of a level, in the order of the image's axes."""
    return np.asarray(image.at_level(k).array[...])


def means(pixels: np.ndarray) -> np.ndarray:
    """The mean of 2 x 2 pixels, by definition; where a row or column is missing, of the others."""
    sums, counts = pixels.astype(np.float64), np.ones(pixels.shape)
    for axis in (-2, -1):
        starts = range(0, pixels.shape[axis], 2)
        sums, counts = (np.add.reduceat(a, starts, axis=axis) for a in (sums, counts))
    out = sums / counts
    return (np.rint(out) if pixels.dtype.kind in "ui" else out).astype(pixels.dtype)
