"""TIFF of all kinds, read by tifffile: OME, ImageJ, whole slides, BigTIFF, plain files.

bioio's readers for TIFF decode whole planes (bioio-ome-tiff 1.4: ``chunkmode="page"``), and a plane
of a slide does not fit into memory. Here only the tiles or strips of a region are decoded, and of
uncompressed planes only the region is read.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.convert.ome import channels_of
from cytopave.engine.convert.scene import (
    AXES,
    SAMPLES,
    Channel,
    Scene,
    checked_dtype,
    in_micrometers,
    sampled,
    time_unit,
)
from cytopave.engine.errors import CorruptError, ImageError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tifffile import TiffFile, TiffPage, TiffPageSeries

logger = logging.getLogger(__name__)

# Pictures that scanners put beside the slide.
_BESIDE = {"thumbnail", "label", "macro", "overview", "lsmreduced"}

# Of what tifffile only logs; 270 is the tag of the description, where OME-XML is.
_OTHERS_MISSING = re.compile(r"failed to read|missing files")
_ENDS_EARLY = re.compile(r"invalid page offset|TiffTag 270 .*invalid value offset")

_GENERIC = "iq"  # what tifffile calls axes of which the file says nothing


def inspect_tiff(path: str, *, axes: str | None = None) -> list[Scene]:
    """Describe the images of a TIFF file.

    Args:
        path: The file.
        axes: Letters of its axes in the file's order, where the file does not say.

    Raises:
        ImageError: It is no TIFF, or has axes that cannot be told.
        CorruptError: It is truncated or damaged.
        MissingExtraError: Its compression needs a package that is not installed.
    """
    with _opened(path) as (tif, heard):
        series = _images(tif)
        xml = channels_of(tif.ome_metadata or "") if tif.is_ome else []
        named = xml if len(xml) == len(tif.series) else [[]] * len(tif.series)
        scenes = []
        for i, one in enumerate(series):
            _check_files(one, path)
            channels = named[tif.series.index(one)]
            scenes.append(_scene(one, path, i, len(series), axes, channels))
        for text in heard:
            if _OTHERS_MISSING.search(text):
                raise ImageError(
                    f"{path} is one of several files and others are missing: put all of them into "
                    f"its folder ({text})"
                )
    return scenes


class TiffPixels:
    """The pixels of one scene of a TIFF file."""

    def __init__(self, scene: Scene) -> None:
        self._path = scene.path
        self._stack = contextlib.ExitStack()
        tif, _ = self._stack.enter_context(_opened(scene.path))
        self._series = _images(tif)[scene.index]
        self._planes = _planes(self._series)
        self._array: Any = None

    def read(self, slices: tuple[slice, ...]) -> np.ndarray:
        """A region, in the order of the file's axes; see `cytopave.engine.convert.scene.Pixels`."""
        try:
            if self._planes is not None:
                return self._read_planes(slices)
            if self._array is None:
                import zarr

                store = self._series.aszarr(level=0)
                self._stack.callback(store.close)
                self._array = zarr.open_array(store, mode="r")
            return np.asarray(self._array[slices])
        except Exception as error:  # whatever a codec raises
            raise CorruptError(f"{self._path} is truncated or damaged: {_line(error)}") from error

    def _read_planes(self, slices: tuple[slice, ...]) -> np.ndarray:
        assert self._planes is not None
        outer, inner = slices[: len(self._planes)], slices[len(self._planes) :]
        out = np.zeros([s.stop - s.start for s in slices], self._series.dtype)
        whole = _whole(self._series)
        if whole is not None:
            return np.array(whole[slices])
        for index in itertools.product(*(range(s.start, s.stop) for s in outer)):
            number = int(np.ravel_multi_index(index, self._planes)) if index else 0
            page = self._series[number]
            if page is not None:  # the format has planes that were never taken: zeros
                place = tuple(i - s.start for i, s in zip(index, outer, strict=True))
                out[place] = _mapped(page, self._series.keyframe)[inner]
        return out

    def close(self) -> None:
        """Close the file."""
        self._stack.close()


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[TiffFile, list[str]]]:
    """A TIFF file, and what tifffile says about it, which else would go to the terminal."""
    import tifffile

    with _listening() as heard, contextlib.ExitStack() as stack:
        try:
            tif = stack.enter_context(tifffile.TiffFile(path))
            if not tif.series:  # which reads all of the structure
                raise ValueError("it has no image")
        except FileNotFoundError:
            raise ImageError(f"there is no file {path}") from None
        except OSError as error:
            raise ImageError(f"{path} cannot be read: {error}") from error
        except Exception as error:  # whatever its parser raises
            size = os.path.getsize(path)
            raise ImageError(
                f"{path} ({size} bytes) is no TIFF file, or a truncated one: {_line(error)}"
            ) from error
        if damage := next(filter(_ENDS_EARLY.search, heard), None):
            raise CorruptError(f"{path} is truncated: copy it anew ({damage})")
        yield tif, heard


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(" ".join(record.getMessage().split()))


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
    source, handler = logging.getLogger("tifffile"), _Heard()
    before = source.propagate
    source.addHandler(handler)
    source.propagate = False
    try:
        yield handler.texts
    finally:
        source.removeHandler(handler)
        source.propagate = before
        for text in handler.texts:
            logger.debug("tifffile: %s", text)


def _images(tif: TiffFile) -> list[TiffPageSeries]:
    """The series that are images; a slide's label and such are left out."""
    found = [s for s in tif.series if math.prod(s.shape)]
    return [s for s in found if s.name.strip().lower() not in _BESIDE] or found


def _scene(
    series: TiffPageSeries,
    path: str,
    index: int,
    count: int,
    asked: str | None,
    named: list[Channel],
) -> Scene:
    axes = _axes(series, path, asked)
    dtype = checked_dtype(series.dtype, path)
    n_channels = series.shape[axes.index("c")] if "c" in axes else 1
    samples = series.shape[axes.index(SAMPLES)] if SAMPLES in axes else 1
    spacing, units = _spacing(series, axes)
    return Scene(
        path=path,
        index=index,
        count=count,
        name=series.name,
        reader="tiff",
        axes=axes,
        shape=tuple(series.shape),
        dtype=dtype,
        block=_block(series, path),
        spacing=spacing,
        units=units,
        channels=_channels(series, axes, n_channels, samples, named),
        files=_files(series, path),
        notes=_missing_planes(series),
    )


def _axes(series: TiffPageSeries, path: str, asked: str | None) -> str:
    axes, sizes = series.axes.lower(), "x".join(map(str, series.shape))
    if asked is not None:
        axes = asked.lower()
        if len(axes) != series.ndim:
            raise ImageError(
                f"{path} has {series.ndim} axes ({sizes}), but {asked!r} names {len(axes)}"
            )
    unknown = set(axes) - set(AXES + SAMPLES)
    spatial = "".join(a for a in axes if a in "zyx")
    if unknown or len(set(axes)) < len(axes) or spatial not in ("yx", "zyx"):
        why = "does not say what its pages are" if unknown <= set(_GENERIC) else "has unusual axes"
        raise ImageError(
            f"{path} {why} (axes {series.axes}, {sizes}): name its axes in this order with --axes, "
            f"such as {_suggested(series)}, one letter each of t, c, z, y, x, and s for colours"
        )
    return axes


def _suggested(series: TiffPageSeries) -> str:
    free = iter(a for a in "zct" if a.upper() not in series.axes)
    known = AXES + SAMPLES
    return "".join(a if a in known else next(free, "?") for a in series.axes.lower())


def _spacing(series: TiffPageSeries, axes: str) -> tuple[dict[str, float], dict[str, str]]:
    scales = {k.lower(): v for k, v in series.coord_scales.items()}
    said = {k.lower(): v for k, v in series.coord_units.items()}
    spacing, units = {}, {}
    for axis in axes:
        value, unit = scales.get(axis), said.get(axis)
        if axis in "zyx" and (length := in_micrometers(value, unit)) is not None:
            spacing[axis], units[axis] = length, "micrometer"
        if axis == "t" and value and (name := time_unit(unit)):
            spacing[axis], units[axis] = float(value), name
    return spacing, units


def _channels(
    series: TiffPageSeries, axes: str, n: int, samples: int, named: list[Channel]
) -> tuple[Channel, ...]:
    if len(named) != n:
        labels = series.coords.get("C")
        texts = [str(v) for v in labels] if labels is not None and labels.dtype.kind in "US" else []
        named = [Channel(name=t) for t in texts if not t.startswith("Channel:")]
    if len(named) != n:
        named = [Channel()] * n
    if "c" in axes or SAMPLES in axes or named[0].name:
        return sampled(named, samples)
    return ()


def _planes(series: TiffPageSeries) -> tuple[int, ...] | None:
    """Lengths along which planes follow each other; None where planes are not plain bytes."""
    page = series.keyframe
    n = series.ndim - len(page.shape)
    plain = page.is_final and series.transform is None and page.dtype == series.dtype
    if not plain or n < 0 or tuple(series.shape[n:]) != tuple(page.shape):
        return None
    outer = tuple(series.shape[:n])
    return outer if math.prod(outer) == len(series) or _whole(series) is not None else None


def _whole(series: TiffPageSeries) -> np.ndarray | None:
    """All pixels as they lie in the file, where they lie there one after another."""
    if series.dataoffset is None or not series.keyframe.is_final:
        return None
    file = series.keyframe.parent.filehandle
    dtype = series.dtype.newbyteorder(series.keyframe.parent.byteorder)
    return np.memmap(file.path, dtype, "r", series.dataoffset, tuple(series.shape))


def _mapped(page: Any, keyframe: TiffPage) -> np.ndarray:
    dtype = np.dtype(keyframe.dtype).newbyteorder(page.parent.byteorder)
    shape = tuple(keyframe.shape)
    return np.memmap(page.parent.filehandle.path, dtype, "r", page.dataoffsets[0], shape)


def _block(series: TiffPageSeries, path: str) -> tuple[int, ...]:
    if _planes(series) is not None:
        return (1,) * series.ndim
    import tifffile
    import zarr

    try:
        tifffile.TIFF.DECOMPRESSORS[series.keyframe.compression]
        tifffile.TIFF.UNPREDICTORS[series.keyframe.predictor]
    except (KeyError, ValueError) as error:
        raise MissingExtraError(
            f"the compression of {path} cannot be read ({_line(error)}): install the package "
            "imagecodecs, which the extra cytopave[convert] has"
        ) from error
    store = series.aszarr(level=0)
    try:
        return tuple(zarr.open_array(store, mode="r").chunks)
    finally:
        store.close()


def _check_files(series: TiffPageSeries, path: str) -> None:
    """Refuse files that end before their pixels do: some decoders would give zeros.

    Raises:
        CorruptError: A file is too short.
    """
    ends: dict[str, int] = {}
    for page in series if not series.dataoffset else [series.keyframe]:
        if page is None or not len(page.dataoffsets):
            continue
        end = int(np.add(page.dataoffsets, page.databytecounts).max())
        if series.dataoffset:
            end = series.dataoffset + series.nbytes
        file = str(page.parent.filehandle.path)
        ends[file] = max(end, ends.get(file, 0))
    for file, end in ends.items():
        size = os.path.getsize(file)
        if size < end:
            raise CorruptError(
                f"{file} is truncated: it has {size} bytes, and its pixels need {end}; copy it anew"
            )


def _files(series: TiffPageSeries, path: str) -> tuple[str, ...]:
    if not series.is_multifile:
        return (path,)
    found = {str(p.parent.filehandle.path) for p in series if p is not None}
    return tuple(sorted(found | {path}))


def _missing_planes(series: TiffPageSeries) -> tuple[str, ...]:
    if series.dataoffset:
        return ()
    missing = sum(page is None for page in series)
    if not missing:
        return ()
    return (f"{missing} of {len(series)} planes are not in the file: they become zeros",)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
