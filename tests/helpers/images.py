"""Images for tests, out of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import zarr

from cytopave.engine.omezarr.image import Image, open_image

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


@dataclass(frozen=True)
class ImageOf:
    """Makes images of given pixels, as plain zarr arrays in a folder."""

    folder: Path

    def __call__(self, pixels: np.ndarray, *, axes: str | None = None) -> Image:
        path = str(self.folder / f"image{len(list(self.folder.glob('image*')))}.zarr")
        array = zarr.create_array(path, shape=pixels.shape, dtype=pixels.dtype)
        array[...] = pixels
        return open_image(path, axes=axes)
