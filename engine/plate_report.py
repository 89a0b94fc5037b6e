"""What a run over a plate did, well by well."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from cytopave.engine.report import Report


class FieldResult(BaseModel):
    """One image of a well.

    Attributes:
        field: Its path in the plate, such as ``A/1/0``.
        report: What was done; None if it failed.
        reused: Whether an earlier attempt had published the very same labels.
        error: Why it failed, one line; None if it did not.
    """

    model_config = ConfigDict(frozen=True)

    field: str
    report: Report | None = None
    reused: bool = False
    error: str | None = None


class WellResult(BaseModel):
    """One well.

    Attributes:
        well: Its name, such as ``A/1``.
        fields: Its images that are there.
        missing: Paths of images that its metadata name and that are not there.
    """

    model_config = ConfigDict(frozen=True)

    well: str
    fields: list[FieldResult]
    missing: list[str] = []

    @property
    def n_objects(self) -> int:
        """Objects in all its images."""
        return sum(f.report.n_objects for f in self.fields if f.report)


class PlateReport(BaseModel):
    """The result of ``segment_plate``.

    Attributes:
        plate: URL of the plate.
        name: Name of the label images.
        wells: The wells that are there, in the plate's order.
        missing: Wells that the plate's metadata name and that are not there, or hold no image.
        seconds: Wall time.
    """

    model_config = ConfigDict(frozen=True)

    plate: str
    name: str
    wells: list[WellResult]
    missing: list[str]
    seconds: float

    @property
    def n_objects(self) -> int:
        """Objects in the whole plate."""
        return sum(well.n_objects for well in self.wells)

    @property
    def missing_fields(self) -> list[str]:
        """Images that wells name and that are not there."""
        return [path for well in self.wells for path in well.missing]

    @property
    def failed(self) -> list[FieldResult]:
        """The images that failed."""
        return [f for well in self.wells for f in well.fields if f.error is not None]

    def rows(self) -> list[dict[str, Any]]:
        """The wells as a table for people."""
        rows: list[dict[str, Any]] = [
            {
                "well": well.well,
                "fields": len(well.fields),
                "objects": well.n_objects,
                "tiles": sum(f.report.n_tiles for f in well.fields if f.report),
                "done before": sum(f.reused for f in well.fields),
                "failed": sum(f.error is not None for f in well.fields),
                "missing": len(well.missing),
            }
            for well in self.wells
        ]
        gone = {"fields": 0, "objects": 0, "tiles": 0, "done before": 0, "failed": 0, "missing": 1}
        return rows + [{"well": name, **gone, "missing": "all"} for name in self.missing]
