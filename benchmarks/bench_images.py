"""Images of separate round objects with exact truth, of any size, written chunk by chunk.

The plane is divided into square cells of ``PITCH`` pixels, each with one object that stays clear
of the cell's border; which pixels belong to it depends on the cell's number alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import zarr

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PITCH = 34
THRESHOLD = 600
"""Objects are brighter than this, everything else is darker."""


def truth(start: tuple[int, int], shape: tuple[int, int]) -> np.ndarray:
    """Ids of the objects in a window, the same in every window: int64, 0 is background."""
    axes = [np.arange(a, a + n) for a, n in zip(start, shape, strict=True)]
    (i, y), (j, x) = (divmod(axis, PITCH) for axis in axes)
    cell = (i[:, None] << 20) | j[None, :]
    # Three numbers a cell by the finaliser of splitmix64, a public-domain integer hash.
    h = cell.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    middle, spread = (PITCH - 1) / 2, 3
    cy = middle - spread + (h & np.uint64(255)).astype(np.float32) * (2 * spread / 255)
    cx = (
        middle
        - spread
        + ((h >> np.uint64(8)) & np.uint64(255)).astype(np.float32) * (2 * spread / 255)
    )
    radius = 9 + ((h >> np.uint64(16)) & np.uint64(255)).astype(np.float32) * (3.5 / 255)
    inside = (y[:, None] - cy) ** 2 + (x[None, :] - cx) ** 2 <= radius**2
    return np.where(inside, cell + 1, 0)


def n_objects(side: int) -> int:
    """Number of objects in a square image: counted, cell rows at a time."""
    total = 0
    for _, labels in windows(side, step=PITCH * 32):
        total += len(np.unique(labels[labels > 0]))
    return total


def windows(side: int, step: int) -> Iterator[tuple[tuple[int, int], np.ndarray]]:
    """The truth in square windows, in raster order."""
    for y in range(0, side, step):
        for x in range(0, side, step):
            shape = (min(step, side - y), min(step, side - x))
            yield (y, x), truth((y, x), shape)


def write_image(path: Path, side: int, chunk: int) -> None:
    """Write an OME-Zarr 0.5 image (zarr v3, one level, uint16, YX), unless it is there."""
    done = path.with_suffix(".done")
    if done.exists():
        return
    root = zarr.open_group(str(path), mode="w", zarr_format=3)
    scale = {"type": "scale", "scale": [1.0, 1.0]}
    multiscale: dict[str, Any] = {
        "name": "disks",
        "axes": [{"name": a, "type": "space", "unit": "micrometer"} for a in "yx"],
        "datasets": [{"path": "0", "coordinateTransformations": [scale]}],
    }
    root.attrs["ome"] = {"version": "0.5", "multiscales": [multiscale]}
    array = root.create_array(
        "0", shape=(side, side), chunks=(chunk, chunk), dtype="u2", dimension_names=["y", "x"]
    )
    step = max(chunk, 2048 // chunk * chunk)
    for (y, x), labels in windows(side, step):
        noise = np.random.default_rng((y, x)).integers(0, 400, labels.shape, np.uint16)
        array[y : y + labels.shape[0], x : x + labels.shape[1]] = noise + np.where(
            labels > 0, np.uint16(1000), np.uint16(100)
        )
    done.touch()


def check(labels: Any, side: int) -> int:
    """Compare a label image with the truth; returns the number of objects.

    Args:
        labels: A zarr array ``(side, side)``.
        side: Length of the image.

    Raises:
        AssertionError: Some object is split, fused, missing, or has other pixels.
    """
    pairs: set[tuple[int, int]] = set()
    for (y, x), true in windows(side, step=1024):
        found = np.asarray(labels[y : y + true.shape[0], x : x + true.shape[1]]).astype(np.int64)
        if not np.array_equal(found > 0, true > 0):
            raise AssertionError(f"the foreground differs in the window at {(y, x)}")
        kept = true > 0
        both = np.unique(np.stack([true[kept], found[kept]]), axis=1)
        pairs.update(zip(*both.tolist(), strict=True))
    one, other = ({p[k] for p in pairs} for k in (0, 1))
    if not len(pairs) == len(one) == len(other):
        raise AssertionError(f"{len(one)} objects became {len(other)} in {len(pairs)} pieces")
    return len(one)
