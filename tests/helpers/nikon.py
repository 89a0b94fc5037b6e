"""Nikon's ND2 files for tests, written as the format's readers take them apart.

A file is a row of named chunks and, at its end, a map of where they lie. Metadata are trees of
named values: the type, the length of the name, the name, the value.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = 0x0ABECEDA
_FRAME_HEAD = 4072  # bytes of a frame's name: pixels lie where they can be mapped
_BOOL, _UINT32, _DOUBLE, _STRING, _LEVEL = 1, 3, 6, 8, 11
_MAP = b"ND2 CHUNK MAP SIGNATURE 0000001!"


def write_nd2(
    path: Path,
    pixels: np.ndarray,
    *,
    seconds: float,
    planes_um: float,
    pixel_um: float,
    channels: dict[str, int],
) -> None:
    """Write an ND2 file of version 3.

    Args:
        path: The file.
        pixels: (T, C, Z, Y, X), uint16.
        seconds: Between time points.
        planes_um: Micrometers between planes.
        pixel_um: Micrometers between pixels in Y and X.
        channels: Colour of each channel by its name, blue, green and red in one number.
    """
    n_times, n_channels, n_planes, height, width = pixels.shape
    attributes = {
        "uiWidth": width, "uiWidthBytes": 2 * width * n_channels, "uiHeight": height,
        "uiComp": n_channels, "uiBpcInMemory": 16, "uiBpcSignificant": 16,
        "uiSequenceCount": n_times * n_planes, "eCompression": 2,
    }  # fmt: skip
    described = {
        f"a{i}": {
            "sDescription": name, "uiColor": color, "uiCompCount": 1, "uiSampleIndex": i,
            "uiModalityMask": 0, "pFluorescentProbe": {"m_sName": name},
        }
        for i, (name, color) in enumerate(channels.items())
    }  # fmt: skip
    picture = {
        "sPicturePlanes": {"uiCount": n_channels, "sPlaneNew": described},
        "dCalibration": pixel_um, "bCalibrated": True, "dAspect": 1.0,
    }  # fmt: skip
    stack = {
        "uiCount": n_planes, "dZLow": 0.0, "dZHigh": planes_um * (n_planes - 1),
        "dZStep": planes_um, "dZHome": 0.0, "iType": 0,
    }  # fmt: skip
    times = {
        "uiCount": n_times, "dStart": 0.0, "dPeriod": 1000 * seconds, "dDuration": 0.0,
        "dAvgPeriodDiff": 0.0, "dMinPeriodDiff": 0.0, "dMaxPeriodDiff": 0.0,
    }  # fmt: skip
    inner = {"i0000000000": {"eType": 4, "uLoopPars": stack}}
    loops = {"eType": 1, "uLoopPars": times, "ppNextLevelEx": inner}
    at = 1000 * seconds * np.arange(n_times)
    with path.open("wb") as file:
        chunks = _Chunks(file)
        chunks.add(b"ND2 FILE SIGNATURE CHUNK NAME01!", b"Ver3.0".ljust(64, b"\0"))
        chunks.add(b"ImageAttributesLV!", _value("SLxImageAttributes", attributes))
        chunks.add(b"ImageMetadataSeqLV|0!", _value("SLxPictureMetadata", picture))
        chunks.add(b"ImageMetadataLV!", _value("SLxExperiment", loops))
        chunks.add(b"CustomData|AcqTimesCache!", np.repeat(at, n_planes).tobytes())
        for i, (t, z) in enumerate(np.ndindex(n_times, n_planes)):
            frame = np.ascontiguousarray(np.moveaxis(pixels[t, :, z], 0, -1))
            data = struct.pack("<d", at[t]) + frame.tobytes()
            chunks.add(f"ImageDataSeq|{i}!".encode(), data, head=_FRAME_HEAD)
        chunks.close()


class _Chunks:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._map = b""

    def add(self, name: bytes, data: bytes, *, head: int | None = None) -> int:
        place, length = self._file.tell(), head or len(name)
        self._file.write(struct.pack("<IIQ", _MAGIC, length, len(data)))
        self._file.write(name.ljust(length, b"\0") + data)
        self._map += name + struct.pack("<QQ", place, len(data))
        return place

    def close(self) -> None:
        place = self.add(b"ND2 FILEMAP SIGNATURE NAME 0001!", self._map + _MAP)
        self._file.write(_MAP + struct.pack("<Q", place))


def _value(name: str, value: Any) -> bytes:
    def head(kind: int) -> bytes:
        return struct.pack("<BB", kind, len(name) + 1) + f"{name}\0".encode("utf-16-le")

    match value:
        case bool():
            return head(_BOOL) + struct.pack("<B", value)
        case int():
            return head(_UINT32) + struct.pack("<I", value)
        case float():
            return head(_DOUBLE) + struct.pack("<d", value)
        case str():
            return head(_STRING) + f"{value}\0".encode("utf-16-le")
    body = b"".join(_value(k, v) for k, v in value.items())
    size = len(head(_LEVEL)) + 12 + len(body)
    return head(_LEVEL) + struct.pack("<IQ", len(value), size) + body + bytes(8 * len(value))
