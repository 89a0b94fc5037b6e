"""How a measurement is planned: of labels that are there, or of those that a run is making."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.errors import ImageError, LabelError, OutputError, StaleTableError
from cytopave.engine.omezarr import ngff, publish
from cytopave.engine.omezarr.folders import Folder, absolute
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.labels import label_store, open_labels
from cytopave.engine.planning.planner import scratch_root
from cytopave.engine.tables.columns import schema_of
from cytopave.engine.tables.fingerprint import label_fingerprint
from cytopave.engine.tables.measurement import ABOUT_PLACES, Measurement
from cytopave.engine.tables.target import TableTarget, table_digest, table_of_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.planning.plan import Plan


def plan_run(plan: Plan) -> Measurement:
    """The measurement of the labels that a run has written and not yet published.

    Their sums were taken when they were painted: what is left is to join them.
    """
    assert plan.measured is not None
    image, target = plan.image, plan.target
    table = table_of_run(target, plan.merge)
    labels = open_image(
        f"{target.staging}/{target.levels[0].path}",
        axes=target.axes,
        storage_options=target.storage_options,
    )
    channels = plan.measured
    made = {"digest": plan.digest, "merge": plan.merge.model_dump()}
    return Measurement(
        digest=table.digest,
        image=image,
        labels=labels,
        channels=channels,
        columns=schema_of(image, labels, channels),
        target=table,
        place=str(target.published),
        region=f"../labels/{target.name}",
        made=made,
        fingerprint=label_fingerprint(labels, made),
        root=plan.table_folder,
        resolution=plan.merge_folder,
        painted=target,
    )


def plan_measurement(
    image: str,
    *,
    labels: str,
    name: str | None = None,
    output: str | None = None,
    overwrite: bool = False,
    level: int | None = None,
    axes: str | None = None,
    channels: Sequence[int | str] | None = None,
    scratch: Path | None = None,
) -> Measurement:
    """Decide about the measurement of labels that are there; nothing is read or left behind.

    Args:
        image: Path or URL of the image.
        labels: Name of a label image in the image's store, or in the store beside a plain array;
            or path or URL of a label image or of an array of labels.
        name: Name of the table; that of the labels where not given.
        output: Store that gets ``tables/<name>``; the labels' own where not given, or the one that
            would get the image's labels where they are in none.
        overwrite: Whether a table of that name is replaced.
        level: Level of the image; the one with the labels' pixels where not given.
        axes: Axes of a plain array.
        channels: Channels by number or name; all where not given.
        scratch: Folder for sums; beside the local store that gets the table where not given.

    Returns:
        The measurement; its `TableTarget.check` has yet to be called.

    Raises:
        UserError: The request cannot be carried out.
    """
    source = open_image(image, level=level or 0, axes=axes)
    place = find_labels(source, labels)
    found = open_label_image(place, source)
    fitting = fitting_level(source, found, level)
    picked = fitting.channel_indices(channels)
    store = table_store(fitting, place, output)
    if name is None:
        name = place.rsplit("/", 1)[-1].removesuffix(".zarr")
    made = (ngff.read_attributes(found.folder) or {}).get(publish.PROVENANCE)
    fingerprint = label_fingerprint(found, made if isinstance(made, dict) else None)
    digest = table_digest(
        labels=fingerprint,
        image=fitting.fingerprint(),
        level=fitting.level,
        channels=picked,
        names=fitting.channels,
    )
    return Measurement(
        digest=digest,
        image=fitting,
        labels=found,
        channels=picked,
        columns=schema_of(fitting, found, picked),
        target=TableTarget(
            url=store.url,
            storage_options=dict(store.options),
            name=name,
            digest=digest,
            overwrite=overwrite,
            zarr_format=_format(store, fitting),
        ),
        place=place,
        region=relative_place(place, store / "tables"),
        made=made if isinstance(made, dict) else None,
        fingerprint=fingerprint,
        root=scratch_root(store.url, scratch) / f"table-{digest[:16]}",
    )


def is_written(measurement: Measurement) -> bool:
    """Whether the very table is there: of these labels, this image, level and channels.

    Wherever it is by now: a copied or moved store has it as well.
    """
    target = measurement.target
    if target.name not in publish.listed_names(target.store / "tables"):
        return False
    made = (ngff.read_attributes(target.published) or {}).get(publish.PROVENANCE)
    facts = measurement.facts()
    told = facts.keys() - ABOUT_PLACES
    return isinstance(made, dict) and all(made.get(name) == facts[name] for name in told)


def check_place(measurement: Measurement) -> None:
    """Refuse to measure where the table cannot go; nothing is left behind.

    Raises:
        StaleTableError: There is a table of the same labels as they were before they changed.
        OutputError: The name is taken otherwise or cannot be used, or nothing can be written there.
    """
    target = measurement.target
    made = (ngff.read_attributes(target.published) or {}).get(publish.PROVENANCE)
    if isinstance(made, dict) and not target.overwrite and (changed := _changed(measurement, made)):
        raise StaleTableError(
            f"the table {target.name!r} in {target.store} describes the {changed} as before it "
            "changed: measure again (--overwrite)"
        )
    target.check()


def _changed(measurement: Measurement, made: Mapping[str, Any]) -> str | None:
    """Which of the labels and the image that a table was made of has changed in its place."""
    facts = measurement.facts()
    if any(made.get(name) != facts[name] for name in ABOUT_PLACES):
        return None  # of others
    if made.get("fingerprint") != facts["fingerprint"]:
        return f"labels {measurement.place}"
    return f"image {measurement.image.url}" if made.get("pixels") != facts["pixels"] else None


def find_labels(image: Image, labels: str) -> str:
    """URL of labels that are given by name or place; see `plan_measurement`.

    Raises:
        OutputError: There are none.
    """
    store = Folder(label_store(image, None), image.storage_options)
    if labels in publish.listed_names(store / "labels"):
        return str(store / "labels" / labels)
    place = absolute(labels)
    if Folder(place).exists():
        return place
    if "/" in labels:
        raise ImageError(f"there are no labels at {place}: no such file or folder")
    open_labels(store.url, labels, storage_options=store.options)  # says what there is
    raise AssertionError


def open_label_image(place: str, image: Image) -> Image:
    """Level 0 of labels, with axes that are the image's without channels.

    Raises:
        UserError: These are no labels.
    """
    options = {} if Folder(place).local else image.storage_options
    found = open_image(place, storage_options=options)
    axes = "".join(a for a in image.axes if a != "c")
    if found.version is None and len(found.axes) == len(axes):
        found = open_image(place, axes=axes, storage_options=options)
    if np.dtype(found.dtype).kind not in "ui":
        raise LabelError(
            f"{place} holds {found.dtype} values, which are no labels: name an image of integers, "
            "0 being the background"
        )
    if found.n_channels > 1:
        raise LabelError(
            f"{place} has {found.n_channels} channels, and labels have none: is this the image?"
        )
    return found


def fitting_level(image: Image, labels: Image, level: int | None) -> Image:
    """The image at the level that has the labels' pixels.

    Raises:
        LabelError: There is none, or its pixels are of another size.
    """
    levels = range(len(image.levels)) if level is None else (level,)
    wanted = (labels.spatial_axes, labels.spatial_shape, labels.n_times)
    for candidate in map(image.at_level, levels):
        if (candidate.spatial_axes, candidate.spatial_shape, candidate.n_times) == wanted:
            break
    else:
        have = f"level {level} has" if level is not None else "its levels have"
        shapes = " and ".join(
            f"{lv.shape}" for i, lv in enumerate(image.levels) if level in (None, i)
        )
        raise LabelError(
            f"the labels {labels.url} have the shape {labels.shape} ({labels.axes}) and fit no "
            f"level of {image.url} ({image.axes}): {have} {shapes}. Name labels of this image"
        )
    ours, theirs = (i.of(labels.spatial_axes, i.scale) for i in (candidate, labels))
    if labels.version and candidate.version and not np.allclose(ours, theirs, rtol=1e-3, atol=0):
        raise LabelError(
            f"the labels {labels.url} have pixels of {theirs}, the image's are of {ours}: name "
            "labels of this image, or correct the scale in the metadata of one of the two"
        )
    # Of a plain array the labels may know more than it does.
    return candidate if candidate.version or not labels.version else _placed(candidate, labels)


def _placed(image: Image, labels: Image) -> Image:
    facts: dict[str, Any] = {}
    for name, none in (("scale", 1.0), ("translation", 0.0), ("units", None)):
        known = dict(zip(labels.axes, getattr(labels, name), strict=True))
        facts[name] = tuple(known.get(axis, none) for axis in image.axes)
    return replace(image, **facts)


def table_store(image: Image, place: str, output: str | None) -> Folder:
    """The store that gets the table.

    Raises:
        OutputError: It is no zarr group.
    """
    above, _, name = place.rpartition("/labels/")
    inside = bool(above) and "/" not in name
    url = absolute(output) if output else above if inside else label_store(image, None)
    store = Folder(url, {} if Folder(url).local else image.storage_options)
    meta = store.read_json("zarr.json") or {}
    if store.exists(".zarray") or meta.get("node_type") == "array":
        raise OutputError(
            f"{store} is a zarr array, which cannot hold a table: give another output"
        )
    if store.local and store.local.is_file():
        raise OutputError(f"{store} is a file: give a folder as the output")
    return store


def _format(store: Folder, image: Image) -> Any:
    if store.exists("zarr.json"):
        return 3
    return 2 if store.exists(".zgroup") else image.zarr_format


def relative_place(place: str, tables: Folder) -> str:
    """Path of the labels from the group of tables, or their URL where there is no such path.

    In Fractal's specification the path is relative to that group, not to the table.
    """
    if tables.local and Folder(place).local:
        return os.path.relpath(place, tables.local)
    inside = place.startswith(f"{tables.url}/")
    return f"..{place.removeprefix(tables.url)}" if inside else place
