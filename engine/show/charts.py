"""Charts of the page: where bars, points and words are, for ``charts.html`` to draw as SVG.

Every chart has a title, a description for those who cannot see it, and axes with units.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cytopave.engine.show.classes import COLOURS
from cytopave.engine.show.numbers import number, ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.show.classes import Chart, Classes
    from cytopave.engine.show.distributions import Distribution

type Tick = tuple[float, str]
"""Where a mark is on the page's axis, and what it says."""


@dataclass(frozen=True)
class Frame:
    """A rectangle of the drawing that data are drawn in.

    Attributes:
        width: Of the whole drawing, in its units; the page scales it.
        height: Of the same.
        left: Where the rectangle begins.
        top: Where it begins.
        right: Where it ends.
        bottom: Where it ends.
        x: Data at its left and right ends.
        y: Data at its bottom and top.
    """

    width: float
    height: float
    left: float
    top: float
    right: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        """Where an X of the data lies."""
        low, high = self.x
        return round(self.left + (value - low) / (high - low) * (self.right - self.left), 2)

    def down(self, value: float) -> float:
        """Where a Y of the data lies."""
        low, high = self.y
        return round(self.bottom - (value - low) / (high - low) * (self.bottom - self.top), 2)

    @property
    def columns(self) -> list[Tick]:
        """Marks along X."""
        return [(self.across(v), number(v)) for v in ticks(*self.x)]

    @property
    def rows(self) -> list[Tick]:
        """Marks along Y."""
        return [(self.down(v), number(v)) for v in ticks(*self.y, 4)]


@dataclass(frozen=True)
class Bar:
    """A bar: its place, what it says when it is pointed at, and its colour where it has its own."""

    x: float
    y: float
    width: float
    height: float
    says: str
    colour: str = ""
    label: str = ""
    text: str = ""


@dataclass(frozen=True)
class Histogram:
    """A distribution, drawn.

    Attributes:
        title: What is distributed.
        about: One sentence with the figures.
        x_label: What stands along X, with its unit.
        frame: Where it is drawn.
        bars: Its bars.
        median: Where the median is along X.
    """

    title: str
    about: str
    x_label: str
    frame: Frame
    bars: Sequence[Bar]
    median: float
    kind: str = "histogram"


@dataclass(frozen=True)
class Bars:
    """Amounts with names, drawn as lying bars.

    Attributes:
        title: What they are.
        about: One sentence about them.
        x_label: What stands along X, with its unit.
        frame: Where they are drawn.
        bars: Each with a label before it and a text behind it.
    """

    title: str
    about: str
    x_label: str
    frame: Frame
    bars: Sequence[Bar]
    kind: str = "bars"


@dataclass(frozen=True)
class Scatter:
    """A map of objects, drawn: each a dot, or a picture of how many there are where.

    Attributes:
        title: What it is.
        about: One sentence about it.
        frame: Where it is drawn.
        dots: X, Y and colour of each object, where there are few.
        picture: A PNG file as base64, where there are many.
        names: X, Y and name of each class that has a colour.
    """

    title: str
    about: str
    frame: Frame
    dots: Sequence[tuple[float, float, str]]
    picture: str
    names: Sequence[tuple[float, float, str]]
    kind: str = "scatter"


def draw_histogram(found: Distribution, title: str, unit: str) -> Histogram:
    """The chart of a distribution; ``unit`` is empty for a number without one."""
    edges = found.edges.tolist()
    frame = Frame(
        400, 230, 56, 12, 388, 182, (edges[0], edges[-1]), (0, int(found.counts.max()) or 1)
    )
    bars = []
    for low, high, count in zip(edges, edges[1:], found.counts.tolist(), strict=False):
        left, right, top = frame.across(low), frame.across(high), frame.down(count)
        says = f"{number(low)} to {number(high)}{_after(unit)}: {count} objects"
        width, height = max(0.3, right - left - 0.6), frame.bottom - top
        bars.append(Bar(left + 0.3, top, round(width, 2), round(height, 2), says))
    few, median, most = (f"{number(q, 3)}{_after(unit)}" for q in found.quantiles)
    about = f"Median {median}; nine of ten objects between {few} and {most}."
    if found.n_beyond:
        extremes = f"{number(found.low)} to {number(found.high)}{_after(unit)}"
        about += f" The outer bars hold {found.n_beyond:,} objects beyond them, too ({extremes})."
    if found.n_missing:
        about += f" {found.n_missing:,} objects have no finite value and are not shown."
    middle = frame.across(min(max(found.quantiles[1], edges[0]), edges[-1]))
    x_label = f"{title} ({unit})" if unit else title
    return Histogram(title, about, x_label, frame, bars, middle)


def draw_bars(
    title: str,
    about: str,
    x_label: str,
    rows: Sequence[tuple[str, float, str, str]],
    *,
    label_width: float = 110,
) -> Bars:
    """The chart of some amounts.

    Args:
        title: What they are.
        about: One sentence about them.
        x_label: What they count, with its unit.
        rows: Name, amount, the text behind the bar, and its colour or nothing.
        label_width: Room for the names.
    """
    step, right = 24.0, 470.0
    bottom = 6 + step * len(rows)
    most = max((value for _, value, _, _ in rows), default=0) or 1
    frame = Frame(640, bottom + 44, label_width, 6, right, bottom, (0, most), (0, 1))
    bars = []
    for i, (label, value, text, colour) in enumerate(rows):
        width = max(0.5, frame.across(value) - frame.left)
        y = 6 + step * i + 4
        bars.append(
            Bar(frame.left, y, round(width, 2), step - 8, f"{label}: {text}", colour, label, text)
        )
    return Bars(title, about, x_label, frame, bars)


def draw_map(chart: Chart, classes: Classes | None) -> Scatter:
    """The map of objects; each class that has a colour is named at its densest place."""
    frame = Frame(
        560, 500, 50, 12, 548, 456, (chart.low[0], chart.high[0]), (chart.low[1], chart.high[1])
    )
    dots: list[tuple[float, float, str]] = []
    picture = ""
    if chart.points is not None and chart.ranks is not None:
        dots = [
            (frame.across(x), frame.down(y), COLOURS[rank])
            for (x, y), rank in zip(chart.points.tolist(), chart.ranks.tolist(), strict=True)
        ]
    else:
        picture = _png(chart)
    names = [classes.names[i] for i in classes.order] if classes else []
    about = (
        f"Each dot is one of {chart.n:,} objects."
        if dots
        else (
            f"{chart.n:,} objects on a fine grid: a place has the colour of the cluster that "
            "has most objects there, and is the stronger the more objects there are."
        )
    )
    if chart.n_without:
        about += f" {chart.n_without:,} objects were left out of the analysis and have no place."
    return Scatter(
        title="Map of the objects (UMAP)",
        about=about + " Objects with similar measurements lie close together; the axes have no "
        "unit, and distances between groups mean little.",
        frame=frame,
        dots=dots,
        picture=picture,
        names=[
            (frame.across(x), frame.down(y), name)
            for (x, y), name in zip(chart.summits, names, strict=False)
        ],
    )


def _png(chart: Chart) -> str:
    from PIL import Image as Pillow

    file = io.BytesIO()
    Pillow.fromarray(chart.picture()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _after(unit: str) -> str:
    return f" {unit}" if unit else ""
