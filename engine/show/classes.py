"""Classes of objects, such as an atlas run's clusters: how many, where on the map and the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy.ndimage as ndi

from cytopave.engine.errors import OutputError
from cytopave.engine.show.overlay import outlines
from cytopave.engine.show.palette import CLASSES, OTHERS, rgb
from cytopave.engine.show.planes import SIDE, grey, picture_shape, plane
from cytopave.engine.tables.columns import INSTANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.tables.read import Table

PLACES = "X_umap"
"""Name of the map in ``obsm``."""
ATLAS = "cytopave_atlas"
"""Name of an atlas run's provenance in ``uns``."""
POINTS = 3000
"""Most objects that are drawn on the map one by one."""
GRID = 320
"""Bins of the map along each side, where there are more."""

_DIM = 0.55
_FILLED = 0.6
_SMOOTH = GRID / 16  # bins: of the density whose summit carries a class' name


@dataclass(frozen=True)
class Classes:
    """The classes of a table's objects, in the order of the categories.

    Attributes:
        column: The column of ``obs``.
        names: Their names.
        sizes: Objects of each, ``(classes,)`` int64.
        means: Mean of each of some columns over each class' objects, ``(classes,)``.
        n_without: Objects without a class.
    """

    column: str
    names: tuple[str, ...]
    sizes: np.ndarray
    means: dict[str, np.ndarray]
    n_without: int

    @property
    def order(self) -> np.ndarray:
        """The classes' numbers, the largest first."""
        return np.argsort(-self.sizes, kind="stable")

    @property
    def ranks(self) -> np.ndarray:
        """Each class' place in `order`, `len(CLASSES)` for those that share the grey; -1's too."""
        ranks = np.full(len(self.names) + 1, len(CLASSES))
        shown = self.order[: len(CLASSES)]
        ranks[shown] = np.arange(len(shown))
        return ranks

    @property
    def colours(self) -> list[str]:
        """The colour of each class, as ``#rrggbb``."""
        return [COLOURS[rank] for rank in self.ranks[:-1]]


COLOURS = (*CLASSES, OTHERS)
"""Of each rank; the last one is that of the others."""


def class_column(table: Table, named: str | None = None) -> str | None:
    """The column that holds classes: the one named, or the one that an atlas run wrote.

    Returns:
        Its name; None if none is named and no atlas run wrote one.

    Raises:
        OutputError: The column that is named is not there, or holds no categories.
    """
    leiden = table.note(ATLAS).get("profile", {}).get("leiden") or {}
    column = named or leiden.get("key")
    if column in table.obs and table.categories(column) is not None:
        return str(column)
    if named is None:
        return None
    fitting = ", ".join(c for c in table.obs if table.categories(c) is not None) or "none"
    raise OutputError(
        f"the table {table.folder} has no column {named!r} of categories: those there are {fitting}"
    )


def count_classes(table: Table, column: str, means: Sequence[str]) -> Classes:
    """Count the objects of each class, and average columns over them.

    Not-a-number and infinity are left out of the averages.
    """
    names = table.categories(column) or []
    sizes = np.zeros(len(names) + 1, np.int64)
    sums = {name: np.zeros((2, len(names) + 1)) for name in means}
    for rows in table.spans():
        codes = table.codes(column, rows)
        sizes += np.bincount(codes + 1, minlength=len(sizes))
        for name, values in table.read(rows.start, rows.stop, columns=means).items():
            finite = np.isfinite(values)
            for total, weights in zip(sums[name], (values[finite], None), strict=True):
                total += np.bincount(codes[finite] + 1, weights, minlength=len(sizes))
    with np.errstate(invalid="ignore"):
        averages = {name: (total / n)[1:] for name, (total, n) in sums.items()}
    return Classes(column, tuple(names), sizes[1:], averages, int(sizes[0]))


@dataclass(frozen=True)
class Chart:
    """A map of objects, such as a UMAP: one by one, or counted in the bins of a grid.

    Attributes:
        low: Least X and Y of the frame.
        high: Greatest ones.
        n: Objects with a place.
        n_without: Objects without.
        points: ``(n, 2)`` X and Y of each object, where there are few.
        ranks: ``(n,)`` of these, indices of `COLOURS`.
        counts: ``(ranks, GRID, GRID)`` objects in each bin, Y upwards.
        summits: X and Y of the densest place of each class that has a colour, by rank.
    """

    low: tuple[float, float]
    high: tuple[float, float]
    n: int
    n_without: int
    points: np.ndarray | None
    ranks: np.ndarray | None
    counts: np.ndarray
    summits: list[tuple[float, float]]

    def picture(self) -> np.ndarray:
        """The bins as ``(Y, X, 4)`` uint8 with opacity: the colour of the class that has most.

        Opacity grows with the logarithm of the number of objects. Y points down, as in pictures.
        """
        total = self.counts.sum(axis=0)
        colour = np.array([rgb(c) for c in COLOURS], np.uint8)[self.counts.argmax(axis=0)]
        share = np.log1p(total) / np.log1p(max(1, total.max()))
        alpha = np.where(total > 0, 90 + 165 * share, 0).astype(np.uint8)
        return np.dstack([colour, alpha])[::-1]


def map_of(table: Table, classes: Classes | None) -> Chart | None:
    """The map of a table's objects, in two passes; None if no object has a place on one."""
    if not table.has_places(PLACES):
        return None
    low, high, n = np.full(2, np.inf), np.full(2, -np.inf), 0
    for rows in table.spans():
        xy = table.places(PLACES, rows)[:, :2]
        xy = xy[np.isfinite(xy).all(axis=1)]
        n += len(xy)
        low, high = (
            np.minimum(low, xy.min(0, initial=np.inf)),
            np.maximum(high, xy.max(0, initial=-np.inf)),
        )
    if not n:
        return None
    margin = 0.03 * np.maximum(high - low, 1e-6)
    low, high = low - margin, high + margin
    counts = np.zeros((len(COLOURS), GRID, GRID), np.int64)
    kept: list[tuple[np.ndarray, np.ndarray]] = []
    for rows in table.spans():
        xy = np.asarray(table.places(PLACES, rows)[:, :2], np.float64)
        there = np.isfinite(xy).all(axis=1)
        xy = xy[there]
        codes = table.codes(classes.column, rows)[there] if classes else None
        ranks = classes.ranks[codes] if classes else np.zeros(len(xy), np.int64)
        x, y = ((xy - low) / (high - low) * GRID).astype(np.int64).clip(0, GRID - 1).T
        np.add.at(counts, (ranks, y, x), 1)
        if n <= POINTS:
            kept.append((xy, ranks))
    return Chart(
        low=(float(low[0]), float(low[1])),
        high=(float(high[0]), float(high[1])),
        n=n,
        n_without=len(table) - n,
        points=np.concatenate([p for p, _ in kept]) if kept else None,
        ranks=np.concatenate([r for _, r in kept]) if kept else None,
        counts=counts,
        summits=_summits(counts, low, high, classes),
    )


def draw_classes(
    image: Image,
    labels: Image,
    table: Table,
    classes: Classes,
    *,
    channels: Sequence[int] = (),
    side: int = SIDE,
) -> np.ndarray:
    """The image in grey, every object in the colour of its class; `draw_overlay` says which plane.

    Returns:
        ``(Y, X, 3)`` uint8, red, green, blue.
    """
    shape = picture_shape(labels, side)
    dim = grey(image, shape, tuple(channels)) * _DIM
    picture = np.repeat(dim[..., None], 3, axis=2)
    pixels = plane(labels, shape, channel=0)
    ids, inverse = np.unique(pixels, return_inverse=True)
    ranks = _ranks_of(ids, table, classes)[inverse].reshape(shape)
    colours = np.array([rgb(c) for c in COLOURS], np.float64)[ranks]
    inside = pixels > 0
    picture[inside] = picture[inside] * (1 - _FILLED) + colours[inside] * _FILLED
    edge = outlines(pixels)
    picture[edge] = colours[edge]
    return picture.astype(np.uint8)


def _ranks_of(ids: np.ndarray, table: Table, classes: Classes) -> np.ndarray:
    """The ranks of some objects of the first time point; ``ids`` are sorted."""
    found = np.full(len(ids), len(CLASSES))
    timed = "time" in table.obs
    for rows in table.spans():
        chunk = table.read(rows.start, rows.stop, columns=[INSTANCE, *(["time"] if timed else [])])
        own = chunk[INSTANCE].astype(ids.dtype)
        at = np.searchsorted(ids, own).clip(0, len(ids) - 1)
        here = ids[at] == own
        if timed:
            here &= chunk["time"] == 0
        found[at[here]] = classes.ranks[table.codes(classes.column, rows)[here]]
    return found


def _summits(
    counts: np.ndarray, low: np.ndarray, high: np.ndarray, classes: Classes | None
) -> list[tuple[float, float]]:
    shown = min(len(CLASSES), len(classes.names)) if classes else 0
    places = []
    for own in counts[:shown]:
        smooth = ndi.gaussian_filter(own.astype(np.float64), _SMOOTH)
        y, x = np.unravel_index((smooth * (own > 0)).argmax(), smooth.shape)
        place = low + (np.array([x, y]) + 0.5) / GRID * (high - low)
        places.append((float(place[0]), float(place[1])))
    return places
