"""One image of a file, described: what it is, and how its pixels are taken from the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from cytopave.engine.errors import ImageError

if TYPE_CHECKING:
    from cytopave.engine.boxes import Box

AXES = "tczyx"
SAMPLES = "s"
"""Letter of the axis of a pixel's own values, such as red, green and blue."""

RGB = (("Red", "FF0000"), ("Green", "00FF00"), ("Blue", "0000FF"), ("Alpha", "FFFFFF"))

LARGEST_PIXEL = 100.0
"""Micrometers. A longer "pixel size" is a printer's or a screen's resolution (72 dpi are 353)."""

_MICROMETERS = {
    "picometer": 1e-6, "pm": 1e-6, "angstrom": 1e-4, "nanometer": 1e-3, "nm": 1e-3,
    "micrometer": 1.0, "micron": 1.0, "um": 1.0, "µm": 1.0, "μm": 1.0,
    "millimeter": 1e3, "mm": 1e3, "centimeter": 1e4, "cm": 1e4, "inch": 25400.0,
    "meter": 1e6, "m": 1e6,
}  # fmt: skip
_TIMES = {
    "second": "second", "s": "second", "sec": "second", "millisecond": "millisecond",
    "ms": "millisecond", "microsecond": "microsecond", "minute": "minute", "min": "minute",
    "hour": "hour", "h": "hour",
}  # fmt: skip


class Channel(BaseModel):
    """A channel.

    Attributes:
        name: What the file calls it; empty where it has no name.
        color: As RRGGBB; None where the file says nothing.
    """

    model_config = ConfigDict(frozen=True)

    name: str = ""
    color: str | None = None


class Scene(BaseModel):
    """One image of a file. Plain values: workers open the file anew by them.

    Attributes:
        path: The file.
        index: Number of the image in the file.
        count: Number of images in the file.
        name: What the file calls it; may be empty.
        reader: What reads its pixels.
        axes: One letter an axis in the file's order: a subset of ``tczyx`` and `SAMPLES`.
        shape: Pixels per axis of the file, in its order.
        dtype: Name of the numpy type, native byte order.
        block: The smallest region that the file gives at once, in the file's order.
        spacing: Distance between pixels along t, z, y, x, as far as it is known.
        units: Their units, names of UDUNITS; micrometer in space.
        channels: In order; one for each sample of each channel. Empty where the file has neither.
        files: All files that hold its pixels.
        notes: What was missing or could not be taken over, a sentence each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    index: int
    count: int
    name: str
    reader: Literal["tiff", "bioio"]
    axes: str
    shape: tuple[int, ...]
    dtype: str
    block: tuple[int, ...]
    spacing: dict[str, float]
    units: dict[str, str]
    channels: tuple[Channel, ...]
    files: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Values of a pixel in a channel of the file: 3 for red, green and blue."""
        return self._length(SAMPLES, self.shape)

    @property
    def ngff_axes(self) -> str:
        """Axes of the image as OME-Zarr has them: in the order ``tczyx``, samples as channels."""
        has_c = self.channels or SAMPLES in self.axes
        return "".join(a for a in AXES if a in self.axes or (a == "c" and has_c))

    @property
    def ngff_shape(self) -> tuple[int, ...]:
        """Pixels per axis of `ngff_axes`."""
        return self._ngff(self.shape)

    @property
    def ngff_block(self) -> tuple[int, ...]:
        """The smallest region that is read at once, per axis of `ngff_axes`; all samples in it."""
        lengths = [n if a == SAMPLES else b for a, b, n in self._sides()]
        return self._ngff(tuple(lengths))

    def _sides(self) -> list[tuple[str, int, int]]:
        return list(zip(self.axes, self.block, self.shape, strict=True))

    def _length(self, axis: str, lengths: tuple[int, ...]) -> int:
        return lengths[self.axes.index(axis)] if axis in self.axes else 1

    def _ngff(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        of = {a: self._length(a, lengths) for a in self.ngff_axes}
        if "c" in of:
            of["c"] *= self._length(SAMPLES, lengths)
        return tuple(of.values())


class Pixels(Protocol):
    """Open access to the pixels of a scene."""

    def read(self, slices: tuple[slice, ...]) -> np.ndarray:
        """A region, in the order of the file's axes.

        Raises:
            CorruptError: The file is truncated or damaged.
        """
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def read_region(scene: Scene, pixels: Pixels, box: Box) -> np.ndarray:
    """Pixels of a region in the order that OME-Zarr has.

    Args:
        scene: The image.
        pixels: Its pixels.
        box: Region along `Scene.ngff_axes`; of samples it holds all or none.

    Returns:
        An array of the box's shape, in native byte order.
    """
    at = dict(zip(scene.ngff_axes, box.slices, strict=True))
    n = scene.samples
    if SAMPLES in scene.axes:
        at[SAMPLES] = slice(0, n)
        at["c"] = slice(at["c"].start // n, at["c"].stop // n)
    part = np.asarray(pixels.read(tuple(at[a] for a in scene.axes)))
    order = [a for a in "tcszyx" if a in scene.axes]
    part = part.transpose([scene.axes.index(a) for a in order]).reshape(box.shape)
    return part.astype(scene.dtype, copy=False)


def checked_dtype(dtype: np.dtype, path: object) -> str:
    """Name of a type of pixels in native byte order.

    Raises:
        ImageError: They are no numbers that an image can hold.
    """
    if dtype.kind not in "uifb" or dtype.itemsize > 8:
        raise ImageError(
            f"{path} holds {dtype} values: only integers, floats and booleans are taken"
        )
    return dtype.newbyteorder("=").name


def in_micrometers(length: float | None, unit: str | None) -> float | None:
    """A pixel's length in micrometers; None where it is not known, or of no use as one."""
    factor = _MICROMETERS.get((unit or "").strip().lower())
    if length is None or factor is None or not 0 < length * factor < LARGEST_PIXEL:
        return None
    exact = length * factor
    # Ratios of whole numbers, as TIFF has them, come with errors in the last digits.
    short = float(f"{exact:.6g}")
    return short if abs(short - exact) <= 1e-7 * exact else exact


def time_unit(unit: str | None) -> str | None:
    """A unit of time by its name in UDUNITS; None for any other unit."""
    return _TIMES.get((unit or "").strip().lower())


def sampled(channels: list[Channel], samples: int) -> tuple[Channel, ...]:
    """Channels of the image for channels of a file that have several samples each."""
    if samples == 1:
        return tuple(channels)
    names = RGB if samples in (3, 4) else [(str(i), None) for i in range(samples)]
    several = len(channels) > 1
    return tuple(
        Channel(name=f"{c.name or i} {name}" if several else name, color=color)
        for i, c in enumerate(channels or [Channel()])
        for name, color in names[:samples]
    )
