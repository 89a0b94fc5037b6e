"""New ids without gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from cytopave.engine.omezarr.image import Image


class Relabel(BaseModel):
    """Number the objects 1, 2, ... in the raster order of their first pixels, time slowest.

    An id that occurs at several time points stays one id.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["relabel"] = "relabel"

    def check(self, labels: Image) -> None:
        """Nothing can be wrong."""


def renumber(ids: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """New ids of objects.

    Args:
        ids: Ids; one may come several times, for several time points.
        first: Place of the first pixel of each in the raster order of all time points.

    Returns:
        The distinct ids, sorted, and the new id of each: uint32 where that suffices.
    """
    order = np.lexsort((first, ids))
    begin = np.flatnonzero(np.diff(ids[order], prepend=0))  # ids are larger than 0
    old, first = ids[order][begin], first[order][begin]
    dtype = np.uint32 if len(old) <= np.iinfo(np.uint32).max else np.uint64
    new = np.empty(len(old), dtype)
    new[np.argsort(first)] = np.arange(1, len(old) + 1, dtype=dtype)
    return old, new
