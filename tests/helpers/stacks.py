"""Stacks of blurred ellipsoids, for tests of what happens in three dimensions."""

from __future__ import annotations

import numpy as np
from scipy import ndimage


def blobs(
    shape: tuple[int, int, int], *, radius: float = 8, flat: float = 1.0, seed: int = 0
) -> np.ndarray:
    """Ellipsoids with some noise, ``(Z, Y, X)`` uint16; few touch, some are cut by the border.

    Args:
        shape: Of the stack.
        radius: In pixels of Y and X, about.
        flat: Distance of planes in pixels.
        seed: Of everything random.
    """
    random = np.random.default_rng(seed)
    image = np.zeros(shape)
    z, y, x = np.indices(shape)
    for _ in range(int(np.prod(shape) * flat / (4 * radius**3))):
        cz, cy, cx = random.uniform(0, shape)
        a, b, c = radius * random.uniform(0.7, 1.2, 3)
        away = (flat * (z - cz) / a) ** 2 + ((y - cy) / b) ** 2 + ((x - cx) / c) ** 2
        if not image[away <= 1].any():
            image[away <= 1] = random.uniform(0.6, 1)
    blurred = ndimage.gaussian_filter(image, (1.5 / flat, 1.5, 1.5))
    return np.asarray((9000 * blurred + random.normal(400, 150, shape)).clip(0), np.uint16)
