"""Files of images: which are told apart by their names, and what reads them."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import TYPE_CHECKING

from cytopave.engine.convert.plugins import (
    PACKAGES,
    PluginPixels,
    inspect_file,
    plugin_suffixes,
    require_plugin,
)
from cytopave.engine.convert.tiff import TiffPixels, inspect_tiff
from cytopave.engine.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cytopave.engine.convert.scene import Pixels, Scene

TIFF = (
    ".tif", ".tiff", ".btf", ".tf2", ".tf8", ".lsm", ".stk",
    ".svs", ".ndpi", ".scn", ".bif", ".qptiff", ".flex",
)  # fmt: skip
"""Suffixes of files that are TIFF inside."""


def is_tiff(path: Path) -> bool:
    """Whether a file is TIFF by its name."""
    return path.name.lower().endswith(TIFF)


def is_known(path: Path) -> bool:
    """Whether a file is an image by its name, whether or not what reads it is installed."""
    return path.name.lower().endswith((*TIFF, *PACKAGES, *plugin_suffixes()))


def inspect(path: Path, *, axes: str | None = None) -> list[Scene]:
    """Describe the images of a file, reading none of their pixels.

    Args:
        path: The file.
        axes: Letters of its axes, for a TIFF that does not say.

    Raises:
        ImageError: There is no such file, or it cannot be read.
        CorruptError: It is truncated.
        MissingExtraError: What reads it is not installed.
    """
    if not path.exists():
        raise ImageError(f"there is no file {path}")
    if is_tiff(path):
        return inspect_tiff(str(path), axes=axes)
    require_plugin(path)
    if axes is not None:
        raise ImageError(f"{path} says itself what its axes are: leave the axes out")
    return inspect_file(str(path))


def open_pixels(scene: Scene) -> Pixels:
    """Open the pixels of a scene; close them afterwards.

    Raises:
        CorruptError: The file is not what it was.
    """
    return TiffPixels(scene) if scene.reader == "tiff" else PluginPixels(scene)


def stem(path: Path) -> str:
    """Name of a file without its suffix; of ``scan.ome.tif``, "scan"."""
    name = path.name
    for suffix in (*TIFF, *PACKAGES, path.suffix.lower()):
        if suffix and name.lower().endswith(suffix):
            name = name[: -len(suffix)]
            break
    return name[:-4] if name.lower().endswith(".ome") else name


def find(folder: Path, *, match: str = "*") -> Iterator[Path]:
    """All files of images in a folder and below it, sorted; those of unknown formats left out.

    Hidden files and folders, and stores of zarr, are not looked into.

    Args:
        folder: The folder.
        match: Shell pattern for the path below the folder.
    """
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(n for n in folders if not n.startswith(".") and not _is_zarr(root, n))
        for name in sorted(names):
            path = Path(root, name)
            if name.startswith(".") or not is_known(path) or _is_picture(path):
                continue
            if fnmatch.fnmatch(str(path.relative_to(folder)), match):
                yield path


def _is_picture(path: Path) -> bool:
    """Whether it is what people put beside images, unless a plugin was installed to read it."""
    suffix = path.suffix.lower()
    return suffix in (".png", ".jpg", ".jpeg") and suffix not in plugin_suffixes()


def _is_zarr(root: str, name: str) -> bool:
    return any(Path(root, name, meta).exists() for meta in ("zarr.json", ".zgroup", ".zarray"))
