"""Objects that are too small or too large."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from cytopave.engine.refine.quantity import NEARLY, Given, pixels_of

if TYPE_CHECKING:
    import numpy as np

    from cytopave.engine.omezarr.image import Image


class RemoveSmall(BaseModel):
    """Remove objects that are smaller than a size.

    With whole numbers of pixels the result is that of scikit-image's
    ``remove_small_objects(labels, max_size=size - 1)``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["remove_small"] = "remove_small"
    size: Given = Field(description="The smallest size that stays: pixels, or such as 20um2.")

    def check(self, labels: Image) -> None:
        """Refuse what these labels cannot have; a `LabelError`."""
        pixels_of(self.size, labels)

    def keeps(self, rows: np.ndarray, labels: Image) -> np.ndarray:
        """Which objects of a census stay."""
        kept: np.ndarray = rows["n"] >= math.ceil(pixels_of(self.size, labels) * (1 - NEARLY))
        return kept


class RemoveLarge(BaseModel):
    """Remove objects that are larger than a size."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["remove_large"] = "remove_large"
    size: Given = Field(description="The largest size that stays: pixels, or such as 500um2.")

    def check(self, labels: Image) -> None:
        """Refuse what these labels cannot have; a `LabelError`."""
        pixels_of(self.size, labels)

    def keeps(self, rows: np.ndarray, labels: Image) -> np.ndarray:
        """Which objects of a census stay."""
        kept: np.ndarray = rows["n"] <= math.floor(pixels_of(self.size, labels) * (1 + NEARLY))
        return kept
