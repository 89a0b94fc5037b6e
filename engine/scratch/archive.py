"""Files of compressed arrays that appear whole or not at all, and are read member by member.

An archive is a plain zip whose members are stored, so that each can be read alone and carries a
checksum. Its first member is a table of contents: to read zip's own, at the end, took longer than
all else where tiles are small.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numcodecs import Blosc

from cytopave.engine.errors import CorruptError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Runs of equal labels compress better, and faster, as they are; columns of a table do not.
# Written once, read twice, deleted: LZ4 takes less than half of zstd's time for both, and a
# fiftieth of the image's bytes instead of a hundredth.
_LABELS = Blosc(cname="lz4", clevel=1, shuffle=Blosc.NOSHUFFLE)
_TABLE = Blosc(cname="zstd", clevel=1, shuffle=Blosc.SHUFFLE)
_LOCAL_HEADER = struct.Struct("<14x3I2H")  # of a zip's member: checksum, size twice, two lengths
_HEAD = 1 << 18  # bytes of a file that are read at once


@dataclass(frozen=True)
class Archive:
    """A zip of compressed arrays that is read array by array; each is checked when it is read.

    Attributes:
        path: The file.
        index: Shape, type, place, size and checksum of each array, by name.
        head: The beginning of the file; all of it where it is small.
    """

    path: Path
    index: Mapping[str, Any]
    head: bytes

    @classmethod
    def open(cls, path: Path) -> Archive:
        """Read the table of contents.

        Raises:
            CorruptError: The file is missing or damaged.
        """
        try:
            with path.open("rb", buffering=0) as file:
                head = file.read(_HEAD)
                crc, size, _, *lengths = _LOCAL_HEADER.unpack_from(head)
                start = _LOCAL_HEADER.size + sum(lengths)
                if len(head) < start + size:
                    head += file.read(start + size - len(head))
                length = os.fstat(file.fileno()).st_size
            text = head[start : start + size]
            if zlib.crc32(text) != crc:
                raise ValueError("its table of contents is not what was written")
            index = _placed(json.loads(text), start + size)
            if length < max(entry["start"] + entry["size"] for entry in index.values()):
                raise ValueError(f"its end is missing after {length} bytes")
            return cls(path, index, head)
        except (OSError, ValueError, struct.error) as error:
            raise CorruptError(_damaged(path, error)) from error

    def read(self, *names: str) -> list[np.ndarray]:
        """The named arrays.

        Raises:
            CorruptError: An array is missing or damaged.
        """
        try:
            return [self._decode(self.index[name]) for name in names]
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise CorruptError(_damaged(self.path, error)) from error

    def _decode(self, entry: Mapping[str, Any]) -> np.ndarray:
        data = self._stored(entry["start"], entry["size"])
        if zlib.crc32(data) != entry["crc"]:
            raise ValueError("the checksum of an array is wrong")
        dtype = entry["dtype"]
        dtype = np.dtype([tuple(d) for d in dtype] if isinstance(dtype, list) else dtype)
        if 0 in entry["shape"]:  # Blosc cannot decode what it encodes of nothing
            return np.zeros(entry["shape"], dtype)
        return np.frombuffer(_LABELS.decode(data), dtype).reshape(entry["shape"])

    def _stored(self, start: int, size: int) -> bytes:
        if start + size <= len(self.head):
            return self.head[start : start + size]
        with self.path.open("rb", buffering=0) as file:
            file.seek(start)
            return file.read(size)


def _placed(index: dict[str, Any], start: int) -> dict[str, Any]:
    """Where in the file each array begins: they follow the index one after another."""
    for name, entry in index.items():
        entry["start"] = start + _LOCAL_HEADER.size + len(name)
        start = entry["start"] + entry["size"]
    return index


def write_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays, under ASCII names, as one file that appears whole or not at all."""
    write_bytes(path, archive_bytes(arrays))


def archive_bytes(arrays: Mapping[str, np.ndarray]) -> memoryview:
    """What `write_archive` writes."""
    index: dict[str, Any] = {}
    members = []
    for name, array in arrays.items():
        data = (_TABLE if array.dtype.names else _LABELS).encode(np.ascontiguousarray(array))
        members.append((name, data))
        dtype = array.dtype.descr if array.dtype.names else array.dtype.str
        facts = {"shape": array.shape, "dtype": dtype, "size": len(data), "crc": zlib.crc32(data)}
        index[name] = facts
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("index.json", json.dumps(index)), *members):
            archive.writestr(name, data)
    return buffer.getbuffer()


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an array, to be mapped into memory by readers, as one file that appears whole."""
    with _whole(path) as file:
        np.save(file, array)


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write a file that appears whole or not at all, also when the machine goes down."""
    with _whole(path) as file:
        file.write(data)


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OutputError(
            f"the scratch file {path} cannot be written: {error.strerror or error}. What is "
            "finished is kept: free space there, or name another folder (--scratch or "
            "CYTOPAVE_SCRATCH)"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _damaged(path: Path, error: Exception) -> str:
    return f"the scratch file {path} is missing or damaged ({error}); delete it and run again"
