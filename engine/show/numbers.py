"""Numbers on axes and in captions: round steps, digits that can be read, units."""

from __future__ import annotations

import math

_SIGNS = {
    "micrometer": "µm",
    "nanometer": "nm",
    "millimeter": "mm",
    "angstrom": "Å",
    "centimeter": "cm",
    "meter": "m",
}
_POWERS = {1: "", 2: "²", 3: "³"}


def round_step(length: float, parts: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts a length into ``parts`` or fewer."""
    least = length / parts
    power = 10.0 ** math.floor(math.log10(least))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))


def ticks(low: float, high: float, parts: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, which differ, about ``parts`` apart."""
    step = round_step(high - low, parts)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def number(value: float, digits: int = 4) -> str:
    """A number for people: thousands apart, no more digits than say something."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else f"{value:+}".replace("inf", "infinity")
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        return f"{value:.{digits - 1}g}"
    places = max(0, digits - 1 - math.floor(math.log10(size))) if size else 0
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def unit_of(units: tuple[str | None, ...], power: int = 1) -> str:
    """The unit of a length, area or volume along axes of these units; pixels where there is none.

    Axes of different units have none in common: theirs are multiplied.
    """
    if not any(units):
        return {1: "pixels", 2: "pixels", 3: "voxels"}[power]
    names = [_SIGNS.get(u, u) if u else "pixel" for u in units]
    if len(set(names)) == 1:
        return names[0] + _POWERS[power]
    return names[-1] if power == 1 else " ".join(names)
