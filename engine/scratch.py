"""Tile files: what a segmented tile leaves behind, committed whole or not at all.

A tile file is a plain zip whose members are stored, so that each can be read alone and carries
a checksum. Its first member is a table of contents: to read zip's own, at the end, took longer than
all else where tiles are small. It holds the labels of the tile's core, the labels of every zone
that the tile shares with a neighbour, and a table with one row a label ("view": an object as this
tile saw it). The merge compares zones with zones and paints from cores and zones, so it never needs
two whole tiles at once, and each member is read once by each of the two passes.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numcodecs import Blosc

from cytopave.engine.boxes import Box
from cytopave.engine.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cytopave.engine.tiling import Grid, Tile

VIEW = np.dtype(
    [
        ("area", np.int64),  # pixels in the window
        ("core_area", np.int64),  # of these, pixels in the core
        ("first", np.int64),  # first pixel in raster order of the whole image
        ("first_core", np.int64),  # the same among the core's pixels; -1 where there are none
        ("cut", np.uint8),  # bit 2 * axis + side: reaches that end of the window, inside the image
    ]
)

# Runs of equal labels compress better, and faster, as they are; columns of a table do not.
_LABELS = Blosc(cname="zstd", clevel=1, shuffle=Blosc.NOSHUFFLE)
_TABLE = Blosc(cname="zstd", clevel=1, shuffle=Blosc.SHUFFLE)
_PER_FOLDER = 1000
_LOCAL_HEADER = struct.Struct("<14x3I2H")  # of a zip's member: checksum, size twice, two lengths
_HEAD = 1 << 16  # bytes of a file that are read at once


def shared_zone(grid: Grid, tile: Tile, step: tuple[int, ...]) -> Box | None:
    """The pixels of ``tile`` that are compared with its neighbour at ``step``.

    With a halo, these are the pixels that both windows hold: the same box seen from either side.
    Along an axis whose halo is zero nothing is shared, and the two planes that face each other
    across the seam are compared instead; such a zone is a box of the tile's own core.

    Returns:
        The box in the image's coordinates, or None where there is nothing to compare (corners
        and edges across an axis without a halo).
    """
    start, stop = list(tile.window.start), list(tile.window.stop)
    for axis, s in enumerate(step):
        if not s:
            continue
        halo = grid.halo[axis]
        if not halo and sum(map(abs, step)) > 1:
            return None
        seam = tile.core.stop[axis] if s > 0 else tile.core.start[axis]
        before, after = (halo, halo) if halo else (s > 0, s < 0)
        start[axis] = max(start[axis], seam - before)
        stop[axis] = min(stop[axis], seam + after)
    return Box(tuple(start), tuple(stop))


@dataclass(frozen=True)
class Scratch:
    """The folder of one run, named by the run's digest."""

    root: Path

    def tile_path(self, index: int) -> Path:
        """Where the file of a tile lies once the tile is finished."""
        return self.root / "tiles" / f"{index // _PER_FOLDER:06d}" / f"{index:09d}.zip"

    def finished(self) -> frozenset[int]:
        """Indices of all tiles whose files are committed."""
        return frozenset(int(p.stem) for p in self.root.glob("tiles/*/*.zip"))

    def has(self, index: int) -> bool:
        """Whether a tile's file is committed."""
        return self.tile_path(index).exists()

    def commit(self, grid: Grid, tile: Tile, labels: np.ndarray) -> int:
        """Write a tile's file; it appears under its name only when complete.

        Args:
            grid: The grid that the tile belongs to.
            tile: The tile.
            labels: ``([Z], Y, X)`` uint32 labels of the window, 1..n without gaps.

        Returns:
            The number of labels n.
        """
        table = views(grid, tile, labels)
        labels = labels.astype(np.min_scalar_type(len(table)), copy=False)
        members = {"core": labels[tile.core.within(tile.window)]}
        for step, _ in grid.steps(tile):
            zone = shared_zone(grid, tile, step)
            if zone is not None:
                members[zone_name(step)] = labels[zone.within(tile.window)]
        write_archive(self.tile_path(tile.index), {"views": table, **members})
        return len(table)

    def open(self, index: int) -> Archive:
        """A finished tile's file.

        Raises:
            CorruptError: The file is missing or damaged; delete it and run again.
        """
        return Archive.open(self.tile_path(index))


class OpenTiles:
    """Tile files kept open while their neighbours are worked on, so that each is opened once.

    Those used last stay, as long as they hold no more than ``keep_bytes``.
    """

    def __init__(self, scratch: Scratch, *, keep_bytes: int = 1 << 26) -> None:
        self._scratch = scratch
        self._room = keep_bytes
        self._open: OrderedDict[int, tuple[Archive, np.ndarray]] = OrderedDict()

    def __getitem__(self, index: int) -> tuple[Archive, np.ndarray]:
        """A finished tile's file and its table of views.

        Raises:
            CorruptError: The file is missing or damaged.
        """
        found = self._open.pop(index, None)
        if found is None:
            archive = self._scratch.open(index)
            found = archive, archive.read("views")[0]
            self._room -= _size(found)
        self._open[index] = found
        while self._room < 0 and len(self._open) > 1:
            self._room += _size(self._open.popitem(last=False)[1])
        return found


def _size(opened: tuple[Archive, np.ndarray]) -> int:
    return len(opened[0].head) + opened[1].nbytes


def zone_name(step: tuple[int, ...]) -> str:
    """Name of the member that holds the zone shared with the neighbour at ``step``."""
    return "zone" + "".join("-0+"[s + 1] for s in step)


def views(grid: Grid, tile: Tile, labels: np.ndarray) -> np.ndarray:
    """The table of a tile's labels: one row of type ``VIEW`` a label, in the order of the ids.

    Taken from the runs of equal labels along the last axis: there are far fewer than pixels.
    """
    table = np.zeros(int(labels.max(initial=0)), VIEW)
    label, start, length = _runs(labels)
    places = np.unravel_index(start, labels.shape)
    rows = [p + a for p, a in zip(places, tile.window.start, strict=True)]
    left = rows.pop()
    right = left + length
    table["area"] = _sums(label, length, len(table))
    table["first"] = _firsts(label, _linear(grid, tile.time, [*rows, left]), len(table))
    core_left = np.maximum(left, tile.core.start[-1])
    core_right = np.minimum(right, tile.core.stop[-1])
    inside = core_left < core_right
    for row, a, b in zip(rows, tile.core.start, tile.core.stop, strict=False):
        inside &= (a <= row) & (row < b)
    table["core_area"] = _sums(label[inside], (core_right - core_left)[inside], len(table))
    first = _linear(grid, tile.time, [*rows, core_left])
    table["first_core"] = _firsts(label[inside], first[inside], len(table))
    ends = zip([*rows, left], [*rows, right - 1], strict=True)
    for axis, (low, high) in enumerate(ends):
        for side, (reached, edge, border) in enumerate(
            (
                (low, tile.window.start[axis], 0),
                (high, tile.window.stop[axis] - 1, grid.shape[axis] - 1),
            )
        ):
            if edge != border:
                cut = np.zeros(len(table) + 1, np.uint8)
                cut[label[reached == edge]] = 1 << (2 * axis + side)
                table["cut"] |= cut[1:]
    return table


def _runs(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Label, position in memory and length of each run of equal labels, background left out."""
    flat = labels.ravel()
    begins = np.empty(flat.size, bool)
    np.not_equal(flat[1:], flat[:-1], out=begins[1:])
    begins[:: labels.shape[-1]] = True
    start = np.flatnonzero(begins)
    length = np.diff(start, append=flat.size)
    label = flat[start]
    kept = label > 0
    return label[kept], start[kept], length[kept]


def _sums(label: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    return np.bincount(label, values, minlength=n + 1)[1:]  # exact below 2^53


def _firsts(label: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    """The first value of each label 1..n, -1 for absent ones."""
    first = np.full(n + 1, -1, np.int64)
    first[label[::-1]] = values[::-1]
    return first[1:]


def _linear(grid: Grid, time: int, places: Sequence[np.ndarray]) -> np.ndarray:
    """Index of pixels in the raster order of the whole image."""
    linear = np.full(len(places[0]), time, np.int64)
    for place, length in zip(places, grid.shape, strict=True):
        linear = linear * length + place
    return linear


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
    write_bytes(path, buffer.getbuffer())


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Write a file that appears whole or not at all, also when the machine goes down."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _damaged(path: Path, error: Exception) -> str:
    return f"the scratch file {path} is missing or damaged ({error}); delete it and run again"
