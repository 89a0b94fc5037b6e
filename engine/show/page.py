"""One self-contained HTML page: what was made, how, and where to look.

The page is also well-formed XML. It holds its pictures and charts itself and fetches nothing.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from cytopave.engine.show.numbers import number, round_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from cytopave.engine.show.charts import Bars, Histogram, Scatter

_QUALITY = 88  # of JPEG: outlines one pixel wide stay sharp, colour is not sampled down


@dataclass(frozen=True)
class Picture:
    """A picture on the page.

    Attributes:
        title: Its heading.
        caption: The text below it.
        pixels: ``(Y, X, 3)`` uint8.
        scale: Length of the scale bar in percent of the width, and what it says; None for none.
        sharp: Whether every pixel matters: enlarged without smoothing, and kept without loss.
    """

    title: str
    caption: str
    pixels: np.ndarray
    scale: tuple[float, str] | None = None
    sharp: bool = False

    @property
    def format(self) -> str:
        """The kind of file, as in its media type."""
        return "png" if self.sharp else "jpeg"

    @cached_property
    def base64(self) -> str:
        """The file, as it stands in a data URI."""
        from PIL import Image as Pillow

        file = io.BytesIO()
        picture = Pillow.fromarray(self.pixels)
        if self.sharp:
            picture.save(file, "PNG", optimize=True)
        else:
            # not optimised: Pillow's buffer for that is too small for a picture of noise
            picture.save(file, "JPEG", quality=_QUALITY, subsampling=0)
        return base64.b64encode(file.getvalue()).decode()


def scale_bar(width: float, unit: str) -> tuple[float, str]:
    """The scale bar of a picture: a round length, about a fifth of the width.

    Args:
        width: Of the picture, in ``unit``.
        unit: Its name.
    """
    length = round_step(width, 5)
    return round(100 * length / width, 3), f"{number(length)} {unit}"


@dataclass(frozen=True)
class Table:
    """A table on the page.

    Attributes:
        title: What it lists.
        rows: Rows with the same keys.
        words: Columns of words, which begin at the left; numbers end at the right.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Code:
    """Text that is kept as it is, such as a command; folded away if it is long."""

    title: str
    text: str
    folded: bool = False


@dataclass(frozen=True)
class Card:
    """A figure at the top of the page."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page: what it holds is shown in this order.

    Attributes:
        key: Its name in links to it.
        title: Its heading.
        text: What it shows, for readers who have not seen such a page before.
        pictures: Pictures, side by side where there is room.
        charts: Charts, of one kind.
        facts: Names and values.
        tables: Tables.
        code: Commands and documents.
        warning: Whether it tells of something that is wrong.
    """

    key: str
    title: str
    text: str = ""
    pictures: Sequence[Picture] = ()
    charts: Sequence[Histogram | Bars | Scatter] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    tables: Sequence[Table] = ()
    code: Sequence[Code] = ()
    warning: bool = False


@dataclass(frozen=True)
class Page:
    """What stands on the page, from top to bottom."""

    title: str
    lede: str = ""
    cards: Sequence[Card] = ()
    sections: Sequence[Section] = ()

    def html(self) -> str:
        """The page as one document that needs nothing else."""
        from jinja2 import Environment, FunctionLoader

        folder = files("cytopave.engine.show")
        templates = Environment(
            autoescape=True,
            trim_blocks=True,
            loader=FunctionLoader(lambda name: folder.joinpath(name).read_text()),
        )
        page = templates.get_template("page.html")
        return page.render(
            title=self.title, lede=self.lede, cards=self.cards, sections=self.sections
        ).lstrip()
