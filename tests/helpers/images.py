"""Images for tests, out of arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zarr
from scipy import ndimage

from cytopave.engine.omezarr.image import Image, open_image

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class ImageOf:
    """Makes images of given pixels, as plain zarr arrays in a folder."""

    folder: Path

    def __call__(self, pixels: np.ndarray, *, axes: str | None = None) -> Image:
        path = str(self.folder / f"image{len(list(self.folder.glob('image*')))}.zarr")
        array = zarr.create_array(path, shape=pixels.shape, dtype=pixels.dtype)
        array[...] = pixels
        return open_image(path, axes=axes)


def nuclei(shape: tuple[int, int], *, seed: int = 0, radius: float = 11) -> np.ndarray:
    """Blurred ellipses with some noise, uint16; few touch, some are cut by the border."""
    random = np.random.default_rng(seed)
    image = np.zeros(shape)
    y, x = np.indices(shape)
    for _ in range(int(np.prod(shape) / (5 * radius**2))):
        cy, cx = random.uniform(0, shape[0]), random.uniform(0, shape[1])
        a, b = radius * random.uniform(0.7, 1.2, 2)
        own = ((y - cy) / a) ** 2 + ((x - cx) / b) ** 2 <= 1
        if not image[own].any():
            image[own] = random.uniform(0.4, 1)
    image = 9000 * ndimage.gaussian_filter(image, 1.5) + random.normal(400, 150, shape)
    return np.asarray(image.clip(0), np.uint16)
