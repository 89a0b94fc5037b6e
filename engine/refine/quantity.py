"""Lengths and sizes as people give them: pixels, or physical where the labels have units."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from cytopave.engine.errors import LabelError

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image

_METRES = {
    "angstrom": 1e-10,
    "nanometer": 1e-9,
    "micrometer": 1e-6,
    "millimeter": 1e-3,
    "centimeter": 1e-2,
    "meter": 1.0,
}
_SHORT = {
    "nm": "nanometer",
    "um": "micrometer",
    "µm": "micrometer",  # the micro sign
    "μm": "micrometer",  # the Greek letter
    "micron": "micrometer",
    "mm": "millimeter",
    "cm": "centimeter",
    "m": "meter",
}
_POWERS = {"": 1, "1": 1, "2": 2, "²": 2, "3": 3, "³": 3}
_TEXT = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([a-zµμ]*)\^?([123²³]?)", re.IGNORECASE)

NEARLY = 1e-9
"""Relative difference below which physical values are equal: pixel sizes are rarely exact."""


class Quantity(BaseModel):
    """A number of pixels, or a physical length, area or volume.

    Attributes:
        value: How much.
        unit: Name of a unit of length, or None for pixels.
        power: 1 for a length, 2 for an area, 3 for a volume; 1 for pixels.
    """

    model_config = ConfigDict(frozen=True)

    value: float = Field(gt=0, allow_inf_nan=False)
    unit: str | None = None
    power: Literal[1, 2, 3] = 1

    @classmethod
    def parse(cls, given: Any) -> Self:
        """From a number, or text such as ``50``, ``50px``, ``2.5um`` or ``20 um2``.

        Raises:
            ValueError: It is nothing of the kind.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, dict):
            return cls(**given)
        match = _TEXT.fullmatch(str(given).strip())
        try:
            value = float(match[1]) if match else math.nan
        except ValueError:
            value = math.nan
        if not match or not 0 < value < math.inf:
            raise ValueError(
                f"{given!r} is no length or size: give a number of pixels larger than 0, or one "
                "with a unit, such as 2.5um or 20um2"
            )
        name = match[2].lower()
        if name in ("", "px", "pixel", "pixels", "voxel", "voxels"):
            if match[3]:
                raise ValueError(f"{given!r}: pixels are counted, without a power")
            return cls(value=value)
        unit = _SHORT.get(name, name.removesuffix("s"))
        if unit not in _METRES:
            raise ValueError(f"{given!r}: the units known are {', '.join([*_SHORT, 'px'])}")
        return cls(value=value, unit=unit, power=_POWERS[match[3]])

    def __str__(self) -> str:
        if self.unit is None:
            return f"{self.value:g} px"
        return f"{self.value:g} {self.unit}{'' if self.power == 1 else self.power}"


type Given = Annotated[
    Quantity, BeforeValidator(Quantity.parse), PlainSerializer(str, return_type=str)
]
"""A quantity as a field of a model: given, kept and shown as text or a number."""


def spacing(length: Quantity, labels: Image) -> tuple[float, ...]:
    """Distance between neighbouring pixels along ([Z], Y, X), in the unit of a length.

    Raises:
        LabelError: It is no length, or the labels have no units.
    """
    if length.unit is None:
        return (1.0,) * len(labels.spatial_axes)
    if length.power != 1:
        raise LabelError(f"{length} is no length: give a distance, such as 2.5um")
    return _pixel(length, labels)


def pixels_of(size: Quantity, labels: Image) -> float:
    """How many pixels a size is; not a whole number in general.

    Raises:
        LabelError: It is a length, a volume of planes or the like, or the labels have no units.
    """
    if size.unit is None:
        return size.value
    n = len(labels.spatial_axes)
    if size.power != n:
        kind, such = ("planes", "20um2") if n == 2 else ("stacks", "80um3")
        raise LabelError(
            f"{size} is no size of objects in {kind}: give a number of pixels, or a size such as "
            f"{such}"
        )
    return size.value / math.prod(_pixel(size, labels))


def _pixel(quantity: Quantity, labels: Image) -> tuple[float, ...]:
    axes = labels.spatial_axes
    assert quantity.unit is not None
    sizes = []
    for axis, scale, unit in zip(
        axes, labels.of(axes, labels.scale), labels.of(axes, labels.units), strict=True
    ):
        if unit not in _METRES:
            said = f"the unit {unit!r}" if unit else "no unit"
            raise LabelError(
                f"{quantity} cannot be taken in {labels.url}, whose axis {axis} has {said}: give a "
                "number of pixels"
            )
        sizes.append(scale * (_METRES[unit] / _METRES[quantity.unit]))
    return tuple(sizes)
