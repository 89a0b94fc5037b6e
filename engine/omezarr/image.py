"""Reading images: OME-Zarr 0.4 and 0.5 and plain zarr arrays, local or behind fsspec."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.errors import CorruptError, ImageError, MissingExtraError, UserError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.damage import DAMAGE, first_damaged
from cytopave.engine.omezarr.folders import METADATA, Folder, absolute

if TYPE_CHECKING:
    import zarr


@dataclass(frozen=True)
class Level:
    """One level of an image's pyramid, all entries in the order of the image's axes.

    Attributes:
        path: Path of its zarr array in the image's group; empty if the image is a plain array.
        shape: Pixels per axis.
        scale: Physical size of a pixel per axis, in the image's units.
        translation: Physical position of the first pixel per axis.
    """

    path: str
    shape: tuple[int, ...]
    scale: tuple[float, ...]
    translation: tuple[float, ...]


@dataclass(frozen=True)
class Image:
    """One level of an image: what it is, and how to read it. Plain values, picklable.

    Attributes:
        url: Absolute path or URL of the OME-Zarr group or zarr array.
        level: Index of the level that is read, 0 the finest.
        axes: One letter an axis in file order, a subset of ``tczyx``.
        shape: Pixels per axis of the level, in file order; so are all tuples below.
        dtype: Name of the numpy type that reading gives (native byte order).
        chunks: Shape of the smallest unit that is decoded (the inner chunk of a shard).
        shards: Shape of a shard; None where the level is not sharded.
        scale: Physical size of a pixel.
        translation: Physical position of the first pixel.
        units: Unit of each axis, or None.
        levels: All levels, finest first.
        channels: Name of each channel ("0", "1", ... where the image names none); empty
            without C.
        version: OME-Zarr version, "0.4" or "0.5"; None for a plain zarr array.
        zarr_format: 2 or 3.
        storage_options: What fsspec needs to open the URL.
    """

    url: str
    level: int
    axes: str
    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    scale: tuple[float, ...]
    translation: tuple[float, ...]
    units: tuple[str | None, ...]
    levels: tuple[Level, ...]
    channels: tuple[str, ...]
    version: str | None
    zarr_format: int
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def spatial_axes(self) -> str:
        """The spatial axes, "yx" or "zyx"."""
        return "".join(a for a in self.axes if a in ngff.SPATIAL)

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Pixels along ([Z], Y, X)."""
        return self.of(self.spatial_axes, self.shape)

    @property
    def n_times(self) -> int:
        """Number of time points; 1 without T."""
        return self._length("t")

    @property
    def n_channels(self) -> int:
        """Number of channels; 1 without C."""
        return self._length("c")

    @property
    def folder(self) -> Folder:
        """The folder of the OME-Zarr group, or of the plain array."""
        return Folder(self.url, self.storage_options)

    @property
    def array(self) -> zarr.Array[Any]:
        """The zarr array of the level; opened once a process."""
        return self._array_folder.array()

    @property
    def canonical_chunks(self) -> tuple[int, ...]:
        """Shape of a chunk as (T, C, [Z], Y, X); 1 for an axis that the image lacks."""
        return tuple(self.of(a, self.chunks)[0] if a in self.axes else 1 for a in self._canonical)

    @property
    def _canonical(self) -> str:
        return "tc" + self.spatial_axes

    @property
    def _array_folder(self) -> Folder:
        return self.folder / self.levels[self.level].path

    def _length(self, axis: str) -> int:
        return self.of(axis, self.shape)[0] if axis in self.axes else 1

    def of(self, axes: str, values: Sequence[Any]) -> tuple[Any, ...]:
        """The entries of a file-order tuple that belong to the given axes."""
        return tuple(values[self.axes.index(a)] for a in axes)

    def at_level(self, level: int) -> Image:
        """The same image at another level.

        Raises:
            ImageError: There is no such level.
        """
        return open_image(
            self.url,
            level=level,
            axes=None if self.version else self.axes,
            storage_options=self.storage_options,
        )

    def channel_indices(self, selection: Sequence[int | str] | None = None) -> tuple[int, ...]:
        """Indices of channels given by number or name; all of them for None.

        An image without a channel axis has only the channel 0, and gives ``()``.

        Raises:
            ImageError: No channel has that number or name, several have, or one comes twice.
        """
        if "c" not in self.axes:
            if selection is None or [str(s) for s in selection] in ([], ["0"]):
                return ()
            raise ImageError(f"{self.url} has no channel axis: leave the channels out")
        if selection is None:
            return tuple(range(self.n_channels))
        indices = tuple(self._channel_index(s) for s in selection)
        if not indices or len(set(indices)) < len(indices):
            raise ImageError(f"name at least one channel of {self.url}, and each only once")
        return indices

    def _channel_index(self, name: int | str) -> int:
        matches = [i for i, n in enumerate(self.channels) if n == name]
        if not matches and str(name).isdecimal() and int(name) < self.n_channels:
            matches = [int(name)]
        if len(matches) == 1:
            return matches[0]
        listed = ", ".join(f"{i} ({n})" if n != str(i) else n for i, n in enumerate(self.channels))
        problem = "several channels are called" if matches else "there is no channel"
        raise ImageError(f"{problem} {name!r} in {self.url}: its channels are {listed}")

    def read(self, box: Box, *, time: int = 0, channels: Sequence[int] = ()) -> np.ndarray:
        """Pixels of a region in native byte order.

        Args:
            box: Spatial region ([Z], Y, X), inside the image.
            time: Index of the time point.
            channels: Indices from `channel_indices`; empty for all.

        Returns:
            (C, [Z], Y, X) for more than one channel, else ([Z], Y, X).

        Raises:
            CorruptError: A chunk is truncated or damaged. One that is missing is not: zarr
                stores no chunk of nothing but the fill value.
        """
        picked = tuple(channels) or tuple(range(self.n_channels))
        out = np.empty((len(picked), *box.shape), self.dtype)
        for first, last in _runs(picked):
            start, stop = picked[first], picked[last - 1] + 1
            block = Box((time, start, *box.start), (time + 1, stop, *box.stop))
            out[first:last] = self.read_block(block)[0]
        return out if len(picked) > 1 else out[0]

    def _slices(self, box: Box) -> tuple[slice, ...]:
        return tuple(box.slices[self._canonical.index(a)] for a in self.axes)

    def _stored(self, box: Box) -> np.ndarray:
        return np.asarray(self.array[self._slices(box)])

    def _damage(self, box: Box, error: Exception) -> str:
        """Say which chunk of a box cannot be read, and where it is stored."""
        box, error = first_damaged(self._stored, box, self.canonical_chunks, error)
        cut, file = self._slices(box), self.shards or self.chunks
        region = ", ".join(f"{a}={s.start}:{s.stop}" for a, s in zip(self.axes, cut, strict=True))
        place = tuple(s.start // n for s, n in zip(cut, file, strict=True))
        key = self.array.metadata.encode_chunk_key(place)
        path = f"{self.levels[self.level].path}/{key}".lstrip("/")
        return (
            f"a chunk of {self.url}, file {path}, region {region}, is truncated or damaged: {error}"
        )

    def read_block(self, box: Box) -> np.ndarray:
        """Pixels of a (T, C, [Z], Y, X) box as an array of that shape, in native byte order.

        Raises:
            CorruptError: A chunk is truncated or damaged.
        """
        if box.intersect(Box.of(tuple(map(self._length, self._canonical)))) != box:
            raise ValueError(f"{box} reaches beyond {self.url} of shape {self.shape}")
        try:
            block = self._stored(box)
        except DAMAGE as error:
            raise CorruptError(self._damage(box, error)) from error
        order = [a for a in self._canonical if a in self.axes]
        block = block.transpose([self.axes.index(a) for a in order]).reshape(box.shape)
        return block.astype(self.dtype, copy=False)

    def fingerprint(self, *, times: bool = True) -> str:
        """SHA-256 over the level's metadata and the name, size and time of its every file.

        Changed pixels change it, without being read: a file that is written gets a new time
        (or ETag, in object stores). So does a copy of the image.

        Args:
            times: Whether times count. Without them a copy has the same fingerprint, and changed
                pixels show in the sizes of compressed files, not surely but nearly so.
        """
        folder = self._array_folder
        digest = hashlib.sha256()
        for name in METADATA:
            if (content := folder.read_json(name)) is not None and name != ".zattrs":
                content.pop("attributes", None)
                digest.update(json.dumps([name, content], sort_keys=True).encode())
        files = (f for f in folder.files() if f[0] not in METADATA)
        for name, size, stamp in sorted(files):
            digest.update(f"{name}\0{size}\0{stamp if times else ''}\n".encode())
        return digest.hexdigest()


def open_image(
    url: str | os.PathLike[str],
    *,
    level: int = 0,
    axes: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Image:
    """Look at an image: read its metadata, none of its pixels.

    Args:
        url: Path or fsspec URL of an OME-Zarr image (0.4, 0.5) or of a plain zarr array.
        level: Level of the pyramid, 0 the finest.
        axes: Letters of a plain array's axes, in file order. Default: its dimension names if
            they are such letters, else yx, zyx, czyx, tczyx by the number of axes.
        storage_options: What fsspec needs to open the URL; JSON values.

    Raises:
        ImageError: Nothing is there, it is no image, or it has no such level; a dtype that is
            not a number, or axes that do not fit.
        MissingExtraError: The package that serves the URL's protocol is not installed.
    """
    if not os.fspath(url).strip():
        raise ImageError("no image is named: give its path or URL")
    folder = Folder(absolute(url), dict(storage_options or {}))
    try:
        if folder.local is None:
            folder.forget()
        return _open(folder, level, axes)
    except (ImageError, MissingExtraError):
        raise
    except UserError as error:
        raise ImageError(str(error)) from error
    except OSError as error:
        raise ImageError(f"{folder} cannot be read: {error}") from error


def _open(folder: Folder, level: int, axes: str | None) -> Image:
    attributes = ngff.read_attributes(folder)
    if attributes is None:
        raise ImageError(ngff.describe_absence(folder))
    meta = folder.read_json("zarr.json")
    zarr_format = 3 if meta else 2
    if (meta and meta.get("node_type") == "array") or folder.exists(".zarray"):
        return _plain(folder, level, axes, attributes, zarr_format)
    if "multiscales" not in ngff.ome_of(attributes):
        raise ImageError(ngff.describe_group(attributes, folder))
    multiscale = ngff.read_multiscale(attributes, folder)
    if axes is not None and axes.lower() != multiscale.axes:
        raise ImageError(
            f"the axes of {folder} are {multiscale.axes!r} by its metadata, not {axes!r}: "
            "leave the axes out, or name an image that has them"
        )
    levels = tuple(_level(folder, dataset) for dataset in multiscale.datasets)
    return _image(
        folder,
        level,
        axes=multiscale.axes,
        levels=levels,
        units=multiscale.units,
        channels=multiscale.channels,
        version=multiscale.version,
        zarr_format=zarr_format,
    )


def _plain(
    folder: Folder, level: int, axes: str | None, attributes: Mapping[str, Any], zarr_format: int
) -> Image:
    ngff.refuse_a_level(folder)
    array = _zarr_array(folder)
    # xarray keeps the names of a format 2 array's axes in this attribute.
    named = getattr(array.metadata, "dimension_names", None) or attributes.get("_ARRAY_DIMENSIONS")
    axes = ngff.array_axes(axes, named, tuple(array.shape), folder)
    return _image(
        folder,
        level,
        axes=axes,
        levels=(Level("", tuple(array.shape), (1.0,) * array.ndim, (0.0,) * array.ndim),),
        units=(None,) * array.ndim,
        channels=(),
        version=None,
        zarr_format=zarr_format,
    )


def _level(folder: Folder, dataset: ngff.Dataset) -> Level:
    shape = tuple(_zarr_array(folder / dataset.path).shape)
    if len(shape) != len(dataset.scale):
        raise ImageError(
            f"array {dataset.path} of {folder} has {len(shape)} axes, but its metadata name "
            f"{len(dataset.scale)}"
        )
    return Level(dataset.path, shape, dataset.scale, dataset.translation)


def _zarr_array(folder: Folder) -> zarr.Array[Any]:
    try:
        return folder.array()
    except (ValueError, TypeError, KeyError) as error:  # zarr's errors are ValueErrors
        raise ImageError(f"{folder} is not an array that can be read: {error}") from error


def _image(
    folder: Folder,
    level: int,
    *,
    axes: str,
    levels: tuple[Level, ...],
    units: tuple[str | None, ...],
    channels: tuple[str, ...],
    version: str | None,
    zarr_format: int,
) -> Image:
    if not 0 <= level < len(levels):
        listed = ", ".join(f"{i} {lv.shape}" for i, lv in enumerate(levels))
        raise ImageError(f"{folder} has no level {level}: its levels are {listed}")
    here = levels[level]
    array = (folder / here.path).array()
    if array.dtype.kind not in "uifb":
        raise ImageError(
            f"{folder} holds {array.dtype} values: only integers, floats and booleans are pixels"
        )
    if 0 in here.shape:
        raise ImageError(f"{folder} is empty: its shape is {here.shape}")
    count = here.shape[axes.index("c")] if "c" in axes else 0
    names = (channels[i] if i < len(channels) else str(i) for i in range(count))
    return Image(
        url=folder.url,
        level=level,
        axes=axes,
        shape=here.shape,
        dtype=array.dtype.newbyteorder("=").name,
        chunks=tuple(array.chunks),
        shards=tuple(array.shards) if array.shards else None,
        scale=here.scale,
        translation=here.translation,
        units=units,
        levels=levels,
        channels=tuple(names),
        version=version,
        zarr_format=zarr_format,
        storage_options=folder.options,
    )


def _runs(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Where the sequence goes up by one, as (first, past last) positions."""
    cuts = [i for i in range(1, len(indices)) if indices[i] != indices[i - 1] + 1]
    return list(itertools.pairwise([0, *cuts, len(indices)]))
