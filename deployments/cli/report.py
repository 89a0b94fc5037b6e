"""``cytopave report``: how a label image was made, and a picture of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cytopave.deployments.cli.console import write, write_facts, write_json, write_table
from cytopave.deployments.cli.options import Common, Flag
from cytopave.deployments.cli.saved import look_up_stores

if TYPE_CHECKING:
    from cytopave.engine.omezarr.folders import Folder
    from cytopave.engine.report import Report


def report(
    store: str,
    /,
    *,
    name: str = "cells",
    out: str = "report",
    image: str | None = None,
    tiles: Flag = False,
    table: str | None = None,
    clusters: str | None = None,
    common: Common = Common(),  # noqa: B008
) -> None:
    """Show how a label image was made, and draw its outlines on the image.

    Args:
        store: The image that was segmented, or the store that holds the labels.
        name: Name of the label image.
        out: Folder that gets report.html, its pictures, report.json and stages.csv.
        image: The image that was segmented, if it is not where it was.
        tiles: Draw the tiles' edges faintly.
        table: Name of the table of the objects; that of the labels where not given.
        clusters: Its column of clusters; the one that cytopave atlas wrote where not given.
        common: Options of every command.
    """
    from cytopave.engine.report import MISSING, SEAMS, Report
    from cytopave.engine.show.files import facts, write_report

    look_up_stores(verbose=common.verbose)
    labels_path, provenance = find_labels(store, name)
    made = Report.from_provenance(provenance, labels_path)
    # Where it is now: stores are copied and moved.
    made = made.model_copy(update={"image": image or _image_of(store, made)})
    files = write_report(
        made,
        provenance,
        Path(out),
        image=made.image,
        tiles=tiles,
        table=table,
        classes=clusters,
    )
    if common.json:
        write_json({**provenance, "labels_path": labels_path, "files": files})
        return
    write_facts(facts(made, provenance))
    write_table(made.stage_rows(), title="Stages")
    write_table(made.seam_rows(), title=SEAMS)
    write_table(made.missing_rows(), title=MISSING)
    write()
    write_facts(files)


def find_labels(place: str, name: str) -> tuple[str, dict[str, Any]]:
    """Where a label image is, and what its attributes say of how cytopave made it.

    Args:
        place: The image, the store that holds the labels, or the label image itself.
        name: Name of the label image, unless the place is one.

    Raises:
        UserError: There is no such label image, or it was not made by cytopave.
    """
    from cytopave.engine.errors import ImageError, OutputError
    from cytopave.engine.omezarr.folders import Folder, absolute
    from cytopave.engine.omezarr.labels import beside, open_labels
    from cytopave.engine.omezarr.ngff import ome_of, read_attributes
    from cytopave.engine.omezarr.plate import is_plate
    from cytopave.engine.omezarr.publish import PROVENANCE

    store = absolute(place)
    if not Folder(store).exists():
        raise ImageError(f"there is nothing at {store}: name the image or the store of its labels")
    if is_plate(store):
        raise ImageError(f"{store} is a plate: name one of its images, such as {store}/A/1/0")
    # Not by what cytopave notes of itself: images that it converted carry that too.
    if "image-label" in ome_of(read_attributes(Folder(store)) or {}):
        store, _, name = store.rpartition("/labels/")
    elif _is_array(Folder(store)):
        store = beside(store)
    attributes = open_labels(store, name).attributes
    made = attributes.get(PROVENANCE)
    if not isinstance(made, dict) or "n_objects" not in made:
        raise OutputError(f"the label image {name!r} in {store} was not made by cytopave")
    if "refined" in made:
        source = made["refined"]["labels"]
        instead = (
            "there is none left of labels that were refined in their own place"
            if source == str(Folder(store) / "labels" / name)
            else f"name the labels that it was made from ({source})"
        )
        raise OutputError(
            f"the label image {name!r} in {store} was refined, and reports are of a segmentation: "
            f"{instead}"
        )
    return f"{store}/labels/{name}", made


def _is_array(folder: Folder) -> bool:
    meta = folder.read_json("zarr.json") or {}
    return meta.get("node_type") == "array" or folder.exists(".zarray")


def _image_of(place: str, made: Report) -> str:
    """The image that was segmented: the one that was named (it may have moved), else by memory."""
    from cytopave.engine.omezarr.folders import Folder, absolute
    from cytopave.engine.omezarr.ngff import ome_of, read_attributes

    named = Folder(absolute(place))
    store = Folder(made.labels_path.rpartition("/labels/")[0])
    if _is_array(named):
        return named.url
    return store.url if "multiscales" in ome_of(read_attributes(store) or {}) else made.image
