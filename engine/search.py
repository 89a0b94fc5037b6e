"""Finding what lies in a folder or bucket: images, and the stores that hold labels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cytopave.engine.errors import ImageError, StoreError, UserError
from cytopave.engine.omezarr import ngff
from cytopave.engine.omezarr.folders import Folder, absolute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Kind = Literal["image", "array", "group", "folder", "damaged"]


@dataclass(frozen=True)
class Place:
    """A folder that was met.

    Attributes:
        folder: Where it is.
        path: Its path below the folder that was searched; empty for that one itself.
        kind: An OME-Zarr image, a zarr array, another zarr group, or no zarr node; damaged where
            the metadata cannot be read, or have yet to arrive.
    """

    folder: Folder
    path: str
    kind: Kind


def places(root: str, *, storage_options: Mapping[str, Any] | None = None) -> Iterator[Place]:
    """All folders below a folder and itself, sorted by path, not looking into images or arrays.

    Hidden folders are left out, and so are the ``labels`` and ``tables`` of zarr groups, and arrays
    inside zarr groups: none of these is an image of its own.

    Args:
        root: Path or fsspec URL of a folder, a plate, or one image.
        storage_options: What fsspec needs to open the URL.

    Raises:
        ImageError: There is no such folder, or it cannot be read.
    """
    folder = Folder(absolute(root), dict(storage_options or {}))
    if not folder.exists() or (folder.local and not folder.local.is_dir()):
        raise ImageError(f"there is no folder {folder}: name one that holds zarr images")
    try:
        yield from _below(folder, "", (), inside=False)
    except OSError as error:
        raise ImageError(f"{folder} cannot be searched: {error}") from error


def _below(folder: Folder, path: str, above: tuple[str, ...], *, inside: bool) -> Iterator[Place]:
    try:
        kind = _kind(folder)
    except StoreError:
        raise  # the store does not answer: nobody knows what is in it
    except UserError:
        kind = "damaged"
    real = os.path.realpath(folder.local) if folder.local else str(folder)
    if (kind == "array" and inside) or real in above:  # the latter: a link leads back
        return
    yield Place(folder, path, kind)
    if kind in ("image", "array", "damaged"):
        return
    inside = kind == "group"
    for name in folder.folders():
        if not (inside and name in ("labels", "tables")):
            below = f"{path}/{name}".strip("/")
            yield from _below(folder / name, below, (*above, real), inside=inside)


def _kind(folder: Folder) -> Kind:
    meta = folder.read_json("zarr.json")
    if meta is None and folder.exists(".zarray"):
        return "array"
    if meta is not None and meta.get("node_type") == "array":
        return "array"
    attributes = ngff.read_attributes(folder)
    if attributes is None:
        return "folder"
    return "image" if "multiscales" in ngff.ome_of(attributes) else "group"
