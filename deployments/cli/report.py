"""``cytopave report``: how a label image was made, and a picture of it."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cytopave.deployments.cli.console import write, write_facts, write_json, write_table
from cytopave.deployments.cli.options import Common, Flag
from cytopave.deployments.cli.saved import look_up_stores
from cytopave.deployments.cli.segment import SEAMS

if TYPE_CHECKING:
    from cytopave.engine.omezarr.folders import Folder
    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.report import Report


def report(
    store: str,
    /,
    *,
    name: str = "cells",
    out: str = "report",
    image: str | None = None,
    tiles: Flag = False,
    common: Common = Common(),  # noqa: B008
) -> None:
    """Show how a label image was made, and draw its outlines on the image.

    Args:
        store: The image that was segmented, or the store that holds the labels.
        name: Name of the label image.
        out: Folder that gets overlay.png, report.json and stages.csv.
        image: The image that was segmented, if it is not where it was.
        tiles: Draw the tiles' edges faintly.
        common: Options of every command.
    """
    from cytopave.engine.report import Report

    look_up_stores(verbose=common.verbose)
    labels_path, provenance = find_labels(store, name)
    made = Report.from_provenance(provenance, labels_path)
    files = write_report(
        made, provenance, Path(out), image=image or _image_of(store, made), tiles=tiles
    )
    if common.json:
        write_json({**provenance, "labels_path": labels_path, "files": files})
        return
    write_facts(_facts(made, provenance))
    write_table(made.stage_rows(), title="Stages")
    write_table(made.seam_rows(), title=SEAMS)
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
    from cytopave.engine.omezarr.ngff import read_attributes
    from cytopave.engine.omezarr.publish import PROVENANCE

    store = absolute(place)
    if not Folder(store).exists():
        raise ImageError(f"there is nothing at {store}: name the image or the store of its labels")
    if PROVENANCE in (read_attributes(Folder(store)) or {}):
        store, _, name = store.rpartition("/labels/")
    elif _is_array(Folder(store)):
        store = beside(store)
    attributes = open_labels(store, name).attributes
    made = attributes.get(PROVENANCE)
    if not isinstance(made, dict) or "n_objects" not in made:
        raise OutputError(f"the label image {name!r} in {store} was not made by cytopave")
    return f"{store}/labels/{name}", made


def write_report(
    made: Report, provenance: dict[str, Any], folder: Path, *, image: str, tiles: bool = False
) -> dict[str, str]:
    """Write report.json, stages.csv and overlay.png.

    Args:
        made: The report of the run.
        provenance: What the label image's attributes say.
        folder: Where to; created if need be.
        image: The image that was segmented.
        tiles: Whether the tiles' edges are drawn.

    Returns:
        The path of each file.

    Raises:
        UserError: The image cannot be opened, or the folder cannot be written.
    """
    from cytopave.engine.errors import OutputError
    from cytopave.engine.omezarr.image import open_image
    from cytopave.engine.overlay import draw_overlay, save_png

    axes = provenance["axes"]
    source = open_image(image, level=provenance["level"])
    if source.version is None and source.axes != axes:
        source = open_image(image, level=provenance["level"], axes=axes)
    labels = open_image(made.labels_path)
    lines = _edges(provenance, labels) if tiles else None
    picture = draw_overlay(source, labels, channels=provenance["channels"], lines=lines)
    files = {name: folder / file for name, file in _FILES.items()}
    save_png(picture, files["overlay"])
    try:
        files["report"].write_text(made.model_dump_json(indent=2) + "\n")
        files["stages"].write_text(_csv(made.stage_rows()))
    except OSError as error:
        raise OutputError(f"the report cannot be written to {folder}: {error}") from error
    return {name: str(path.absolute()) for name, path in files.items()}


_FILES = {"overlay": "overlay.png", "report": "report.json", "stages": "stages.csv"}


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


def _edges(provenance: dict[str, Any], labels: Image) -> tuple[tuple[int, ...], ...]:
    from cytopave.engine.tiling import Grid

    tile, halo = tuple(provenance["tile"]), tuple(provenance["halo"])
    return Grid(labels.spatial_shape, tile, halo).edges[-2:]


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _facts(made: Report, provenance: dict[str, Any]) -> dict[str, object]:
    method = {k: v for k, v in provenance["segmenter"].items() if k not in ("network", "digest")}
    return {
        "labels": made.labels_path,
        "image": f"{made.image}, level {provenance['level']}, channels "
        f"{provenance['channels'] or 'none'}",
        "made": f"{provenance['created']} by cytopave {provenance['version']}",
        "objects": f"{made.n_objects}, of which {made.n_joined} lie on more than one tile",
        "tiles": f"{made.n_tiles} of {provenance['tile']} pixels, halo {provenance['halo']}",
        "merge": f"{provenance['merge']['rule']} {provenance['merge']['iou']}",
        "segmenter": ", ".join(f"{k}={v}" for k, v in method.items()),
        "digest": made.digest,
    }
