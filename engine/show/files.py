"""The files of a report: a page, its pictures, and the figures for programs."""

from __future__ import annotations

import csv
import io
import logging
import shlex
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import ImageError, OutputError, StaleTableError
from cytopave.engine.omezarr import publish
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.segmenters.base import told
from cytopave.engine.show import sections
from cytopave.engine.show.classes import class_column
from cytopave.engine.show.look import Look
from cytopave.engine.show.numbers import number
from cytopave.engine.show.page import Card, Page
from cytopave.engine.show.planes import save_png
from cytopave.engine.tables.read import Table, open_table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cytopave.engine.report import Report
    from cytopave.engine.show.distributions import Distribution

_log = logging.getLogger(__name__)

FILES = {
    "page": "report.html",
    "overlay": "overlay.png",
    "seams": "seams.png",
    "report": "report.json",
    "stages": "stages.csv",
}
CLUSTERS = ("clusters", "clusters.png")
"""Of a table with clusters, there is this file too."""


def write_report(
    made: Report,
    provenance: dict[str, Any],
    folder: Path,
    *,
    image: str,
    tiles: bool = False,
    table: str | None = None,
    classes: str | None = None,
) -> dict[str, str]:
    """Write the page, the pictures, report.json and stages.csv.

    Args:
        made: The report of the run.
        provenance: What the label image's attributes say.
        folder: Where to; created if need be.
        image: The image that was segmented.
        tiles: Whether the tiles' edges are drawn into the overlay.
        table: Name of the table of the labels' objects; that of the labels where not given, and if
            there is none, the page says so.
        classes: Its column of clusters; the one that an atlas run wrote where not given.

    Returns:
        The path of each file.

    Raises:
        UserError: The image cannot be opened, the table or column that is named is not there or not
            of these labels, or the folder cannot be written.
    """
    source = open_image(image, level=provenance["level"], axes=provenance["axes"])
    labels = open_image(made.labels_path)
    if (source.spatial_shape, source.n_times) != (labels.spatial_shape, labels.n_times):
        raise ImageError(
            f"{image} has {source.spatial_shape} pixels and {source.n_times} time points, the "
            f"labels {labels.spatial_shape} and {labels.n_times}: name the image that they are of"
        )
    if source.fingerprint() != provenance.get("fingerprint"):
        _log.warning(
            "the files of %s are not those that were segmented (changed since, or copied): the "
            "pictures show them as they are now",
            image,
        )
    look = Look(source, labels, provenance, tiles=tiles)
    cells, why = _find_table(made.labels_path, table)
    column = class_column(cells, classes) if cells is not None else None
    files = {name: folder / file for name, file in FILES.items()}
    if column is not None:
        files[CLUSTERS[0]] = folder / CLUSTERS[1]
    save_png(look.overlay(), files["overlay"])
    page = _page(made, provenance, look, (cells, why, column), files)
    try:
        files["page"].write_text(page.html(), encoding="utf-8")
        files["report"].write_text(made.model_dump_json(indent=2) + "\n")
        files["stages"].write_text(_csv(made.stage_rows()))
    except OSError as error:
        raise OutputError(f"the report cannot be written to {folder}: {error}") from error
    return {name: str(path.absolute()) for name, path in files.items()}


def _page(
    made: Report,
    provenance: Mapping[str, Any],
    look: Look,
    table: tuple[Table | None, str, str | None],
    files: Mapping[str, Path],
) -> Page:
    """All sections; pictures that are files as well are written on the way.

    Args:
        made: The report of the run.
        provenance: What the label image's attributes say.
        look: Draws the pictures.
        table: The table, or why there is none, and its column of clusters.
        files: Where files go.
    """
    cells, why, column = table
    parts = [look.result()]
    found: dict[str, Distribution] = {}
    if (gone := sections.missing(made)) is not None:
        parts.insert(0, gone)
    if cells is None:
        parts.append(sections.no_objects(why, _measure_command(made)))
    else:
        found = sections.measured(cells)
        parts.append(sections.objects(cells, found))
        if (part := look.clusters(cells, column, files.get(CLUSTERS[0]))) is not None:
            parts.append(part)
    parts += [
        look.seams(made, files["seams"]),
        sections.stages(made),
        sections.provenance(made, facts(made, provenance), provenance, cells),
    ]
    return Page(_title(made), _lede(made, provenance), _cards(made, cells, found), parts)


def _find_table(labels: str, name: str | None) -> tuple[Table | None, str]:
    """The table of a label image's objects, or why it cannot be shown.

    Raises:
        UserError: The table that is named is not there, or not of these labels.
    """
    store, _, own = labels.rpartition("/labels/")
    if name is not None:
        return open_table(store, name), ""
    if own not in publish.listed_names(Folder(store) / "tables"):
        return None, f"There is no table of these objects ({store}/tables/{own}): none was made."
    try:
        return open_table(store, own), ""
    except StaleTableError as error:
        return None, f"{str(error)[0].upper()}{str(error)[1:]}."


def _measure_command(made: Report) -> str:
    store, _, name = made.labels_path.rpartition("/labels/")
    return shlex.join(["cytopave", "measure", made.image, "--labels", f"{store}/labels/{name}",
                       "--overwrite"])  # fmt: skip


def _title(made: Report) -> str:
    return f"{made.n_objects:,} objects in {made.image.rstrip('/').rpartition('/')[2]}"


def _lede(made: Report, provenance: Mapping[str, Any]) -> str:
    """What the page is about, for somebody who finds it years later."""
    name = made.labels_path.rpartition("/")[2]
    kind = provenance["segmenter"]["kind"]
    model = provenance["segmenter"].get("model")
    how = f"{kind} ({model})" if model else kind
    return (
        f"The label image {name!r}: every object of the image has a number, and its pixels carry "
        f"it. cytopave {provenance['version']} made it on {provenance['created'][:10]} by {how}, "
        f"in {made.n_tiles} overlapping tiles that were merged into one image."
    )


def _cards(made: Report, cells: Table | None, found: Mapping[str, Distribution]) -> list[Card]:
    cards = [
        Card("Objects", f"{made.n_objects:,}", f"{made.n_joined:,} on more than one tile"),
        Card("Tiles", f"{made.n_tiles:,}", f"{made.n_skipped:,} without foreground"),
    ]
    if made.missing:
        cards.append(Card("Tiles that failed", f"{len(made.missing):,}", "left out, see below"))
    if cells is not None and (size := found.get(sections.size_column(cells))):
        unit = sections.size_unit(cells)
        median = f"{number(size.quantiles[1], 3)} {unit}"
        cards.append(Card(f"Median {size.column}", median, f"of {size.n:,} objects measured"))
    cut = sum(a.seams.cut for a in made.seams.axes)
    expected = sum(a.control.rate * a.seams.met for a in made.seams.axes)
    cards.append(
        Card("End at a seam", f"{cut:,}", f"{number(expected, 2)} expected by control lines")
    )
    seconds = sum(s.seconds for s in made.stages)
    cards.append(Card("Time", f"{seconds:,.1f} s", "of computing, all stages"))
    return cards


def facts(made: Report, provenance: Mapping[str, Any]) -> dict[str, object]:
    """How a label image was made, for people."""
    method = told(provenance["segmenter"])
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


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
