"""The files of a report: a page, its pictures, and the figures for programs."""

from __future__ import annotations

import csv
import io
import shlex
from typing import TYPE_CHECKING, Any

from cytopave.engine.errors import OutputError, StaleTableError
from cytopave.engine.omezarr import publish
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.show import sections
from cytopave.engine.show.classes import class_column, count_classes, draw_classes
from cytopave.engine.show.detail import draw_detail
from cytopave.engine.show.numbers import number, unit_of
from cytopave.engine.show.overlay import draw_overlay
from cytopave.engine.show.page import Card, Page, Picture, Section, scale_bar
from cytopave.engine.show.planes import save_png
from cytopave.engine.show.seam_map import draw_seam_map
from cytopave.engine.tables.read import Table, open_table
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from cytopave.engine.report import Report
    from cytopave.engine.show.distributions import Distribution

FILES = {
    "page": "report.html",
    "overlay": "overlay.png",
    "seams": "seams.png",
    "report": "report.json",
    "stages": "stages.csv",
}
CLUSTERS = ("clusters", "clusters.png")
"""Of a table with clusters, there is this file too."""
_ON_PAGE = 1024  # pixels of the pictures' longer side there: the files have all of it
_DETAIL = 360
_MEANS = 6  # channels whose averages stand in the table of clusters


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
    source = open_image(image, level=provenance["level"])
    if source.version is None and source.axes != provenance["axes"]:
        source = open_image(image, level=provenance["level"], axes=provenance["axes"])
    look = _Look(source, open_image(made.labels_path), provenance, tiles=tiles)
    cells, why = _find_table(made.labels_path, table)
    column = class_column(cells, classes) if cells is not None else None
    files = {name: folder / file for name, file in FILES.items()}
    save_png(look.overlay(), files["overlay"])
    seams = look.seams(made)
    save_png(seams, files["seams"])
    parts = [look.result()]
    found: dict[str, Distribution] = {}
    if (gone := sections.missing(made)) is not None:
        parts.insert(0, gone)
    if cells is None:
        parts.append(sections.no_objects(why, _measure_command(made)))
    else:
        found = sections.measured(cells)
        parts.append(sections.objects(cells, found))
        if column is not None:
            files[CLUSTERS[0]] = folder / CLUSTERS[1]
        if (part := look.clusters(cells, column, files.get(CLUSTERS[0]))) is not None:
            parts.append(part)
    parts += [
        sections.seams(made, look.picture("Seams", _SEAM_MAP, seams)),
        sections.stages(made),
        sections.provenance(made, facts(made, provenance), provenance, cells),
    ]
    page = Page(_title(made), _lede(made, provenance), _cards(made, cells, found), parts)
    try:
        files["page"].write_text(page.html(), encoding="utf-8")
        files["report"].write_text(made.model_dump_json(indent=2) + "\n")
        files["stages"].write_text(_csv(made.stage_rows()))
    except OSError as error:
        raise OutputError(f"the report cannot be written to {folder}: {error}") from error
    return {name: str(path.absolute()) for name, path in files.items()}


_SEAM_MAP = (
    "Thin lines: edges of tiles. Red dots: an object ends exactly there, which real objects do now "
    "and then. Yellow rings: an object with two parts that one tile kept apart. Crossed out: tiles "
    "that failed. All planes and time points in one picture."
)
_OVERVIEW = (
    "The outline of every object. Its colour follows from the object's number and means nothing "
    "else: an object in two colours would be one that was cut."
)
_DETAIL_TEXT = "The middle of the image, pixel by pixel: do outlines follow what you see?"
_CLUSTERS_TEXT = "Every object in the colour of its cluster, as in the map."


class _Look:
    """Draws the pictures of one label image."""

    def __init__(
        self, source: Image, labels: Image, provenance: Mapping[str, Any], *, tiles: bool
    ) -> None:
        self._source, self._labels = source, labels
        self._channels = provenance["channels"]
        grid = Grid(labels.spatial_shape, tuple(provenance["tile"]), tuple(provenance["halo"]))
        self._edges = grid.edges[-2:]
        self._lines = self._edges if tiles else None

    def overlay(self, **size: int) -> np.ndarray:
        return draw_overlay(
            self._source, self._labels, channels=self._channels, lines=self._lines, **size
        )

    def seams(self, made: Report) -> np.ndarray:
        return draw_seam_map(
            self._source,
            self._labels,
            made.seams,
            lines=self._edges,
            missing=made.missing,
            channels=self._channels,
        )

    def result(self) -> Section:
        """The whole image, and its middle."""
        pictures = [self.picture("The whole image", _OVERVIEW, self.overlay(side=_ON_PAGE))]
        if max(self._labels.spatial_shape[-2:]) > _DETAIL:
            detail = draw_detail(self._source, self._labels, channels=self._channels, side=_DETAIL)
            pictures.append(
                self.picture("A part of it", _DETAIL_TEXT, detail, share=detail.shape[1])
            )
        depth = self._labels.spatial_shape[:-2]
        text = f"Of the {depth[0]} planes the middle one is shown. " if depth else ""
        if self._labels.n_times > 1:
            text += f"Of the {self._labels.n_times} time points the first is shown. "
        return Section("result", "What was found", text.strip(), pictures=pictures)

    def clusters(self, cells: Table, column: str | None, file: Path | None) -> Section | None:
        """The clusters, and the picture of where they are, which is a file as well."""
        if column is None or file is None:
            return sections.clusters(cells, None, [])
        means = [n for n in cells.features if n.endswith("_mean")][:_MEANS]
        found = count_classes(cells, column, [sections.size_column(cells), *means])
        drawn = (self._source, self._labels, cells, found)
        save_png(draw_classes(*drawn, channels=self._channels), file)
        picture = draw_classes(*drawn, channels=self._channels, side=_ON_PAGE)
        pictures = [self.picture("Where they are", _CLUSTERS_TEXT, picture)]
        return sections.clusters(cells, found, pictures)

    def picture(
        self, title: str, caption: str, pixels: np.ndarray, *, share: int | None = None
    ) -> Picture:
        """A picture with its scale bar; ``share`` of the labels' columns, or all of them."""
        columns = share or self._labels.spatial_shape[-1]
        (size,), (unit,) = (
            self._source.of("x", v) for v in (self._source.scale, self._source.units)
        )
        bar = scale_bar(columns * (size if unit else 1), unit_of((unit,)))
        return Picture(title, caption, pixels, bar, sharp=share is not None)


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


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
