"""Tile files: what a segmented tile leaves behind, committed whole or not at all.

A tile file is a plain zip whose members are stored, so that each can be read alone and carries
a checksum. It holds the labels of the tile's core, the labels of every zone that the tile shares
with a neighbour, and a table with one row a label ("view": an object as this tile saw it). The
merge compares zones with zones and paints from cores and zones, so it never needs two whole
tiles at once, and each member is read once by each of the two passes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import json
import logging
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numcodecs import Blosc

from cytopave.engine.boxes import Box
from cytopave.engine.errors import CorruptError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cytopave.engine.tiling import Grid, Tile

logger = logging.getLogger(__name__)

VIEW = np.dtype(
    [
        ("area", np.int64),  # pixels in the window
        ("core_area", np.int64),  # of these, pixels in the core
        ("first", np.int64),  # first pixel in raster order of the whole image
        ("first_core", np.int64),  # the same among the core's pixels; -1 where there are none
        ("cut", np.uint8),  # bit 2 * axis + side: reaches that end of the window, inside the image
    ]
)

_CODEC = Blosc(cname="zstd", clevel=1, shuffle=Blosc.SHUFFLE)
_PER_FOLDER = 1000


def shared_zone(grid: Grid, tile: Tile, step: tuple[int, ...]) -> Box | None:
    """The pixels of ``tile`` that are compared with its neighbour at ``step``.

    With a halo, these are the pixels that both windows hold: the same box seen from either side.
    Along an axis whose halo is zero nothing is shared, and the two planes that face each other
    across the seam are compared instead; such a zone is a box of the tile's own core.

    Returns:
        The box in the image's coordinates, or None where there is nothing to compare (corners
        and edges across an axis without a halo).
    """
    bare = [s != 0 and h == 0 for s, h in zip(step, grid.halo, strict=True)]
    if any(bare) and sum(s != 0 for s in step) > 1:
        return None
    position = tuple(p + s for p, s in zip(tile.position, step, strict=True))
    other = grid[grid.index(tile.time, position)]
    zone = tile.window.intersect(other.window)
    if not any(bare):
        return zone
    start, stop = list(zone.start), list(zone.stop)
    axis = bare.index(True)
    edge = tile.core.stop[axis] - 1 if step[axis] > 0 else tile.core.start[axis]
    start[axis], stop[axis] = edge, edge + 1
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
        members = {"core": labels[tile.core.within(tile.window)]}
        for step, _ in grid.neighbours(tile):
            zone = shared_zone(grid, tile, step)
            if zone is not None:
                members[zone_name(step)] = labels[zone.within(tile.window)]
        table = views(grid, tile, labels)
        write_archive(self.tile_path(tile.index), {"views": table, **members})
        return len(table)

    def open(self, index: int) -> Archive:
        """A finished tile's file.

        Raises:
            CorruptError: The file is missing or damaged; delete it and run again.
        """
        return Archive.open(self.tile_path(index))


def zone_name(step: tuple[int, ...]) -> str:
    """Name of the member that holds the zone shared with the neighbour at ``step``."""
    return "zone" + "".join("-0+"[s + 1] for s in step)


def views(grid: Grid, tile: Tile, labels: np.ndarray) -> np.ndarray:
    """The table of a tile's labels: one row of type ``VIEW`` a label, in the order of the ids."""
    n = int(labels.max(initial=0))
    table = np.zeros(n, VIEW)
    core = labels[tile.core.within(tile.window)]
    table["area"] = np.bincount(labels.ravel(), minlength=n + 1)[1:]
    table["core_area"] = np.bincount(core.ravel(), minlength=n + 1)[1:]
    table["first"] = _first_pixels(grid, tile.time, labels, tile.window, n)
    table["first_core"] = _first_pixels(grid, tile.time, core, tile.core, n)
    for axis in range(labels.ndim):
        for side, at_border in enumerate(
            (tile.window.start[axis] == 0, tile.window.stop[axis] == grid.shape[axis])
        ):
            if not at_border:
                plane = np.unique(labels.take(-side, axis=axis))
                table["cut"][plane[plane > 0] - 1] |= 1 << (2 * axis + side)
    return table


def _first_pixels(grid: Grid, time: int, labels: np.ndarray, box: Box, n: int) -> np.ndarray:
    """Linear index in the whole image of each label's first pixel, -1 for absent labels."""
    flat = labels.ravel()
    # Only a pixel that differs from the one before it can be a label's first.
    starts = np.flatnonzero(np.concatenate([flat[:1] != 0, flat[1:] != flat[:-1]]))
    first = np.full(n + 1, -1, np.int64)
    first[flat[starts[::-1]]] = starts[::-1]
    present = first >= 0
    where = np.unravel_index(first[present], labels.shape)
    linear = np.full(int(present.sum()), time, np.int64)
    for w, a, length in zip(where, box.start, grid.shape, strict=True):
        linear = linear * length + (w + a)
    first[present] = linear
    return first[1:]


@dataclass(frozen=True)
class Archive:
    """A zip of compressed arrays that is read member by member."""

    path: Path
    index: Mapping[str, Any]

    @classmethod
    def open(cls, path: Path) -> Archive:
        """Read the table of contents.

        Raises:
            CorruptError: The file is missing or damaged.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                return cls(path, json.loads(archive.read("index.json")))
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise CorruptError(_damaged(path, error)) from error

    def read(self, *names: str) -> list[np.ndarray]:
        """The named arrays.

        Raises:
            CorruptError: A member is missing or damaged.
        """
        try:
            with zipfile.ZipFile(self.path) as archive:
                return [self._decode(name, archive.read(name)) for name in names]
        except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
            raise CorruptError(_damaged(self.path, error)) from error

    def _decode(self, name: str, data: bytes) -> np.ndarray:
        entry = self.index[name]
        dtype = entry["dtype"]
        dtype = np.dtype([tuple(d) for d in dtype] if isinstance(dtype, list) else dtype)
        if 0 in entry["shape"]:  # Blosc cannot decode what it encodes of nothing
            return np.zeros(entry["shape"], dtype)
        return np.frombuffer(_CODEC.decode(data), dtype).reshape(entry["shape"])


def write_archive(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as one file that appears whole or not at all."""
    buffer = io.BytesIO()
    index: dict[str, Any] = {}
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            dtype = array.dtype.descr if array.dtype.names else array.dtype.str
            index[name] = {"shape": array.shape, "dtype": dtype}
            archive.writestr(name, _CODEC.encode(np.ascontiguousarray(array)))
        archive.writestr("index.json", json.dumps(index))
    write_bytes(path, buffer.getbuffer())


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
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


DEFAULT_FOLDER = ".cytopave"
"""Name of the folder of all scratch folders where none was asked for; deleted when empty."""


@contextlib.contextmanager
def occupied(root: Path, *, remove: bool) -> Iterator[None]:
    """Use a scratch folder that other runs may use as well.

    Args:
        root: The folder; created if need be.
        remove: Whether to delete it in the end. It stays if the block raises, and as long as
            another run uses it: the last one to leave deletes it. The operating system ends a
            killed run's claim. File systems without locks cannot tell: a warning says so.

    Raises:
        OutputError: The folder cannot be created or written to.
    """
    with _usable(root):
        handle, lock = _shared_lock(root)
        root.mkdir(parents=True, exist_ok=True)
    try:
        yield
        if remove:
            _remove_if_alone(root, handle, lock)
    finally:
        os.close(handle)


@contextlib.contextmanager
def claimed(root: Path, labels: object) -> Iterator[None]:
    """Be the only run that makes certain labels from the tiles of a scratch folder.

    Args:
        root: The folder, which the caller occupies.
        labels: The place where the labels will be published.

    Raises:
        OutputError: Another run is making them, or the folder cannot be written to.
    """
    name = hashlib.sha256(str(labels).encode()).hexdigest()[:16]
    with _usable(root):
        (root / "claims").mkdir(exist_ok=True)
        handle = os.open(root / "claims" / name, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if not _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, root):
            raise OutputError(
                f"another run is making the labels {labels} of the same tiles just now: wait "
                "until it has ended, or choose another name"
            )
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _usable(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"the scratch folder {root} cannot be used ({error}): name one that can be written to "
            "(--scratch or CYTOPAVE_SCRATCH)"
        ) from error


def _shared_lock(root: Path) -> tuple[int, Path]:
    # Beside the folder, so that it can be held while the folder is deleted.
    lock = root.parent / f".{root.name}.lock"
    while True:
        root.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue  # its last holder deleted the folder meanwhile
        _lock(handle, fcntl.LOCK_SH, root)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(lock)):
                return handle, lock
        os.close(handle)  # its last holder deleted it while we waited


def _lock(handle: int, how: int, root: Path) -> bool:
    """Whether the lock is held, or cannot be held by anyone."""
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    except OSError as error:
        logger.warning("%s has no locks (%s): start one run on an image at a time", root, error)
    return True


def _remove_if_alone(root: Path, handle: int, lock: Path) -> None:
    if not _lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, root):
        return
    shutil.rmtree(root)
    lock.unlink(missing_ok=True)
    if root.parent.name == DEFAULT_FOLDER:
        with contextlib.suppress(OSError):  # other runs' folders may be there
            root.parent.rmdir()


def _damaged(path: Path, error: Exception) -> str:
    return f"the scratch file {path} is missing or damaged ({error}); delete it and run again"
