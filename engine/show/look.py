"""The pictures of the report page: what is drawn, with words and a scale bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cytopave.engine.show import sections
from cytopave.engine.show.classes import count_classes, draw_classes
from cytopave.engine.show.detail import draw_detail
from cytopave.engine.show.legible import legible
from cytopave.engine.show.numbers import unit_of
from cytopave.engine.show.overlay import draw_overlay
from cytopave.engine.show.page import Picture, Section, scale_bar
from cytopave.engine.show.planes import save_png
from cytopave.engine.show.seam_map import draw_seam_map
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.report import Report
    from cytopave.engine.tables.read import Table

_ON_PAGE = 1024  # pixels of the pictures' longer side there: the files have all of it
_DETAIL = 360
_MEANS = 6  # channels whose averages stand in the table of clusters

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


class Look:
    """Draws the pictures of one label image.

    Args:
        source: The image, at the level that was segmented.
        labels: The label image, at its finest level.
        provenance: What its attributes say: channels, tile and halo.
        tiles: Whether the tiles' edges are drawn into the overlay.
    """

    def __init__(
        self, source: Image, labels: Image, provenance: Mapping[str, Any], *, tiles: bool
    ) -> None:
        self._source, self._labels = legible(source), labels
        self._channels = provenance["channels"]
        grid = Grid(labels.spatial_shape, tuple(provenance["tile"]), tuple(provenance["halo"]))
        self._edges = grid.edges[-2:]
        self._lines = self._edges if tiles else None

    def overlay(self, **size: int) -> np.ndarray:
        """The outlines; ``side`` is the most pixels along an axis."""
        return draw_overlay(
            self._source, self._labels, channels=self._channels, lines=self._lines, **size
        )

    def seams(self, made: Report, file: Path) -> Section:
        """The map of the seams, which is a file as well, and what was counted along them."""
        drawn = draw_seam_map(
            self._source,
            self._labels,
            made.seams,
            lines=self._edges,
            missing=made.missing,
            channels=self._channels,
        )
        save_png(drawn, file)
        return sections.seams(made, self.picture("Seams", _SEAM_MAP, drawn))

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
