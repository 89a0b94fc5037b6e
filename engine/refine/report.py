"""What a refinement did."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Done(BaseModel):
    """What one operation did.

    Attributes:
        operation: Its name and options, as one would say them.
        changed: How many objects it removed or renumbered, or pixels it gave to objects.
        unit: Which of them are counted.
    """

    model_config = ConfigDict(frozen=True)

    operation: str
    changed: int
    unit: Literal["objects removed", "objects numbered", "pixels gained"]


class RefineReport(BaseModel):
    """The result of ``refine_labels``.

    Attributes:
        source_path: URL of the labels that were refined.
        labels_path: URL of the published label image.
        n_before: Number of objects in the first, counted in each time point.
        n_objects: Number of objects in the second.
        operations: What each operation did, in order.
    """

    model_config = ConfigDict(frozen=True)

    source_path: str
    labels_path: str
    n_before: int
    n_objects: int
    operations: list[Done]
