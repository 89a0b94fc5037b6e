"""Writing an image as OME-Zarr 0.5: for pixels that fit into memory, such as samples."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import zarr
from zarr.codecs import ZstdCodec

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.publish import write_group

if TYPE_CHECKING:
    from collections.abc import Mapping

CHUNK = 256
"""Length of a chunk in Y and X."""
SHARD = 1024
"""Length of a shard, the unit that lies in one file, in Y and X."""
OVERVIEW = 512
"""Levels are added until Y and X are no longer than this."""


def write_image(
    path: Path,
    pixels: np.ndarray,
    *,
    axes: str = "yx",
    pixel_size: float = 1.0,
    unit: str | None = "micrometer",
    attributes: Mapping[str, object] | None = None,
) -> None:
    """Write an image with its pyramid; each level is the mean of 2 x 2 pixels of the one before.

    Args:
        path: Folder of the image, which is created; what is in it is kept.
        pixels: The image, axes in the order of ``axes``.
        axes: One letter an axis, a subset of ``tczyx`` in that order.
        pixel_size: Length of a pixel along each spatial axis.
        unit: Its unit, a name of UDUNITS.
        attributes: Further attributes of the group.

    Raises:
        OutputError: It cannot be written.
    """
    levels, datasets = [pixels], []
    while max(levels[-1].shape[-2:]) > OVERVIEW:
        levels.append(halved(levels[-1]))
    for k in range(len(levels)):
        size = [pixel_size * (2**k if a in "yx" else 1) if a in "zyx" else 1.0 for a in axes]
        shift = [pixel_size * (2**k - 1) / 2 if a in "yx" else 0.0 for a in axes]
        datasets.append(ngff.Dataset(str(k), tuple(size), tuple(shift)))
    content = ngff.image_attributes(
        name=path.name.removesuffix(".zarr"),
        axes=axes,
        units=[unit if a in "zyx" else None for a in axes],
        datasets=datasets,
    )
    try:
        for level, dataset in zip(levels, datasets, strict=True):
            _write_level(path, dataset.path, level, axes)
        # Last: the image is there when its arrays are.
        write_group(Folder(str(path)), zarr_format=3, attributes={**content, **(attributes or {})})
    except OSError as error:
        raise OutputError(f"the image {path} cannot be written: {error}") from error


def _write_level(path: Path, name: str, level: np.ndarray, axes: str) -> None:
    ones = (1,) * (level.ndim - 2)
    array = zarr.create_array(
        str(path / name),
        shape=level.shape,
        dtype=level.dtype,
        chunks=(*ones, CHUNK, CHUNK),
        shards=(*ones, SHARD, SHARD),
        compressors=ZstdCodec(level=3),
        dimension_names=list(axes),
        overwrite=True,
    )
    array[...] = level


def halved(pixels: np.ndarray) -> np.ndarray:
    """The mean of every 2 x 2 pixels in Y and X, rounded where the type has no fractions.

    Args:
        pixels: (..., Y, X). An odd last row or column counts twice.
    """
    odd = [(0, 0)] * (pixels.ndim - 2) + [(0, n % 2) for n in pixels.shape[-2:]]
    padded = np.pad(pixels, odd, mode="edge") if any(n for _, n in odd) else pixels
    means = padded[..., ::2, ::2].astype(np.float64)
    for y, x in ((0, 1), (1, 0), (1, 1)):
        means += padded[..., y::2, x::2]
    means /= 4
    if pixels.dtype.kind in "uib":
        np.rint(means, out=means)
    return means.astype(pixels.dtype)
