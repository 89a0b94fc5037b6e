"""Formats of microscopes' makers, read by the plugins of bioio, plane by plane."""

from __future__ import annotations

import inspect
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.convert.scene import (
    SAMPLES,
    Channel,
    Scene,
    checked_dtype,
    in_micrometers,
    sampled,
)
from cytopave.engine.errors import CorruptError, ImageError, MissingExtraError

if TYPE_CHECKING:
    from pathlib import Path

EXTRA = "the extra cytopave[convert]"

PACKAGES = {
    ".lif": ("bioio-lif", EXTRA),
    ".nd2": ("bioio-nd2", EXTRA),
    # GPL-3.0: nothing that this project may depend on, and everybody's own to install.
    ".czi": ("bioio-czi", "GPL-3.0, so not among cytopave's own"),
    ".dv": ("bioio-dv", ""),
    ".r3d": ("bioio-dv", ""),
    ".sldy": ("bioio-sldy", ""),
    ".vsi": ("bioio-bioformats", "it needs Java"),
    ".oib": ("bioio-bioformats", "it needs Java"),
    ".oif": ("bioio-bioformats", "it needs Java"),
    ".oir": ("bioio-bioformats", "it needs Java"),
    ".ims": ("bioio-bioformats", "it needs Java"),
    ".lei": ("bioio-bioformats", "it needs Java"),
    ".png": ("bioio-imageio", ""),
    ".jpg": ("bioio-imageio", ""),
    ".jpeg": ("bioio-imageio", ""),
}
"""The package that reads a format, and what is to be said of it."""

_UNNAMED = re.compile(r"(Channel|Image):\d.*|\d*")


def plugin_suffixes() -> set[str]:
    """Suffixes of files that the installed plugins read; empty without bioio."""
    try:
        from bioio.plugins import get_plugins
    except ModuleNotFoundError:
        return set()
    return set(get_plugins(use_cache=True))


def require_plugin(path: Path) -> None:
    """Refuse a file that no installed plugin reads.

    Raises:
        MissingExtraError: A package that reads it is known.
        ImageError: None is known.
    """
    name = path.name.lower()
    if any(name.endswith(suffix) for suffix in plugin_suffixes()):
        return
    package, remark = PACKAGES.get(path.suffix.lower(), ("", ""))
    if package:
        more = f" ({remark})" if remark else ""
        raise MissingExtraError(
            f"{path} cannot be read without the package {package}{more}: install it"
        )
    raise ImageError(
        f"{path} has an unknown format ({path.suffix or 'no suffix'}): TIFF and its kinds, LIF and "
        "ND2 are read, CZI and others with plugins of bioio; try the package bioio-bioformats"
    )


def inspect_file(path: str) -> list[Scene]:
    """Describe the images of a file.

    Raises:
        ImageError: The plugin cannot read it.
    """
    try:
        image = _open(path)
        scenes = list(image.scenes)
        return [_scene(image, path, i, scenes) for i in range(len(scenes))]
    except (ImageError, MissingExtraError):
        raise
    except Exception as error:  # whatever a plugin raises
        raise ImageError(f"{path} cannot be read, it may be truncated: {_line(error)}") from error


class PluginPixels:
    """The pixels of one scene of a file that a plugin reads."""

    def __init__(self, scene: Scene) -> None:
        self._path = scene.path
        try:
            image = _open(scene.path)
            image.set_scene(scene.index)
            self._data = image.xarray_dask_data
        except Exception as error:
            raise CorruptError(f"{scene.path} cannot be read: {_line(error)}") from error
        # Axes of length one may be left out of the scene.
        self._index = [None if d.lower() in scene.axes else 0 for d in self._data.dims]
        self._axes = scene.axes

    def read(self, slices: tuple[slice, ...]) -> np.ndarray:
        """A region, in the order of the file's axes; see `cytopave.engine.convert.scene.Pixels`."""
        at = dict(zip(self._axes, slices, strict=True))
        index = tuple(
            at[d.lower()] if fixed is None else fixed
            for d, fixed in zip(self._data.dims, self._index, strict=True)
        )
        try:
            # Not on the cluster that this may be a task of: that would wait for itself.
            return np.asarray(self._data.data[index].compute(scheduler="synchronous"))
        except Exception as error:
            raise CorruptError(f"{self._path} is truncated or damaged: {_line(error)}") from error

    def close(self) -> None:
        """Let the file go; plugins open it for each plane."""
        del self._data


def _open(path: str) -> Any:
    from bioio import BioImage

    plugin = BioImage.determine_plugin(path, use_plugin_cache=True)
    reader = plugin.metadata.get_reader()
    parameters = inspect.signature(reader.__init__).parameters.values()
    # By default some read a whole stack at a time; others have no such choice, and refuse it.
    planes = any(p.name == "chunk_dims" or p.kind is p.VAR_KEYWORD for p in parameters)
    return BioImage(path, reader=reader, **({"chunk_dims": ["Y", "X"]} if planes else {}))


def _scene(image: Any, path: str, index: int, scenes: list[str]) -> Scene:
    image.set_scene(index)
    _check_dimensions(image, path)
    data = image.xarray_dask_data
    sizes = dict(zip((d.lower() for d in data.dims), data.shape, strict=True))
    chunks = dict(zip((d.lower() for d in data.dims), data.data.chunks, strict=True))
    named = [Channel(name=n, color=c) for n, c in _channels(image, sizes["c"])]
    samples = sizes.get(SAMPLES, 1)
    keep = sizes["c"] > 1 or (samples == 1 and bool(named[0].name))
    axes = "".join(
        a for a, n in sizes.items() if a in f"yx{SAMPLES}" or (keep if a == "c" else n > 1)
    )
    spacing, units = _spacing(image, axes)
    return Scene(
        path=path,
        index=index,
        count=len(scenes),
        name=scenes[index],
        reader="bioio",
        axes=axes,
        shape=tuple(sizes[a] for a in axes),
        dtype=checked_dtype(np.dtype(data.dtype), path),
        block=tuple(max(chunks[a]) for a in axes),
        spacing=spacing,
        units=units,
        channels=sampled(named, samples) if keep or samples > 1 else (),
        files=(path,),
    )


def _check_dimensions(image: Any, path: str) -> None:
    """Refuse what bioio would take the first of, silently."""
    dims = image.reader.dims
    extra = {
        d: n for d, n in zip(dims.order, dims.shape, strict=True) if n > 1 and d not in "TCZYXS"
    }
    if "M" in extra:
        with suppress(NotImplementedError):
            image.reader.mosaic_xarray_dask_data  # noqa: B018  joined by the plugin
            del extra["M"]
    if extra:
        named = ", ".join(f"{d} of length {n}" for d, n in extra.items())
        raise ImageError(f"{path} has axes that OME-Zarr has not ({named}): split the file first")


def _channels(image: Any, n: int) -> list[tuple[str, str | None]]:
    names = [str(name) for name in image.channel_names or []]
    if len(names) != n:
        names = [""] * n
    names = ["" if _UNNAMED.fullmatch(name) else name for name in names]
    return list(zip(names, _colors(image, n), strict=True))


def _colors(image: Any, n: int) -> list[str | None]:
    # Few plugins have OME metadata, and each fails in its own way where it has none.
    with suppress(Exception):
        channels = image.ome_metadata.images[image.current_scene_index].pixels.channels
        rgb = [channel.color.as_rgb_tuple(alpha=False) for channel in channels]
        if len(rgb) == n:
            return ["{:02X}{:02X}{:02X}".format(*color) for color in rgb]
    return [None] * n


def _spacing(image: Any, axes: str) -> tuple[dict[str, float], dict[str, str]]:
    spacing, units = {}, {}
    said = image.dimension_properties
    for axis in "zyx":
        unit = str(getattr(getattr(said, axis.upper(), None), "unit", None) or "micrometer")
        length = in_micrometers(getattr(image.physical_pixel_sizes, axis.upper()), unit)
        if axis in axes and length is not None:
            spacing[axis], units[axis] = length, "micrometer"
    seconds = _interval(image)
    if "t" in axes and seconds is not None and seconds > 0:
        spacing["t"], units["t"] = seconds, "second"
    return spacing, units


def _interval(image: Any) -> float | None:
    interval = image.time_interval
    if interval is not None:
        return float(interval.total_seconds())
    times = image.xarray_dask_data.coords.get("T")
    # bioio-lif 2.0 has the times in seconds, but no interval; other plugins have other units.
    if times is None or len(times) < 2 or not type(image.reader).__module__.startswith("bioio_lif"):
        return None
    return float(times[1] - times[0])


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
