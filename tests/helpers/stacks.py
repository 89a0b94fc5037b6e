"""Stacks of blurred ellipsoids, for tests of what happens in three dimensions."""

from __future__ import annotations

import numpy as np
from scipy import ndimage


def blobs(
    shape: tuple[int, int, int], *, radius: float = 8, flat: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Ellipsoids with some noise, uint16, and their labels; few touch, some leave the stack.

    Args:
        shape: Of the stack.
        radius: In pixels of Y and X, about.
        flat: Distance of planes in pixels.
        seed: Of everything random.
    """
    random = np.random.default_rng(seed)
    image, labels = np.zeros(shape), np.zeros(shape, np.int64)
    z, y, x = np.indices(shape)
    for _ in range(int(np.prod(shape) * flat / (4 * radius**3))):
        cz, cy, cx = random.uniform(0, shape)
        a, b, c = radius * random.uniform(0.7, 1.2, 3)
        away = (flat * (z - cz) / a) ** 2 + ((y - cy) / b) ** 2 + ((x - cx) / c) ** 2
        if (away <= 1).any() and not image[away <= 1].any():
            image[away <= 1] = random.uniform(0.6, 1)
            labels[away <= 1] = labels.max() + 1
    blurred = ndimage.gaussian_filter(image, (1.5 / flat, 1.5, 1.5))
    noisy = (9000 * blurred + random.normal(400, 150, shape)).clip(0)
    return noisy.astype(np.uint16), labels
