"""What a measurement did."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class TableReport(BaseModel):
    """The result of ``measure_cells``.

    Attributes:
        image: URL of the image.
        labels_path: URL of the labels.
        table_path: URL of the published table.
        n_objects: Number of rows: objects, counted in each time point.
        measured: Whether anything was measured; not where the very table was there.
        files: The exported files, by format.
    """

    model_config = ConfigDict(frozen=True)

    image: str
    labels_path: str
    table_path: str
    n_objects: int
    measured: bool
    files: dict[str, str]
