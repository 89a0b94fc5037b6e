"""Writing a label image: where it goes, how it is laid out, and its pixels block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import zarr
from numcodecs import Blosc
from zarr.codecs import ZstdCodec

from cytopave.engine.errors import OutputError
from cytopave.engine.lazy import Lazy
from cytopave.engine.omezarr import ngff, publish, pyramid
from cytopave.engine.omezarr.folders import Folder, absolute
from cytopave.engine.omezarr.label_writer import LabelWriter
from cytopave.engine.omezarr.pyramid import LabelLevel
from cytopave.engine.omezarr.target import Target

if TYPE_CHECKING:
    import os

    from cytopave.engine.boxes import Box
    from cytopave.engine.omezarr.image import Image


@dataclass(frozen=True)
class WriteBlock:
    """A unit of writing: every chunk of every direct level belongs to exactly one."""

    time: int
    box: Box


class LabelTarget(Target):
    """Where a run's label image goes and how it is laid out; plain values, made once.

    Attributes:
        version: OME-Zarr version.
        axes: Letters of the axes, those of the image without C, in the order ``tzyx``.
        units: Unit of each axis.
        levels: The pyramid, finest first.
        direct: Number of levels that are written block by block; the others come last.
        plan: Chunks, shards and units of level 0.
        source: Path of the image relative to the label image; None in another store.
    """

    shelf = "labels"
    noun = "label image"

    version: Literal["0.4", "0.5"]
    axes: str
    units: tuple[str | None, ...]
    levels: tuple[LabelLevel, ...]
    direct: int
    plan: pyramid.Blocks
    source: str | None

    @property
    def is_published(self) -> bool:
        """Whether the label image of this run is in place and listed."""
        listed = self.name in publish.listed_names(self.store / self.shelf)
        return listed and publish.digest_of(self.published) == self.digest

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Pixels of level 0 along ([Z], Y, X)."""
        return self.spatial(self.levels[0].shape)

    @property
    def n_times(self) -> int:
        """Number of time points; 1 without T."""
        return self.levels[0].shape[0] if "t" in self.axes else 1

    def blocks(self) -> Lazy[WriteBlock]:
        """The units of writing, in raster order, time slowest. They partition level 0."""
        boxes = pyramid.units(pyramid.unit_edges(self.spatial_shape, self.plan))
        return Lazy(
            self.n_times * len(boxes),
            lambda i: WriteBlock(i // len(boxes), boxes[i % len(boxes)]),
        )

    def create(self, dtype: Any) -> None:
        """Create the hidden, empty label image, or keep the one that is there.

        One of the same layout, left by a run that was interrupted, keeps its pixels; any other
        is deleted first.

        Args:
            dtype: uint32 or uint64.

        Raises:
            OutputError: It cannot be written.
        """
        dtype = np.dtype(dtype)
        if dtype not in (np.uint32, np.uint64):
            raise ValueError(f"labels are uint32 or uint64, not {dtype}")
        with self.writing():
            if ngff.read_attributes(self.store) is None:
                publish.write_group(self.store, zarr_format=self.zarr_format, attributes={})
            if not all(self._fits(level, dtype) for level in self.levels):
                self.staging.remove()
            Folder.forget()
            if ngff.read_attributes(self.staging) is None:
                publish.write_group(self.staging, zarr_format=self.zarr_format, attributes={})
            for level in self.levels:
                if ngff.read_attributes(self.staging / level.path) is None:
                    self._create_array(level, dtype)

    def writer(self) -> LabelWriter:
        """What writes the pixels, once the arrays are created."""
        return LabelWriter(self)

    def publish(self, provenance: Mapping[str, Any]) -> None:
        """Complete the metadata, validate, and make the label image visible.

        May be called again after a kill at any point: see `cytopave.engine.omezarr.publish`.

        Args:
            provenance: What made the labels: JSON values, kept in the attribute ``cytopave``.

        Raises:
            OutputError: There is nothing to publish, or the name was taken in the meantime.
            CorruptError: What was written is not valid OME-Zarr.
        """
        with self.writing():
            if self.staging.exists():
                self._describe(provenance)
                ngff.validate_labels(self.staging)
            publish.publish(
                self.store,
                staging=self.staging,
                name=self.name,
                digest=self.digest,
                version=self.version,
                zarr_format=self.zarr_format,
                overwrite=self.overwrite,
            )

    def _describe(self, provenance: Mapping[str, Any]) -> None:
        attributes = ngff.label_attributes(
            version=self.version,
            name=self.name,
            axes=self.axes,
            units=self.units,
            datasets=[ngff.Dataset(v.path, v.scale, v.translation) for v in self.levels],
            source=self.source,
        )
        attributes[publish.PROVENANCE] = {**provenance, "digest": self.digest}
        publish.write_group(self.staging, zarr_format=self.zarr_format, attributes=attributes)

    def spatial(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The values of the spatial axes, of one an axis."""
        return values[1:] if "t" in self.axes else values

    def _fits(self, level: LabelLevel, dtype: np.dtype[Any]) -> bool:
        folder = self.staging / level.path
        if ngff.read_attributes(folder) is None:
            return True
        array = folder.array(mode="r+")
        found = (array.shape, array.chunks, array.shards, array.dtype)
        return found == (level.shape, level.chunks, level.shards, dtype)

    def _create_array(self, level: LabelLevel, dtype: np.dtype[Any]) -> None:
        v3 = self.zarr_format == 3
        # A store of its own, rooted at the hidden group: zarr would create a group for every
        # folder above it, and so announce the labels before they are there.
        url, options = self.staging.address
        zarr.create_array(
            url,
            name=level.path,
            shape=level.shape,
            dtype=dtype,
            chunks=level.chunks,
            shards=level.shards,
            compressors=ZstdCodec(level=1) if v3 else Blosc(cname="zstd", clevel=1),
            fill_value=0,
            zarr_format=self.zarr_format,
            dimension_names=list(self.axes) if v3 else None,
            chunk_key_encoding={"name": "default" if v3 else "v2", "separator": "/"},
            storage_options=options or None,
            config={"write_empty_chunks": False},
        )


@dataclass(frozen=True)
class LabelImage:
    """A label image as it was written.

    Attributes:
        attributes: Attributes of its group.
        levels: Its zarr arrays, finest first.
    """

    attributes: Mapping[str, Any]
    levels: tuple[zarr.Array[Any], ...]


def open_labels(
    store: str | os.PathLike[str], name: str, *, storage_options: Mapping[str, Any] | None = None
) -> LabelImage:
    """Open a published label image for reading.

    Raises:
        OutputError: The store lists no label image of that name.
    """
    root = Folder(absolute(store), dict(storage_options or {}))
    names = publish.listed_names(root / "labels")
    if name not in names:
        listed = f"those there are {', '.join(names)}" if names else "there is none"
        raise OutputError(f"{root} has no label image {name!r}: {listed}")
    group = root / "labels" / name
    attributes = ngff.read_attributes(group) or {}
    datasets = ngff.read_multiscale(attributes, group).datasets
    return LabelImage(attributes, tuple((group / d.path).array() for d in datasets))


def beside(array_url: str) -> str:
    """The store beside a plain zarr array that gets its labels: ``scan.labels.zarr``."""
    return f"{array_url.removesuffix('.zarr')}.labels.zarr"


def label_target(
    image: Image,
    *,
    name: str,
    output: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    tile: Sequence[int],
    digest: str,
) -> LabelTarget:
    """Decide where an image's labels go and how they are laid out; refuse what cannot work.

    Nothing is left behind: `LabelTarget.create` creates.

    Args:
        image: The image, at the level that is segmented.
        name: Name of the label image.
        output: Store that gets ``labels/<name>``, created if it is absent; a remote one is opened
            with the image's storage options. Default: the image's own store, or, for a plain
            zarr array ``scan.zarr``, the store ``scan.labels.zarr`` beside it.
        overwrite: Whether a label image of that name is replaced once this one is complete.
        tile: Core of a tile ([Z], Y, X).
        digest: Digest of the run, at least 8 characters.

    Raises:
        OutputError: The name is taken or cannot be used, or nothing can be written there.
    """
    publish.check_name(name)
    url = label_store(image, output)
    store = Folder(url, {} if Folder(url).local else image.storage_options)
    version: Any = image.version or ("0.5" if image.zarr_format == 3 else "0.4")
    _check_store(store, image.zarr_format)
    labels = store / "labels"
    if not overwrite and publish.is_taken(labels, name, digest):
        raise OutputError(
            f"the label image {name!r} is already in {store}: choose another name, or replace it "
            "(--overwrite)"
        )
    publish.check_writable(labels)
    axes = "".join(a for a in "tzyx" if a in image.axes)
    if "t" in axes and len({image.of("t", level.shape) for level in image.levels}) > 1:
        raise OutputError(f"the levels of {image.url} differ in their number of time points")
    plan = pyramid.plan_blocks(image.spatial_shape, tile)
    levels, direct = pyramid.lay_out(image, axes, plan)
    return LabelTarget(
        url=store.url,
        storage_options=dict(store.options),
        name=name,
        digest=digest,
        overwrite=overwrite,
        version=version,
        zarr_format=image.zarr_format,
        axes=axes,
        units=image.of(axes, image.units),
        levels=levels,
        direct=direct,
        plan=plan,
        source="../../" if image.version and store.url == image.url else None,
    )


def label_store(image: Image, output: str | os.PathLike[str] | None) -> str:
    """The store that gets an image's labels; see `label_target`."""
    if output is not None:
        return absolute(output)
    return image.url if image.version else beside(image.url)


def _check_store(store: Folder, zarr_format: int) -> None:
    meta = store.read_json("zarr.json")
    found = 3 if meta else 2 if store.exists(".zgroup") or store.exists(".zarray") else None
    if store.exists(".zarray") or (meta and meta.get("node_type") != "group"):
        raise OutputError(f"{store} is a zarr array, which cannot hold labels: give another output")
    if found not in (None, zarr_format):
        raise OutputError(
            f"{store} is a store of zarr format {found}, the image one of format {zarr_format}: "
            "give another output"
        )
    if found is None and store.local and store.local.is_file():
        raise OutputError(f"{store} is a file: give a folder as the output")
