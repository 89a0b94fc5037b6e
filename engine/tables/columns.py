"""What the table says of an object, from the sums that were taken of it.

Definitions and names are those of scikit-image's ``regionprops_table`` with the pixel size as its
``spacing``, where it has them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

from cytopave.engine.tables.moments import pairs

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image

STATISTICS = ("mean", "min", "max", "std", "sum")

INSTANCE = "label"
"""Column that holds the object's id in the label image."""


class Schema(BaseModel):
    """Which columns there are, and where pixels lie; tuples are in the order of ``axes``.

    Attributes:
        axes: The spatial axes, "yx" or "zyx".
        shape: Pixels of the label image.
        scale: Physical size of a pixel.
        translation: Physical position of the middle of the first pixel.
        units: Unit of each axis, or None.
        channels: Names of the channels that were measured; empty where the image has none.
        id_type: Type of the ids: int64, which every reader takes, unless the labels are uint64.
        timed: Whether objects belong to time points.
    """

    model_config = ConfigDict(frozen=True)

    axes: str
    shape: tuple[int, ...]
    scale: tuple[float, ...]
    translation: tuple[float, ...]
    units: tuple[str | None, ...]
    channels: tuple[str, ...]
    id_type: Literal["int64", "uint64"]
    timed: bool

    @property
    def features(self) -> list[tuple[str, str, str]]:
        """Name, channel and statistic of each intensity: the columns of the matrix ``X``."""
        prefixes = self.channels or ("intensity",)
        return [(f"{c}_{s}", c, s) for c in prefixes for s in STATISTICS]

    def obs(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Everything about the objects but their intensities, a column a name.

        Args:
            rows: Whole objects, as `cytopave.engine.tables.combine.whole` gives them.

        Returns:
            Lengths in the image's units, those that end in ``_px`` in pixels. Boxes end where
            their last pixel ends; in pixels they are half-open.
        """
        columns: dict[str, np.ndarray] = {INSTANCE: rows["label"].astype(self.id_type)}
        if self.timed:
            columns["time"] = rows["time"]
        columns["n_pixels"] = n = rows["n"]
        size = n * math.prod(self.scale)
        columns["area" if len(self.axes) == 2 else "volume"] = size
        columns["equivalent_diameter"] = self._equivalent_diameter(size)
        columns |= self._shape(rows)
        centroid = self.centroid_px(rows)
        for i, axis in enumerate(self.axes):
            columns[f"centroid_{axis}"] = self._physical(centroid[:, i], i)
        for i, axis in enumerate(self.axes):
            columns[f"bbox_{axis}_min"] = self._physical(rows["low"][:, i] - 0.5, i)
            columns[f"bbox_{axis}_max"] = self._physical(rows["high"][:, i] - 0.5, i)
        for i, axis in enumerate(self.axes):
            columns[f"centroid_{axis}_px"] = centroid[:, i]
        for i, axis in enumerate(self.axes):
            columns[f"bbox_{axis}_min_px"] = rows["low"][:, i]
            columns[f"bbox_{axis}_max_px"] = rows["high"][:, i]
        ends = (rows["low"] == 0) | (rows["high"] == self.shape)
        columns["touches_border"] = ends.any(axis=1)
        return columns

    def intensities(self, rows: np.ndarray) -> np.ndarray:
        """The matrix ``X``: ``(objects, features)`` in the order of `features`."""
        n = rows["n"][:, None]
        with np.errstate(invalid="ignore"):
            parts = {
                "mean": rows["total"] / n,
                "min": rows["least"],
                "max": rows["most"],
                "std": np.sqrt(rows["power"] / n),
                "sum": rows["total"],
            }
        stacked = np.stack([parts[s] for s in STATISTICS], axis=2).astype(np.float64)
        return stacked.reshape(len(rows), len(self.features))

    def spatial(self, rows: np.ndarray) -> np.ndarray:
        """Physical centroids ``(objects, d)``, X first, as ``obsm["spatial"]`` holds them."""
        centroid = self.centroid_px(rows)
        columns = [self._physical(centroid[:, i], i) for i in range(len(self.axes))]
        return np.stack(columns[::-1], axis=1)

    def centroid_px(self, rows: np.ndarray) -> np.ndarray:
        """Centroids ``(objects, d)`` in pixels."""
        return np.asarray(rows["low"] + rows["place"] / rows["n"][:, None])

    def _physical(self, place: np.ndarray, axis: int) -> np.ndarray:
        return place * self.scale[axis] + self.translation[axis]

    def _equivalent_diameter(self, size: np.ndarray) -> np.ndarray:
        d = len(self.axes)
        return np.asarray((2 * d * size / math.pi) ** (1 / d))

    def _shape(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Axes of the ellipse or ellipsoid with the same second moments."""
        d = len(self.axes)
        covariance = np.empty((len(rows), d, d))
        for entry, (a, b) in enumerate(pairs(d)):
            value = rows["spread"][:, entry] / rows["n"] * self.scale[a] * self.scale[b]
            covariance[:, a, b] = covariance[:, b, a] = value
        variances = np.maximum(np.linalg.eigvalsh(covariance), 0)
        lengths = (4 if d == 2 else 2 * math.sqrt(5)) * np.sqrt(variances)
        names = ("minor", "major") if d == 2 else ("minor", "middle", "major")
        columns = {f"axis_{n}_length": lengths[:, i] for i, n in enumerate(names)}
        if d == 2:
            small, large = variances.T
            ratio = np.divide(small, large, out=np.ones(len(rows)), where=large > 0)
            columns["eccentricity"] = np.sqrt(1 - ratio)
            columns["solidity"] = rows["n"] / rows["convex"]
        return columns


def schema_of(image: Image, labels: Image, channels: tuple[int, ...]) -> Schema:
    """The table of an image's labels.

    Args:
        image: The image, at the level that has the labels' pixels.
        labels: The labels.
        channels: Indices of the channels that are measured.
    """
    axes = labels.spatial_axes
    return Schema(
        axes=axes,
        shape=labels.spatial_shape,
        scale=image.of(axes, image.scale),
        translation=image.of(axes, image.translation),
        units=image.of(axes, image.units),
        channels=_names(image, channels),
        id_type="uint64" if labels.dtype == "uint64" else "int64",
        timed="t" in labels.axes,
    )


def _names(image: Image, channels: tuple[int, ...]) -> tuple[str, ...]:
    """Names of channels as parts of column names: numbers are spelled out, and each is unique."""
    names = [image.channels[i] for i in channels]
    return tuple(
        f"channel_{i}" if name == str(i) else name if names.count(name) == 1 else f"{name}_{i}"
        for i, name in zip(channels, names, strict=True)
    )
