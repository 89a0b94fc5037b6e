"""How a refinement is planned: what is refused is refused before anything is read."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import LabelError
from cytopave.engine.omezarr import ngff, publish
from cytopave.engine.omezarr.folders import Folder, absolute
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.labels import label_store, label_target
from cytopave.engine.planning.planner import scratch_root
from cytopave.engine.refine.refinement import CODE_VERSION, Refinement, cut_into_steps
from cytopave.engine.tables.fingerprint import label_fingerprint
from cytopave.engine.tables.planner import find_labels, open_label_image

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.refine import Operation

_PLANES = 32
"""Planes of a block of a stack, where it has so many: growth sees its halo on both sides."""


def plan_refinement(
    image: str,
    operations: Sequence[Operation],
    *,
    labels: str | None = None,
    name: str | None = None,
    output: str | None = None,
    overwrite: bool = False,
    axes: str | None = None,
    scratch: Path | None = None,
) -> Refinement:
    """Decide about the refinement of labels that are there; nothing is read or left behind.

    Args:
        image: Path or URL of the image that has the labels, or of the labels themselves.
        operations: What is done, in order.
        labels: Name of a label image of the image, or path or URL of labels; None: the image is
            itself the labels.
        name: Name of the new label image; that of the labels and ``-refined`` where not given.
        output: Store that gets ``labels/<name>``; the labels' own where not given, or the one that
            would get the image's labels where they are in none.
        overwrite: Whether a label image of that name is replaced, the labels themselves included.
        axes: Axes of a plain array.
        scratch: Folder for what lies between steps; beside the local store where not given.

    Raises:
        UserError: The request cannot be carried out.
    """
    if not operations:
        raise LabelError("nothing is asked for: name at least one operation")
    source = open_image(image, axes=axes)
    place = find_labels(source, labels) if labels is not None else absolute(image)
    found = open_label_image(place, source)
    if labels is None:
        _check_labels(found)
    for operation in operations:
        operation.check(found)
    store, inside = _store(place, source, output)
    given = (ngff.read_attributes(found.folder) or {}).get(publish.PROVENANCE)
    made = given if isinstance(given, dict) else None
    fingerprint = label_fingerprint(found, made)
    digest = _digest(found, fingerprint, operations)
    target = label_target(
        found,
        name=name or f"{place.rsplit('/', 1)[-1].removesuffix('.zarr')}-refined",
        output=store,
        overwrite=overwrite,
        tile=_tile(found),
        digest=digest,
    )
    if inside:
        target = target.model_copy(update={"source": "../../"})
    root = scratch_root(target.url, scratch)
    plan = Refinement(
        digest=digest,
        labels=found,
        place=place,
        fingerprint=fingerprint,
        made=made,
        steps=cut_into_steps(operations),
        target=target,
        root=root / f"refine-{digest[:16]}",
    )
    return _interrupted(plan, root) or plan


def _digest(labels: Image, fingerprint: str, operations: Sequence[Operation]) -> str:
    facts = {
        "code": CODE_VERSION,
        "labels": fingerprint,
        "files": labels.fingerprint(),
        "operations": [operation.model_dump(mode="json") for operation in operations],
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _interrupted(plan: Refinement, root: Path) -> Refinement | None:
    """The same refinement of labels in their own place, killed once its result had come there.

    Otherwise the same command would refine its own result once more.
    """
    if str(plan.target.published) != plan.place or not plan.made:
        return None
    for before in Refinement.all_in(root / f"refine-{str(plan.made.get('digest'))[:16]}"):
        if before.steps == plan.steps and before.place == plan.place and before.interrupted:
            return before
    return None


def _check_labels(labels: Image) -> None:
    """Refuse an image in the place of its labels.

    Raises:
        LabelError: It is one, as far as its metadata tell.
    """
    ome = ngff.ome_of(ngff.read_attributes(labels.folder) or {})
    if labels.version and "image-label" not in ome and "/labels/" not in labels.url:
        names = ", ".join(publish.listed_names(labels.folder / "labels")) or "none"
        raise LabelError(
            f"{labels.url} is an image: say which of its label images is meant (--name); those "
            f"there are {names}"
        )


def _store(place: str, image: Image, output: str | None) -> tuple[str, bool]:
    """The store that gets the labels, and whether it is the image that they are of."""
    above, _, name = place.rpartition("/labels/")
    own = above if above and "/" not in name else label_store(image, None)
    store = absolute(output) if output else own
    root = Folder(store, {} if Folder(store).local else image.storage_options)
    is_image = "multiscales" in ngff.ome_of(ngff.read_attributes(root) or {})
    return store, is_image and store in (above, image.url)


def _tile(labels: Image) -> tuple[int, ...]:
    """What the result's chunks and blocks are made of: chunks of the labels, of some depth."""
    shape = labels.spatial_shape
    tile: list[Any] = list(map(min, labels.canonical_chunks[-len(shape) :], shape))
    if len(shape) == 3:
        deep = min(_PLANES, shape[0])
        tile[0] = min(shape[0], -(-deep // tile[0]) * tile[0])
    return tuple(tile)
