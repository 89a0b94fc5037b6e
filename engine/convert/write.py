"""Writing a conversion: parts into a hidden store, then what is left of the pyramid, then its name.

Nothing has the store's name before everything is there. Parts that are written are noted, so that
the same conversion continues where it was ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from cytopave.engine.boxes import Box
from cytopave.engine.convert.files import open_pixels
from cytopave.engine.convert.scene import read_region
from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.publish import PROVENANCE, write_group
from cytopave.engine.omezarr.write import halved
from cytopave.engine.scratch.tenancy import claimed, occupied

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cytopave.engine.convert.conversion import Conversion

logger = logging.getLogger(__name__)

# Of photons' noise the bits that matter lie together then: smaller than zstd alone, and faster.
_CODEC = BloscCodec(cname="zstd", clevel=3, shuffle="bitshuffle")

_COLORS = ("00FFFF", "FF00FF", "FFFF00", "FF0000", "00FF00", "0000FF")
"""For channels of which the file does not say: told apart also where red and green look alike."""


@contextlib.contextmanager
def working(conversion: Conversion) -> Iterator[None]:
    """Be the only one who makes a store, in its hidden folder, which is deleted in the end.

    Where the block raises, the folder stays if it has parts that need not be written again.

    Raises:
        OutputError: Nothing can be written there, or somebody else makes the store just now.
    """
    with _writing(conversion):
        conversion.work.mkdir(parents=True, exist_ok=True)
    with occupied(conversion.work, remove=True), _claimed(conversion):
        try:
            with _writing(conversion):
                _create(conversion)
            yield
        except Exception:
            if not any(conversion.is_done(g) for g in range(len(conversion.groups))):
                shutil.rmtree(conversion.work, ignore_errors=True)
                lock = conversion.work.parent / f".{conversion.work.name}.lock"
                lock.unlink(missing_ok=True)
            raise


def _claimed(conversion: Conversion) -> contextlib.AbstractContextManager[None]:
    return claimed(conversion.work, conversion.store, noun="store")


def convert_whole(conversion: Conversion, provenance: Mapping[str, Any]) -> None:
    """Make a store from beginning to end in this process.

    Raises:
        CorruptError: The source is truncated or damaged.
        OutputError: The store cannot be written.
    """
    with working(conversion):
        for group in range(len(conversion.groups)):
            write_group_of_parts(conversion, group)
        publish(conversion, provenance)


def write_group_of_parts(conversion: Conversion, group: int) -> int:
    """Read a group of parts and write them, with the levels that they suffice for.

    Returns:
        The number of pixels read; 0 if an earlier attempt wrote the group.

    Raises:
        CorruptError: The source is truncated or damaged.
        OutputError: They cannot be written.
    """
    if conversion.is_done(group):
        return 0
    arrays = [_array(conversion, k, mode="r+") for k in range(conversion.direct)]
    pixels = open_pixels(conversion.scene)
    read = 0
    with contextlib.closing(pixels):
        for index in conversion.groups[group]:
            part = conversion.parts[index]
            data = read_region(conversion.scene, pixels, part)
            read += data.size
            with _writing(conversion):
                for unit in conversion.units_of(part):
                    _write_unit(conversion, arrays, unit, data[unit.within(part)])
    with _writing(conversion):
        conversion.commit(group)
    return read


def publish(conversion: Conversion, provenance: Mapping[str, Any]) -> None:
    """Write the coarsest levels and the metadata, and give the store its name.

    Args:
        conversion: The conversion, all of whose parts are written.
        provenance: What made the store: JSON values.

    Raises:
        OutputError: It cannot be written, or the name was taken meanwhile.
        CorruptError: What was written is not valid.
    """
    with _writing(conversion):
        for k in range(conversion.direct, len(conversion.levels)):
            _write_coarser(conversion, k)
        staging = Folder(str(conversion.staging))
        attributes = _attributes(conversion)
        made = {**provenance, **_source(conversion), "digest": conversion.digest}
        write_group(staging, zarr_format=3, attributes={**attributes, PROVENANCE: made})
        ngff.validate_labels(staging, noun="pixels")
        _rename(conversion)


def _create(conversion: Conversion) -> None:
    for level in conversion.levels:
        if (conversion.staging / level.path / "zarr.json").exists():
            continue
        zarr.create_array(
            str(conversion.staging / level.path),
            shape=level.shape,
            dtype=conversion.scene.dtype,
            chunks=level.chunks,
            shards=level.shards,
            compressors=_CODEC,
            dimension_names=list(conversion.axes),
        )


def _array(conversion: Conversion, level: int, *, mode: Any = "r") -> zarr.Array[Any]:
    path = conversion.staging / conversion.levels[level].path
    return zarr.open_array(str(path), mode=mode)


def _write_unit(
    conversion: Conversion, arrays: Sequence[zarr.Array[Any]], box: Box, pixels: np.ndarray
) -> None:
    for array in arrays:
        array[box.slices] = pixels
        if array is not arrays[-1]:
            pixels = _coarser(conversion, pixels)
            box = _coarser_box(box)


def _write_coarser(conversion: Conversion, k: int) -> None:
    fine, coarse = _array(conversion, k - 1), _array(conversion, k, mode="r+")
    level = conversion.levels[k]
    for box in Box.of(level.shape).blocks(level.shards or level.chunks):
        source = Box(
            (*box.start[:-2], *(2 * n for n in box.start[-2:])),
            (*box.stop[:-2], *(2 * n for n in box.stop[-2:])),
        ).intersect(Box.of(fine.shape))
        coarse[box.slices] = _coarser(conversion, np.asarray(fine[source.slices]))


def _coarser(conversion: Conversion, pixels: np.ndarray) -> np.ndarray:
    return pixels[..., ::2, ::2] if conversion.labels else halved(pixels)


def _coarser_box(box: Box) -> Box:
    return Box(
        (*box.start[:-2], *(n // 2 for n in box.start[-2:])),
        (*box.stop[:-2], *(-(-n // 2) for n in box.stop[-2:])),
    )


def _attributes(conversion: Conversion) -> dict[str, Any]:
    levels = conversion.levels
    several = conversion.scene.count > 1
    return ngff.image_attributes(
        name=(several and conversion.scene.name) or conversion.store.name.removesuffix(".zarr"),
        axes=conversion.axes,
        units=conversion.units,
        datasets=[ngff.Dataset(v.path, v.scale, v.translation) for v in levels],
        method="nearest" if conversion.labels else "mean",
        channels=_omero(conversion) if "c" in conversion.axes else (),
    )


def _omero(conversion: Conversion) -> list[dict[str, Any]]:
    """Name, colour and window of each channel; the window from the coarsest level's pixels."""
    coarsest = _array(conversion, len(conversion.levels) - 1)
    axis = conversion.axes.index("c")
    n = coarsest.shape[axis]
    channels = conversion.scene.channels or ()
    found = []
    for i in range(n):
        known = channels[i] if i < len(channels) else None
        color = (known.color if known else None) or ("FFFFFF" if n == 1 else _COLORS[i % 6])
        low, high = _range(coarsest, axis, i)
        least, most = _limits(coarsest.dtype, low, high)
        if conversion.scene.samples > 1 and coarsest.dtype == np.uint8:
            low, high = 0.0, 255.0
        window = {"min": least, "max": most, "start": low, "end": max(high, low + 1e-6)}
        label = (known.name if known else "") or str(i)
        found.append({"label": label, "color": color, "active": True, "window": window})
    return found


def _range(array: zarr.Array[Any], axis: int, channel: int) -> tuple[float, float]:
    """Least and largest finite pixel of a channel, a shard at a time."""
    lows, highs = [], []
    steps = array.shards or array.chunks
    start, stop = [0] * array.ndim, list(array.shape)
    start[axis], stop[axis] = channel, channel + 1
    for box in Box(tuple(start), tuple(stop)).blocks(steps):
        values = np.asarray(array[box.slices])
        values = values[np.isfinite(values)]
        if values.size:
            lows.append(float(values.min()))
            highs.append(float(values.max()))
    return (min(lows), max(highs)) if lows else (0.0, 1.0)


def _limits(dtype: np.dtype[Any], low: float, high: float) -> tuple[float, float]:
    if dtype.kind in "ui":
        return float(np.iinfo(dtype).min), float(np.iinfo(dtype).max)
    return (0.0, 1.0) if dtype.kind == "b" else (low, max(high, low + 1e-6))


def _source(conversion: Conversion) -> dict[str, Any]:
    scene = conversion.scene
    return {
        "source": os.path.basename(scene.path),
        "scene": scene.index,
        "scene_name": scene.name,
        "notes": list(conversion.notes),
    }


def _rename(conversion: Conversion) -> None:
    store, aside = conversion.store, conversion.work / "replaced"
    if os.path.lexists(store):
        if not conversion.overwrite:
            raise OutputError(f"{store} appeared meanwhile: choose another output, or --overwrite")
        os.rename(store, aside)
    os.rename(conversion.staging, store)


@contextlib.contextmanager
def _writing(conversion: Conversion) -> Iterator[None]:
    """Turn what the file system raises into errors of ours; what reads raise has been turned."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{conversion.store} cannot be written: {error}") from error
