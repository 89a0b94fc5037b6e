"""The parts of the report page, from what a run left: labels, table, attributes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cytopave.engine.report import MISSING, SEAMS
from cytopave.engine.show.charts import draw_bars, draw_histogram, draw_map
from cytopave.engine.show.classes import ATLAS, Classes, map_of
from cytopave.engine.show.distributions import distributions
from cytopave.engine.show.numbers import number, unit_of
from cytopave.engine.show.page import Code, Section, Table
from cytopave.engine.show.palette import CLASSES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cytopave.engine.report import Report
    from cytopave.engine.show.distributions import Distribution
    from cytopave.engine.show.page import Picture
    from cytopave.engine.tables.read import Table as Cells

CHANNELS = 24
"""Channels whose intensities are drawn, at most."""
CLUSTERS = 30
"""Clusters with a bar and a row of their own, at most."""

_ROUND = {"area": "Diameter of a disk of that area", "volume": "Diameter of a ball of that volume"}
_SHAPES = {"eccentricity": "Eccentricity (0 a circle, 1 a line)", "solidity": "Solidity (1 convex)"}


def size_column(cells: Cells) -> str:
    """Area of objects in planes, volume of those in stacks."""
    return "area" if "area" in cells.obs else "volume"


def size_unit(cells: Cells) -> str:
    """The unit of `size_column`."""
    units = tuple(cells.made["units"])
    return unit_of(units, len(units))


def measured(cells: Cells) -> dict[str, Distribution]:
    """How the objects' measures are distributed: size, shape, mean of every channel."""
    shapes = [name for name in _SHAPES if name in cells.obs]
    means = [name for name in cells.features if name.endswith("_mean")][:CHANNELS]
    columns = [size_column(cells), "equivalent_diameter", *shapes, *means]
    return distributions(lambda: cells.chunks(columns), columns)


def objects(cells: Cells, found: Mapping[str, Distribution]) -> Section:
    """Sizes, shapes and intensities of all objects."""
    size = size_column(cells)
    units = tuple(cells.made["units"])
    names = {
        size: (size.capitalize(), size_unit(cells)),
        "equivalent_diameter": (_ROUND[size], unit_of(units)),
        **{name: (title, "") for name, title in _SHAPES.items()},
    }
    charts, rows = [], []
    for name, one in found.items():
        title, unit = names.get(name, (_intensity(name), ""))
        charts.append(draw_histogram(one, title, unit))
        few, median, most = one.quantiles
        rows.append(
            {
                "measure": f"{title} ({unit})" if unit else title,
                "objects": one.n,
                "least": number(one.low),
                "5 %": number(few),
                "median": number(median),
                "95 %": number(most),
                "greatest": number(one.high),
            }
        )
    n_channels = sum(name.endswith("_mean") for name in cells.features)
    text = (
        f"Every one of the {len(cells):,} objects was measured. The bars count objects, the dashed "
        "line is the median. A second hump at small sizes is often debris, one at twice the size "
        "objects that were not told apart."
    )
    if n_channels > CHANNELS:
        text += f" The first {CHANNELS} of {n_channels} channels are shown."
    return Section(
        "objects",
        "Sizes and intensities",
        text,
        charts=charts,
        tables=[Table("The same in figures", rows, ("measure",))],
    )


def _intensity(column: str) -> str:
    """What the mean of a channel is called; images without channels have one intensity."""
    channel = column.removesuffix("_mean")
    return "Mean intensity" if channel == "intensity" else f"Mean intensity of {channel}"


def no_objects(why: str, command: str) -> Section:
    """Says why nothing is known of the objects' measures, and how to get to know it."""
    return Section("objects", "Sizes and intensities", why, code=[Code("This makes it:", command)])


def clusters(cells: Cells, classes: Classes | None, pictures: Sequence[Picture]) -> Section | None:
    """What an atlas run found: the map, the clusters' sizes and means, and where they are."""
    chart = map_of(cells, classes)
    if classes is None and chart is None:
        return None
    charts: list[Any] = [] if chart is None else [draw_map(chart, classes)]
    tables = []
    text = "Objects were grouped by what was measured of them."
    if classes is not None:
        charts.append(_sizes(classes, len(cells)))
        tables.append(_means(classes, cells))
        text = (
            f"Objects were grouped by what was measured of them into {len(classes.names)} clusters "
            f"(column {classes.column!r} of the table)."
        )
        if len(classes.names) > len(CLASSES):
            text += (
                f" The {len(CLASSES)} largest have a colour of their own, the others share a grey."
            )
    return Section("clusters", "Clusters", text, pictures=pictures, charts=charts, tables=tables)


def _sizes(classes: Classes, n: int) -> Any:
    order = classes.order.tolist()
    shown, rest = order[:CLUSTERS], order[CLUSTERS:]
    rows = [_amount(classes.names[i], int(classes.sizes[i]), n, classes.colours[i]) for i in shown]
    if rest:
        rows.append(_amount(f"{len(rest)} more", int(classes.sizes[rest].sum()), n, ""))
    if classes.n_without:
        rows.append(_amount("none", classes.n_without, n, "var(--line)"))
    longest = max((len(label) for label, _, _, _ in rows), default=0)
    about = "How many objects each cluster has, the largest first."
    if classes.n_without:
        about += " Objects without a cluster were left out of the analysis."
    width = min(250, max(60, 24 + 7 * longest))
    return draw_bars("Objects in each cluster", about, "objects", rows, label_width=width)


def _amount(name: str, size: int, n: int, colour: str) -> tuple[str, float, str, str]:
    return name, size, f"{size:,} ({100 * size / max(1, n):.1f} %)", colour


def _means(classes: Classes, cells: Cells) -> Table:
    rows = []
    for i in classes.order.tolist()[:CLUSTERS]:
        row: dict[str, Any] = {"cluster": classes.names[i], "objects": int(classes.sizes[i])}
        for name, values in classes.means.items():
            unit = f" ({size_unit(cells)})" if name == size_column(cells) else ""
            title = _intensity(name) if name.endswith("_mean") else name
            row[f"{title}{unit}"] = number(float(values[i]), 3)
        rows.append(row)
    return Table("Averages over the objects of each cluster", rows, ("cluster",))


def seams(made: Report, picture: Picture) -> Section:
    """Whether the tiles left traces."""
    text = (
        f"The image was worked on in {made.n_tiles} tiles that overlap. An object that a tile cut "
        "would end exactly on the line where two tiles meet, a seam. Real objects end there now "
        "and then, as often as at any other line: the control lines through the middle of tiles, "
        "where nothing can have been cut, say how often. What the seams show beyond that, and "
        "beyond chance, was cut by the tiles; a larger halo helps."
    )
    if not made.seams.axes:
        text = "The image was worked on in one tile: there are no seams."
    return Section(
        "seams",
        "Do the tiles show?",
        text,
        pictures=[picture] if made.seams.axes else [],
        tables=[Table(SEAMS, made.seam_rows(), ("axis",))],
    )


def stages(made: Report) -> Section:
    """How long everything took."""
    total = sum(s.seconds for s in made.stages)
    rows = []
    for stage, row in zip(made.stages, made.stage_rows(), strict=True):
        rate = f", {row['per second']:,} {stage.unit}/s" if row["per second"] != "" else ""
        rows.append((stage.name, round(stage.seconds, 3), f"{stage.seconds:,.2f} s{rate}", ""))
    chart = draw_bars(
        "Seconds of each stage",
        "One after the other, as the run's clock saw them.",
        "seconds",
        rows,
    )
    text = f"{total:,.1f} s in all, from planning to the last step before publication."
    if made.n_reused:
        text += f" {made.n_reused} tiles were finished by an earlier attempt and cost nothing here."
    return Section(
        "stages",
        "How long it took",
        text,
        charts=[chart],
        tables=[Table("The same in figures", made.stage_rows(), ("stage", "done"))],
    )


def missing(made: Report) -> Section | None:
    """What is not there, and what makes it."""
    if not made.missing:
        return None
    return Section(
        "missing",
        MISSING,
        f"{len(made.missing)} of {made.n_tiles} tiles failed. The run was asked to publish all the "
        "same: in the area below there are no objects but for what neighbouring tiles drew.",
        tables=[Table("Where, and why", made.missing_rows(), ("pixels", "why"))],
        code=[
            Code(
                "This tries these tiles again, and only these, and replaces the labels:",
                made.retry or "the same command again, with --overwrite",
            )
        ],
        warning=True,
    )


def provenance(
    made: Report, facts: Mapping[str, object], kept: Mapping[str, Any], cells: Cells | None
) -> Section:
    """How the labels, the table and the clusters were made."""
    listed = dict(facts)
    if software := kept.get("software"):
        listed["software"] = ", ".join(f"{name} {version}" for name, version in software.items())
    listed["image's fingerprint"] = kept.get("fingerprint", "")
    code = [_json("The labels' attributes", kept)]
    if cells is not None:
        table = cells.made
        by = f"{table['created']} by cytopave {table['version']}, " if "created" in table else ""
        of = f"of the labels with the fingerprint {table['fingerprint']}"
        listed["table"] = f"{cells.folder}, {by}{of}"
        code.append(_json("The table's attributes", table))
        if atlas := cells.note(ATLAS):
            by = f"cytopave {atlas['version']}, provider {atlas['provider']}"
            listed["clusters"] = f"{by}, digest {atlas['digest']}"
            code.append(_json("The parameters of the clusters", atlas))
    return Section(
        "provenance",
        "How it was made",
        "Everything that the result depends on. The same image, parameters and versions give the "
        "same labels, on any number of workers.",
        facts=listed,
        code=code,
    )


def _json(title: str, content: Mapping[str, Any]) -> Code:
    return Code(f"{title} (JSON)", json.dumps(dict(content), indent=1), folded=True)
