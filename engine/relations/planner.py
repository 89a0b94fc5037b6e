"""How a relation is planned: what is refused is refused before a pixel is read."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.errors import LabelError
from cytopave.engine.omezarr import ngff, publish
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.planning.planner import scratch_root
from cytopave.engine.relations.relation import CODE_VERSION, Relation, Side
from cytopave.engine.tables.fingerprint import label_fingerprint
from cytopave.engine.tables.planner import (
    find_labels,
    fitting_level,
    open_label_image,
    table_store,
)

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image


def plan_relation(
    image: str,
    *,
    child: str,
    parent: str,
    axes: str | None = None,
    scratch: Path | None = None,
) -> Relation:
    """Decide about the relation of two label images; no pixel is read, and nothing left behind.

    Args:
        image: Path or URL of the image.
        child: Name of the label image whose objects get a parent, or path or URL of labels.
        parent: The same of those that are parents.
        axes: Axes of a plain array.
        scratch: Folder for counts; beside the local store of the child's table where not given.

    Raises:
        UserError: The request cannot be carried out.
    """
    source = open_image(image, axes=axes)
    inner, outer = (_side(source, labels) for labels in (child, parent))
    if inner.place == outer.place:
        raise LabelError(f"child and parent are both {inner.place}: name two label images")
    _check_fit(inner, outer)
    facts = [CODE_VERSION, inner.fingerprint, outer.fingerprint]
    files = [side.labels.fingerprint() for side in (inner, outer)]
    digest = hashlib.sha256(json.dumps([facts, files]).encode()).hexdigest()
    root = scratch_root(inner.store, scratch) / f"relate-{digest[:16]}"
    return Relation(digest=digest, child=inner, parent=outer, root=root)


def _side(image: Image, labels: str) -> Side:
    place = find_labels(image, labels)
    found = open_label_image(place, image)
    fitting = fitting_level(image, found, None)
    given = (ngff.read_attributes(found.folder) or {}).get(publish.PROVENANCE)
    made = given if isinstance(given, dict) else None
    return Side(
        labels=found,
        place=place,
        fingerprint=label_fingerprint(found, made),
        store=table_store(fitting, place, None).url,
        name=place.rsplit("/", 1)[-1].removesuffix(".zarr"),
    )


def _check_fit(child: Side, parent: Side) -> None:
    """Refuse labels of other pixels.

    Raises:
        LabelError: Shape, pixel size or place differ.
    """
    a, b = child.labels, parent.labels
    shapes = [(i.spatial_axes, i.spatial_shape, i.n_times) for i in (a, b)]
    if shapes[0] != shapes[1]:
        raise LabelError(
            f"the labels {child.place} have the shape {a.shape} ({a.axes}), {parent.place} have "
            f"{b.shape} ({b.axes}): name label images of the same pixels"
        )
    if not (a.version and b.version):
        return
    axes = a.spatial_axes
    size, other = (np.array(i.of(axes, i.scale)) for i in (a, b))
    place, elsewhere = (np.array(i.of(axes, i.translation)) for i in (a, b))
    if not np.allclose(size, other, rtol=1e-3, atol=0):
        raise LabelError(
            f"the labels {child.place} have pixels of {tuple(size.tolist())}, {parent.place} have "
            f"pixels of {tuple(other.tolist())}: name label images of the same pixels"
        )
    if (np.abs(place - elsewhere) > size / 2).any():
        raise LabelError(
            f"the labels {child.place} begin at {tuple(place.tolist())}, {parent.place} at "
            f"{tuple(elsewhere.tolist())}: name label images of the same field of view"
        )
