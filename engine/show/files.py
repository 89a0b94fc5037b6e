"""The files of a report: a page, its pictures, and the figures for programs."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.report import SEAMS
from cytopave.engine.show.overlay import draw_overlay
from cytopave.engine.show.page import Page, Picture, Table
from cytopave.engine.show.planes import save_png
from cytopave.engine.show.seam_map import draw_seam_map
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cytopave.engine.report import Report

FILES = {
    "page": "report.html",
    "overlay": "overlay.png",
    "seams": "seams.png",
    "report": "report.json",
    "stages": "stages.csv",
}
_ON_PAGE = 1024  # pixels of the overlay's longer side there: the file has all of it


def write_report(
    made: Report, provenance: dict[str, Any], folder: Path, *, image: str, tiles: bool = False
) -> dict[str, str]:
    """Write the page, the pictures, report.json and stages.csv.

    Args:
        made: The report of the run.
        provenance: What the label image's attributes say.
        folder: Where to; created if need be.
        image: The image that was segmented.
        tiles: Whether the tiles' edges are drawn into the overlay.

    Returns:
        The path of each file.

    Raises:
        UserError: The image cannot be opened, or the folder cannot be written.
    """
    source = open_image(image, level=provenance["level"])
    if source.version is None and source.axes != provenance["axes"]:
        source = open_image(image, level=provenance["level"], axes=provenance["axes"])
    labels = open_image(made.labels_path)
    channels = provenance["channels"]
    edges = _edges(provenance, labels)
    lines = edges if tiles else None
    seams = draw_seam_map(source, labels, made.seams, lines=edges, channels=channels)
    small = draw_overlay(source, labels, channels=channels, lines=lines, side=_ON_PAGE)
    files = {name: folder / file for name, file in FILES.items()}
    save_png(draw_overlay(source, labels, channels=channels, lines=lines), files["overlay"])
    save_png(seams, files["seams"])
    page = Page(
        title=f"{made.n_objects} objects in {made.labels_path.rpartition('/')[2]}",
        facts=facts(made, provenance),
        provenance=provenance,
        pictures=[
            Picture("Outlines", "The colour follows from the object's number.", small),
            Picture("Seams", _SEAM_MAP, seams),
        ],
        tables=[
            Table(SEAMS, made.seam_rows(), _SEAM_TABLE),
            Table("Stages", made.stage_rows()),
        ],
    )
    try:
        files["page"].write_text(page.html())
        files["report"].write_text(made.model_dump_json(indent=2) + "\n")
        files["stages"].write_text(_csv(made.stage_rows()))
    except OSError as error:
        raise OutputError(f"the report cannot be written to {folder}: {error}") from error
    return {name: str(path.absolute()) for name, path in files.items()}


_SEAM_MAP = (
    "Thin lines: edges of tiles. Red dots: an object ends exactly there, which real objects do now "
    "and then. Yellow rings: an object with two parts that one tile kept apart. All planes and "
    "time points in one picture."
)
_SEAM_TABLE = (
    "Objects that end exactly at a seam, beside those that end at control lines through the middle "
    "of tiles, where no tile can have cut anything. An excess over the control lines that chance "
    "does not explain was cut by the tiles: take a larger halo."
)


def facts(made: Report, provenance: Mapping[str, Any]) -> dict[str, object]:
    """How a label image was made, for people."""
    method = {k: v for k, v in provenance["segmenter"].items() if k not in ("network", "digest")}
    return {
        "labels": made.labels_path,
        "image": f"{made.image}, level {provenance['level']}, channels "
        f"{provenance['channels'] or 'none'}",
        "made": f"{provenance['created']} by cytopave {provenance['version']}",
        "objects": f"{made.n_objects}, of which {made.n_joined} lie on more than one tile",
        "tiles": f"{made.n_tiles} of {provenance['tile']} pixels, halo {provenance['halo']}"
        + (f"; {made.n_skipped} without foreground" if made.n_skipped else ""),
        "merge": f"{provenance['merge']['rule']} {provenance['merge']['iou']}",
        "segmenter": ", ".join(f"{k}={v}" for k, v in method.items()),
        "digest": made.digest,
    }


def _edges(provenance: Mapping[str, Any], labels: Image) -> tuple[tuple[int, ...], ...]:
    tile, halo = tuple(provenance["tile"]), tuple(provenance["halo"])
    return Grid(labels.spatial_shape, tile, halo).edges[-2:]


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
