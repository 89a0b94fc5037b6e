"""What a run did, for people and for the label image's own attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from cytopave.engine.boxes import Box
from cytopave.engine.seams import SeamReport

if TYPE_CHECKING:
    from collections.abc import Mapping


SEAMS = "Objects that end exactly at the tiles' seams, and at lines inside tiles"
"""Title of the table of seams."""
MISSING = "Tiles that failed and were left out"
"""Title of the table of missing tiles."""


class Stage(BaseModel):
    """One stage of a run.

    Attributes:
        name: What was done.
        seconds: Wall time.
        tasks: Number of Prefect tasks.
        units: Tiles, pixels or objects handled, by the stage's nature; see ``unit``.
        unit: What ``units`` counts.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    seconds: float
    tasks: int = 1
    units: int = 0
    unit: str = ""


class Missing(BaseModel):
    """A tile that failed and was left out: its core is empty, but for what neighbours drew there.

    Attributes:
        tile: Its number.
        time: Its time point.
        start: First pixel of its core along ([Z], Y, X), at the level that was segmented.
        stop: Past the last one.
        why: What it failed of.
    """

    model_config = ConfigDict(frozen=True)

    tile: int
    time: int
    start: tuple[int, ...]
    stop: tuple[int, ...]
    why: str

    def __str__(self) -> str:
        where = f"time {self.time}, " if self.time else ""
        return f"tile {self.tile} ({where}pixels {Box(self.start, self.stop)})"


class Report(BaseModel):
    """The result of ``segment_image``.

    Attributes:
        image: URL of the image.
        labels_path: URL of the published label image.
        table_path: URL of the table of cells, None where none was written.
        n_objects: Number of objects.
        n_joined: How many of them more than one tile saw.
        n_suspects: How many hold two parts that one tile kept apart, joined because a neighbour
            saw them meet outside: the first to look at for fused cells.
        n_tiles: Number of tiles.
        n_skipped: How many of them have no foreground and were not segmented.
        n_reused: Tiles that an earlier attempt had finished.
        digest: The run's digest.
        stages: What was done and how long it took.
        seams: Objects cut at seams beside control lines and suspects, per axis, and where they are.
        missing: Tiles that failed and were left out, as was asked for.
        retry: What tries these again, and replaces the labels; empty where none are missing.
    """

    model_config = ConfigDict(frozen=True)

    image: str
    labels_path: str
    table_path: str | None = None
    n_objects: int
    n_joined: int
    n_suspects: int
    n_tiles: int
    n_skipped: int = 0
    n_reused: int
    digest: str
    stages: list[Stage]
    seams: SeamReport
    missing: list[Missing] = []
    retry: str = ""

    def provenance(self, plan_facts: dict[str, Any]) -> dict[str, Any]:
        """What the label image's attributes keep of the run."""
        kept = self.model_dump(mode="json", exclude={"labels_path", "table_path", "stages"})
        stages = [
            {**s.model_dump(exclude_defaults=True), "seconds": round(s.seconds, 3)}
            for s in self.stages
        ]
        return {**plan_facts, **kept, "stages": stages}

    @classmethod
    def from_provenance(cls, provenance: Mapping[str, Any], labels_path: str) -> Report:
        """The report again, from what the label image's attributes keep of it.

        Raises:
            ValidationError: These are not attributes that ``provenance`` made.
        """
        kept = {k: v for k, v in provenance.items() if k in cls.model_fields}
        return cls.model_validate({**kept, "labels_path": labels_path})

    def stage_rows(self) -> list[dict[str, Any]]:
        """The stages with their throughput, as a table for people."""
        return [
            {
                "stage": s.name,
                "seconds": round(s.seconds, 2),
                "tasks": s.tasks,
                "done": f"{s.units} {s.unit}" if s.unit else "",
                "per second": _rate(s.units / s.seconds) if s.unit and s.seconds else "",
            }
            for s in self.stages
        ]

    def missing_note(self) -> str:
        """Which area is missing, one sentence."""
        tiles = "; ".join(map(str, self.missing))
        return f"{len(self.missing)} of {self.n_tiles} tiles failed and are left out: {tiles}"

    def missing_rows(self) -> list[dict[str, Any]]:
        """The tiles that were left out, as a table for people."""
        return [
            {
                "tile": m.tile,
                "time": m.time,
                "pixels": str(Box(m.start, m.stop)),
                "why": m.why,
            }
            for m in self.missing
        ]

    def seam_rows(self) -> list[dict[str, Any]]:
        """The seams beside the control lines, as a table for people."""
        return [
            {
                "axis": a.axis,
                "objects at seams": a.seams.met,
                "end there": a.seams.cut,
                "objects at control lines": a.control.met,
                "end there (control)": a.control.cut,
                "more than control": round(a.excess, 1),
                "by chance up to": round(a.chance, 1),
                "fused suspects": a.suspects,
            }
            for a in self.seams.axes
        ]


def _rate(value: float) -> float:
    return round(value) if value >= 100 else round(value, 2)
