from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import zarr

from cytopave.engine.image import Image, open_image

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

type ImageOf = Callable[..., Image]


@pytest.fixture
def image_of(tmp_path: Path) -> ImageOf:
    """An image of these pixels, as a plain zarr array."""
    numbers = itertools.count()

    def make(pixels: np.ndarray, *, axes: str | None = None) -> Image:
        path = tmp_path / f"image{next(numbers)}.zarr"
        array = zarr.create_array(str(path), shape=pixels.shape, dtype=pixels.dtype)
        array[...] = pixels
        return open_image(str(path), axes=axes)

    return make
