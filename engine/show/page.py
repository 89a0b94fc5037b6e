"""One self-contained HTML page: what was made, how, and where to look."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True)
class Picture:
    """A picture on the page.

    Attributes:
        title: Its heading.
        caption: The text below it.
        pixels: ``(Y, X, 3)`` uint8.
    """

    title: str
    caption: str
    pixels: np.ndarray

    @cached_property
    def base64(self) -> str:
        """The PNG file, as it stands in a data URI."""
        from PIL import Image as Pillow

        file = io.BytesIO()
        Pillow.fromarray(self.pixels).save(file, "PNG", optimize=True)
        return base64.b64encode(file.getvalue()).decode()


@dataclass(frozen=True)
class Table:
    """A table on the page: rows with the same keys, and a note below."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""


@dataclass(frozen=True)
class Histogram:
    """A distribution on the page.

    Attributes:
        title: What is distributed, with its unit.
        heights: Height of each bar, the highest 1.
        low: Where the first bar begins.
        high: Where the last one ends.
        median: Median of all values.
    """

    title: str
    heights: list[float]
    low: float
    high: float
    median: float

    @classmethod
    def of(cls, title: str, values: np.ndarray, *, bars: int = 40) -> Histogram:
        """The distribution of finite values, of which there is at least one."""
        counts, edges = np.histogram(values, bars)
        low, high, median = (float(f"{v:.4g}") for v in (edges[0], edges[-1], np.median(values)))
        heights = (counts / counts.max()).round(4).tolist()
        return cls(title, heights, low, high, median)


@dataclass(frozen=True)
class Page:
    """What stands on the page, from top to bottom."""

    title: str
    facts: Mapping[str, Any]
    provenance: Mapping[str, Any]
    pictures: Sequence[Picture] = ()
    histograms: Sequence[Histogram] = ()
    tables: Sequence[Table] = field(default=())

    def html(self) -> str:
        """The page as one HTML document that needs nothing else."""
        from jinja2 import Environment

        source = files("cytopave.engine.show").joinpath("page.html").read_text()
        template = Environment(autoescape=True, trim_blocks=True).from_string(source)
        return template.render(
            title=self.title,
            facts=self.facts,
            pictures=self.pictures,
            histograms=self.histograms,
            tables=self.tables,
            provenance=json.dumps(dict(self.provenance), indent=1),
        )
