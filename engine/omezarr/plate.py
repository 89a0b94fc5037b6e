"""Plates of wells (OME-NGFF's "HCS" layout): which images they hold, and which are not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import ImageError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.folders import Folder, absolute

if TYPE_CHECKING:
    import os


@dataclass(frozen=True, slots=True)
class Well:
    """A well of a plate.

    Attributes:
        name: Row and column, such as ``A/1``: also its path in the plate.
        fields: Paths in the plate of its images that are there, such as ``A/1/0``.
        missing: Paths of images that its metadata name and that are not there.
    """

    name: str
    fields: tuple[str, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plate:
    """A plate of wells.

    Attributes:
        url: Absolute path or URL of its group.
        wells: The wells that hold at least one image, in the plate's order.
        missing: Wells that the plate's metadata name and that are not there, or hold no image.
    """

    url: str
    wells: tuple[Well, ...]
    missing: tuple[str, ...]

    def image(self, field: str) -> str:
        """URL of one of its images."""
        return f"{self.url}/{field}"


def is_plate(url: str | os.PathLike[str]) -> bool:
    """Whether a plate is at a place."""
    return "plate" in ngff.ome_of(ngff.read_attributes(Folder(absolute(url))) or {})


def open_plate(url: str | os.PathLike[str], *, wells: Sequence[str] | None = None) -> Plate:
    """Look at a plate: read its metadata and those of its wells.

    Args:
        url: Path or fsspec URL of an OME-Zarr plate (0.4, 0.5).
        wells: Those that are wanted, such as ``A/1`` or ``A1``; None for all.

    Raises:
        ImageError: It is no plate, has no well of such a name, or none with an image.
    """
    folder = Folder(absolute(url))
    content = ngff.ome_of(ngff.read_attributes(folder) or {}).get("plate")
    if not isinstance(content, dict):
        raise ImageError(f"{folder} is no plate: its metadata name no wells")
    listed = [str(well["path"]).strip("/") for well in _entries(content.get("wells"), "path")]
    names = listed if wells is None else _chosen(listed, wells, folder)
    found = {name: _well(folder, name) for name in names}
    there = tuple(well for well in found.values() if well is not None and well.fields)
    if not there:
        raise ImageError(f"the plate {folder} holds no image in any of its {len(names)} wells")
    return Plate(folder.url, there, tuple(n for n, w in found.items() if w not in there))


def _well(plate: Folder, name: str) -> Well | None:
    content = ngff.ome_of(ngff.read_attributes(plate / name) or {}).get("well")
    if not isinstance(content, dict):
        return None
    paths = [f"{name}/{image['path']}" for image in _entries(content.get("images"), "path")]
    there = [p for p in paths if ngff.read_attributes(plate / p) is not None]
    return Well(name, tuple(there), tuple(p for p in paths if p not in there))


def _entries(value: Any, key: str) -> list[Mapping[str, Any]]:
    entries = value if isinstance(value, list) else []
    return [e for e in entries if isinstance(e, dict) and key in e]


def _chosen(listed: Sequence[str], wanted: Sequence[str], plate: Folder) -> list[str]:
    by_short = {_short(name): name for name in listed}
    unknown = [name for name in wanted if _short(name) not in by_short]
    if unknown or not wanted:
        shown = ", ".join(listed[:12]) + (", ..." if len(listed) > 12 else "")
        raise ImageError(
            f"the plate {plate} has no well {', '.join(unknown) or 'of no name'}: its "
            f"{len(listed)} wells are {shown}"
        )
    chosen = {by_short[_short(name)] for name in wanted}
    return [name for name in listed if name in chosen]


def _short(name: str) -> str:
    return name.replace("/", "").strip().upper()
