"""OME-Zarr metadata, versions 0.4 and 0.5: the only module that uses yaozarrs (alpha)."""

from __future__ import annotations

import logging
import math
import shlex
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from pydantic import ValidationError
from yaozarrs import open_group, v04, v05, validate_zarr_store
from yaozarrs._storage import StorageValidationError

from cytopave.engine.errors import CorruptError, ImageError, UserError
from cytopave.engine.omezarr.folders import Folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger(__name__)

_ABOUT_THE_SOURCE = "label_image_source"

SPATIAL = "zyx"
AXES = "tczyx"
_COLOURS = (3, 4)
"""Length of a last axis that may be red, green, blue, and opacity."""
_AXES_BY_NDIM = {2: "yx", 3: "zyx", 4: "czyx", 5: "tczyx"}


@dataclass(frozen=True)
class Dataset:
    """One level of a pyramid: its array's path in the group and its physical placement.

    Attributes:
        path: Path of the zarr array in the image's group.
        scale: Physical size of a pixel per axis, in the units of the image.
        translation: Physical position of the first pixel per axis.
    """

    path: str
    scale: tuple[float, ...]
    translation: tuple[float, ...]


@dataclass(frozen=True)
class Multiscale:
    """What the metadata of an image group say.

    Attributes:
        version: OME-Zarr version, "0.4" or "0.5".
        axes: One letter an axis in file order, a subset of ``tczyx``.
        units: Unit of each axis, or None.
        datasets: The levels, finest first.
        channels: Names of the channels from the ``omero`` block; empty where there is none.
    """

    version: str
    axes: str
    units: tuple[str | None, ...]
    datasets: tuple[Dataset, ...]
    channels: tuple[str, ...]


def read_multiscale(attributes: Mapping[str, Any], where: object) -> Multiscale:
    """Read the attributes of an image group.

    Args:
        attributes: The zarr attributes of the group (0.5 keeps its own under ``ome``).
        where: What messages call the group.

    Raises:
        ImageError: The group is no image, of another version, or its metadata are not valid.
    """
    ome = ome_of(attributes)
    if not ome.get("multiscales"):
        raise ImageError(f"{where} holds no image: its metadata have no multiscales")
    if not is_multiscales(ome["multiscales"]):
        raise ImageError(f"{where} is not valid OME-Zarr: its multiscales are no list of images")
    version = str(ome.get("version") or ome["multiscales"][0].get("version") or "0.4")
    try:
        if version == "0.5":
            first: Any = v05.Multiscale.model_validate(ome["multiscales"][0])
        elif version == "0.4":
            first = v04.Multiscale.model_validate(ome["multiscales"][0])
        else:
            raise ImageError(
                f"{where} is OME-Zarr {version}, which cannot be read: convert it to 0.4 or 0.5"
            )
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise ImageError(
            f"{where} is not valid OME-Zarr {version}: multiscales.0.{place}: {detail['msg']}"
        ) from error
    return Multiscale(
        version=version,
        axes=_letters(first.axes, where),
        units=tuple(getattr(axis, "unit", None) for axis in first.axes),
        datasets=tuple(_dataset(d, first.coordinateTransformations, where) for d in first.datasets),
        channels=_channel_names(ome),
    )


def is_multiscales(found: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Whether a value of the metadata is what images are described by: a list of objects."""
    return isinstance(found, list) and bool(found) and isinstance(found[0], dict)


def describe_group(attributes: Mapping[str, Any], where: Folder) -> str:
    """Say what a group without an image of its own holds, and which images can be named instead."""
    ome = ome_of(attributes)
    if "plate" in ome:
        wells = [w["path"] for w in ome["plate"].get("wells", [])]
        images = [f"{where / w}/0" for w in wells]
        return (
            f"{where} is a plate of {len(wells)} wells: name one of its images{_some(images)}; "
            "all of them are for segment_plate, or cytopave segment"
        )
    if "well" in ome:
        images = [str(where / i["path"]) for i in ome["well"].get("images", [])]
        return f"{where} is a well of a plate: name one of its images{_some(images)}"
    if "bioformats2raw.layout" in ome:
        series = ome_of(read_attributes(where / "OME") or {}).get("series")
        images = [str(where / s) for s in series or _images(where)]
        return f"{where} is a collection of {len(images)} images: name one of them{_some(images)}"
    images = [str(where / name) for name in _images(where)]
    if images:
        return f"{where} is a zarr group without multiscales: name an image in it{_some(images)}"
    return f"{where} is a zarr group that holds no image: name an OME-Zarr image or a zarr array"


def refuse_a_level(folder: Folder) -> None:
    """Refuse the array of an image's level: labels would come between the image's own arrays.

    Raises:
        ImageError: It is one.
    """
    url, _, name = folder.url.rstrip("/").rpartition("/")
    around, found = Folder(url, folder.options), None
    # A store may serve the array and refuse what is around it.
    with suppress(UserError, OSError):
        found = ome_of(read_attributes(around) or {}).get("multiscales") if url else None
    if is_multiscales(found):
        paths = [d.get("path") for d in found[0].get("datasets", [])]
        if name in paths:
            raise ImageError(
                f"{folder} is level {paths.index(name)} of the image {around}: name the image, and "
                f"its level with level={paths.index(name)} (--level)"
            )


def describe_absence(where: Folder) -> str:
    """Say what is at a place that has no zarr metadata."""
    if where.local and where.local.is_symlink() and not where.local.exists():
        return f"{where} is a link to {where.local.readlink()}, which is not there"
    if not where.exists():
        return f"there is no image at {where}: no such file or folder"
    if where.local and where.local.is_file():
        # Not at the top: conversion knows OME-Zarr, not the other way round.
        from cytopave.engine.convert.files import is_known, stem

        if is_known(where.local):
            return (
                f"{where} is a file, not a zarr image: convert it first, to "
                f"{stem(where.local)}.zarr, with `cytopave convert {shlex.quote(str(where))}`"
            )
        return f"{where} is a file, not a zarr image: name an OME-Zarr image or a zarr array"
    return f"{where} is a folder, but not a zarr image: it holds no zarr metadata"


def ome_of(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The OME part of a group's attributes: under ``ome`` in 0.5, at the top in 0.4."""
    ome = attributes.get("ome", attributes)
    return ome if isinstance(ome, dict) else {}


def read_attributes(folder: Folder) -> dict[str, Any] | None:
    """Attributes of the zarr group or array at a folder; None where there is none."""
    meta = folder.read_json("zarr.json")
    if meta is not None:
        return dict(meta.get("attributes") or {})
    if folder.exists(".zgroup") or folder.exists(".zarray"):
        return folder.read_json(".zattrs") or {}
    return None


def label_attributes(
    *,
    version: str,
    name: str,
    axes: str,
    units: Sequence[str | None],
    datasets: Sequence[Dataset],
    source: str | None,
) -> dict[str, Any]:
    """Attributes of a label image's group, built and checked by the models of yaozarrs.

    Args:
        version: OME-Zarr version, "0.4" or "0.5".
        name: Name of the label image.
        axes: Letters of its axes (no ``c``).
        units: Unit of each axis, or None.
        datasets: Its levels, finest first.
        source: Path of the segmented image relative to the group; None if it lies elsewhere.
    """
    content = {
        "multiscales": [_multiscale(name, axes, units, datasets, "nearest")],
        "image-label": {"source": {"image": source}} if source else {},
    }
    model = (v05 if version == "0.5" else v04).LabelImage.model_validate(content)
    attributes = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {"ome": attributes} if version == "0.5" else attributes


def image_attributes(
    *,
    name: str,
    axes: str,
    units: Sequence[str | None],
    datasets: Sequence[Dataset],
    method: str = "mean",
    channels: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Attributes of an OME-Zarr 0.5 image's group, built and checked by the models of yaozarrs.

    Args:
        name: Name of the image.
        axes: Letters of its axes, a subset of ``tczyx`` in that order.
        units: Unit of each axis, or None.
        datasets: Its levels, finest first.
        method: How each level is made of the one before.
        channels: What the ``omero`` block says of each channel; none for no such block.
    """
    content: dict[str, Any] = {"multiscales": [_multiscale(name, axes, units, datasets, method)]}
    if channels:
        content["omero"] = {"channels": list(channels)}
    model = v05.Image.model_validate(content)
    return {"ome": model.model_dump(mode="json", by_alias=True, exclude_none=True)}


def _multiscale(
    name: str,
    axes: str,
    units: Sequence[str | None],
    datasets: Sequence[Dataset],
    method: str,
) -> dict[str, Any]:
    kinds = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
    return {
        "name": name,
        "axes": [_axis(a, kinds[a], unit) for a, unit in zip(axes, units, strict=True)],
        "datasets": [
            {"path": d.path, "coordinateTransformations": _transformations(d)} for d in datasets
        ],
        "type": method,
    }


def validate_labels(folder: Folder, *, noun: str = "labels") -> None:
    """Validate a written label group, or image: its metadata and its arrays' dtypes.

    The source image is not judged: many have metadata that yaozarrs refuses (channels without
    colours, say), and its path is resolved on the local disk, so elsewhere never found.

    Raises:
        CorruptError: yaozarrs finds an error; its first one is named.
    """
    url, options = folder.address
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            group = validate_zarr_store(open_group(url, options))
        except StorageValidationError as error:
            details = [d for d in error.errors() if not d["type"].startswith(_ABOUT_THE_SOURCE)]
            if details:
                raise CorruptError(
                    f"the {noun} written to {folder} are not valid OME-Zarr: {details[0]['msg']}"
                ) from error
            group = open_group(url, options)
    for warning in found:
        logger.debug("%s: %s", folder, warning.message)
    multiscale = read_multiscale(dict(group.attrs), folder)
    for dataset in multiscale.datasets:
        array = group.get(dataset.path)
        if array is None or array.metadata.shape is None:
            raise CorruptError(f"the {noun} written to {folder} lack the array {dataset.path}")


def _letters(axes: Sequence[Any], where: object) -> str:
    letters = []
    space = iter(SPATIAL[-sum(axis.type == "space" for axis in axes) :])
    for axis in axes:
        fallback = {"time": "t", "channel": "c"}.get(axis.type or "")
        by_type = next(space) if axis.type == "space" else fallback
        name = axis.name.lower()
        letters.append(name if name in AXES and len(name) == 1 else by_type or axis.name)
    return check_axes("".join(letters), len(axes), where)


def array_axes(
    asked: str | None, named: Sequence[str | None] | None, shape: tuple[int, ...], where: object
) -> str:
    """Letters of a plain array's axes: as asked for, as the array names them, or by their number.

    Args:
        asked: What the caller says.
        named: What the array says.
        shape: Its shape.
        where: What messages call it.

    Raises:
        ImageError: They do not fit, or nothing tells a plane in colours from a stack.
    """
    letters = "".join(n or "?" for n in named or ()).lower()
    if asked is None and len(letters) == len(shape) and set(letters) <= set(AXES):
        asked = letters
    if asked is None and len(shape) == 3 and shape[-1] in _COLOURS:
        raise ImageError(
            f"{where} of shape {shape} may be one plane in {shape[-1]} colours or a stack of "
            "narrow planes: name its axes, yxc or zyx (--axes)"
        )
    axes = asked or _AXES_BY_NDIM.get(len(shape))
    if axes is None:
        raise ImageError(f"{where} has {len(shape)} axes: only arrays of 2 to 5 axes can be read")
    return check_axes(axes.lower(), len(shape), where)


def check_axes(axes: str, ndim: int, where: object) -> str:
    """Check letters that name an array's axes.

    Raises:
        ImageError: They are not one letter of ``tczyx`` an axis, each once, with Y and X, and
            the spatial ones in the order Z, Y, X.
    """
    if len(axes) != ndim:
        raise ImageError(f"{where} has {ndim} axes, but {axes!r} names {len(axes)}")
    spatial = "".join(a for a in axes if a in SPATIAL)
    if len(set(axes)) < len(axes) or set(axes) - set(AXES) or spatial not in ("yx", "zyx"):
        raise ImageError(
            f"the axes {axes!r} of {where} cannot be used: give each axis one letter of t, c, z, "
            "y, x, with y and x among them and the spatial ones in the order z, y, x"
        )
    return axes


def _dataset(dataset: Any, common: Sequence[Any] | None, where: object) -> Dataset:
    scale, translation = _placement(dataset.coordinateTransformations)
    if common:  # applied after those of the level
        outer, shift = _placement(common)
        scale = tuple(a * b for a, b in zip(outer, scale, strict=True))
        translation = tuple(a * b + c for a, b, c in zip(outer, translation, shift, strict=True))
    if not all(0 < step < math.inf for step in scale):
        raise ImageError(
            f"{where} is not valid OME-Zarr: the pixels of level {dataset.path} have the size "
            f"{list(scale)}; correct the scale in its metadata, which must be positive"
        )
    return Dataset(dataset.path, scale, translation)


def _placement(steps: Sequence[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    scale = next(tuple(s.scale) for s in steps if s.type == "scale")
    found = (tuple(s.translation) for s in steps if s.type == "translation")
    return scale, next(found, (0.0,) * len(scale))


def _transformations(dataset: Dataset) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [{"type": "scale", "scale": list(dataset.scale)}]
    if any(dataset.translation):
        steps.append({"type": "translation", "translation": list(dataset.translation)})
    return steps


def _axis(name: str, kind: str, unit: str | None) -> dict[str, str]:
    return {"name": name, "type": kind} | ({"unit": unit} if unit else {})


def _channel_names(ome: Mapping[str, Any]) -> tuple[str, ...]:
    # Read leniently: many writers leave out the colours and windows that the models require.
    omero = ome.get("omero")
    channels = omero.get("channels") if isinstance(omero, dict) else None
    if not isinstance(channels, list):
        return ()
    labels = [c.get("label") if isinstance(c, dict) else None for c in channels]
    return tuple(str(label or i) for i, label in enumerate(labels))


def _images(where: Folder) -> list[str]:
    return [n for n in where.folders() if "multiscales" in ome_of(read_attributes(where / n) or {})]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f", e.g. {shown}{more}" if names else ""
