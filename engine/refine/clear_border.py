"""Objects that the image's edge may have cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from cytopave.engine.errors import LabelError

if TYPE_CHECKING:
    import numpy as np

    from cytopave.engine.omezarr.image import Image


class ClearBorder(BaseModel):
    """Remove objects that touch the image's edge.

    As scikit-image's ``clear_border(labels, buffer_size=margin)``, but that an id is one object
    though its pixels may not be connected.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["clear_border"] = "clear_border"
    margin: NonNegativeInt = 0
    """Pixels from the edge within which an object is removed as well."""
    planewise: bool = False
    """Of a stack, only the edges in Y and X count, not the first and last plane."""

    def check(self, labels: Image) -> None:
        """Refuse a margin that leaves nothing; a `LabelError`."""
        shape = labels.spatial_shape[-2:] if self.planewise else labels.spatial_shape
        if 2 * (self.margin + 1) >= min(shape):
            raise LabelError(
                f"with a margin of {self.margin} pixels every object of {labels.url}, shape "
                f"{labels.spatial_shape}, lies at its edge: take a smaller margin, or of a thin "
                "stack only the edges in Y and X (planewise)"
            )

    def keeps(self, rows: np.ndarray, labels: Image) -> np.ndarray:
        """Which objects of a census stay."""
        del labels
        kept: np.ndarray = rows["edge_yx" if self.planewise else "edge"] > self.margin
        return kept
