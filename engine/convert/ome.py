"""OME-XML: names and colours of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from cytopave.engine.convert.scene import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator


def channels_of(xml: str) -> list[list[Channel]]:
    """The channels of each image that an OME-XML describes.

    Returns:
        One list an image, empty where the text is no XML that can be read.
    """
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError:
        return []
    return [list(_channels(image)) for image in root if _tag(image) == "Image"]


def _channels(image: ElementTree.Element) -> Iterator[Channel]:
    for pixels in image:
        for element in pixels if _tag(pixels) == "Pixels" else ():
            if _tag(element) == "Channel":
                name = element.get("Name", "").strip()
                yield Channel(name=name, color=_color(element.get("Color")))


def _color(value: str | None) -> str | None:
    """From red, green, blue and alpha in a signed integer of 32 bits."""
    try:
        color = f"{(int(value or '') & 0xFFFFFFFF) >> 8:06X}"
    except ValueError:
        return None
    return None if color == "000000" else color  # black, in which nothing would be seen


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]
