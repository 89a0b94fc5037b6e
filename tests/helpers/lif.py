"""Leica image files for tests, written as the format's readers take them apart.

A file is a header in XML and blocks of memory, each behind a few bytes that tell its length.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

_IDS = {"x": 1, "y": 2, "z": 3, "t": 4}


def write_lif(
    path: Path,
    images: dict[str, np.ndarray],
    *,
    pixel_size: dict[str, float],
    channels: tuple[str, ...],
) -> None:
    """Write a LIF file.

    Args:
        path: The file.
        images: Pixels (T, C, Z, Y, X) by name, unsigned.
        pixel_size: Meters along z, y, x, and seconds along t.
        channels: Name of each channel's colour table.
    """
    elements = "".join(
        _element(name, f"MemBlock_{i}", pixels, pixel_size, channels)
        for i, (name, pixels) in enumerate(images.items())
    )
    xml = (
        '<LMSDataContainerHeader Version="2"><Element Name="experiment">'
        f'<Memory Size="0" MemoryBlockID="MemBlock_none"/><Children>{elements}</Children>'
        "</Element></LMSDataContainerHeader>"
    )
    with path.open("wb") as file:
        file.write(struct.pack("<IIBI", 0x70, 2 * len(xml) + 5, 0x2A, len(xml)))
        file.write(xml.encode("utf-16-le"))
        for i, pixels in enumerate(images.values()):
            name = f"MemBlock_{i}"
            head = (0x70, 2 * len(name) + 14, 0x2A, pixels.nbytes, 0x2A, len(name))
            file.write(struct.pack("<IIBQBI", *head) + name.encode("utf-16-le"))
            file.write(np.ascontiguousarray(pixels).tobytes())


def _element(
    name: str,
    memory: str,
    pixels: np.ndarray,
    pixel_size: dict[str, float],
    channels: tuple[str, ...],
) -> str:
    sizes = dict(zip("tczyx", pixels.shape, strict=True))
    strides = dict(zip("tczyx", np.ascontiguousarray(pixels).strides, strict=True))
    described = "".join(
        f'<ChannelDescription DataType="0" ChannelTag="0" Resolution="{8 * pixels.itemsize}" '
        f'NameOfMeasuredQuantity="" Min="0" Max="255" Unit="" LUTName="{channel}" '
        f'IsLUTInverted="0" BytesInc="{i * strides["c"]}" BitInc="0"/>'
        for i, channel in enumerate(channels)
    )
    dimensions = "".join(
        f'<DimensionDescription DimID="{_IDS[a]}" NumberOfElements="{sizes[a]}" Origin="0" '
        f'Length="{pixel_size[a] * (sizes[a] - 1)!r}" Unit="{"s" if a == "t" else "m"}" '
        f'BitInc="0" BytesInc="{strides[a]}"/>'
        for a in "xyzt"
    )
    return (
        f'<Element Name="{name}" UniqueID="{name}"><Data><Image><ImageDescription>'
        f"<Channels>{described}</Channels><Dimensions>{dimensions}</Dimensions>"
        f"</ImageDescription></Image></Data>"
        f'<Memory Size="{pixels.nbytes}" MemoryBlockID="{memory}"/></Element>'
    )
