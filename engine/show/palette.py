"""Colours that tell classes apart, for people with and without colour vision deficiencies.

Chosen by search: CIEDE2000 differences are at least 13 between any two of the colours, as they are
and as people without red, green or blue cones see them (Machado, Oliveira and Fernandes, *IEEE
Transactions on Visualization and Computer Graphics* 15, 1291-1298, 2009), and all stand out from
both a white and a nearly black page. More than ten classes cannot be told apart by colour: the
largest ten have one, and the others share a grey.
"""

from __future__ import annotations

CLASSES = (
    "#0055ee",
    "#ccbb00",
    "#aa3300",
    "#00cccc",
    "#ff4499",
    "#006655",
    "#aa88ff",
    "#ee9988",
    "#449944",
    "#884488",
)
OTHERS = "#8a929e"
"""Of classes beyond the first ten, and of objects without a class."""


def rgb(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of ``#rrggbb``, 0 to 255."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue
