"""The pixels of a label image: written block by block, each to all levels that align with it."""

from __future__ import annotations

import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cytopave.engine.boxes import Box
from cytopave.engine.omezarr import pyramid

if TYPE_CHECKING:
    import zarr

    from cytopave.engine.omezarr.labels import LabelTarget, WriteBlock


class LabelWriter:
    """Writes the pixels of a target, whose arrays are there; may be used by several threads."""

    def __init__(self, target: LabelTarget) -> None:
        self._target = target
        self._steps = pyramid.sampling(target.levels, len(target.spatial_shape))

    def write(self, block: WriteBlock, labels: np.ndarray) -> None:
        """Write the pixels of a block to level 0 and to the coarser levels that align with it.

        Chunks of nothing but background are not stored.

        Args:
            block: One of the target's blocks.
            labels: Its pixels ([Z], Y, X), final ids, 0 the background.

        Raises:
            OutputError: They cannot be written.
            ValueError: Their shape is not the block's, or an id does not fit the dtype.
        """
        if labels.shape != block.box.shape:
            raise ValueError(f"labels of shape {labels.shape} for block {block.box}")
        with self._target.writing():
            region, part = block.box, self._cast(labels)
            for index in range(self._target.direct):
                if index:
                    region, part = pyramid.coarser(region, part, self._steps[index - 1])
                if part.size == 0:
                    break
                self._put(index, block.time, region, part)

    def finish(self) -> None:
        """Write the levels that no block could, each from the one before. Blocks come first.

        Raises:
            OutputError: They cannot be written.
        """
        target = self._target
        with target.writing():
            for index in range(target.direct, len(target.levels)):
                finer = self._arrays[index - 1]
                chunk = target.spatial(target.levels[index].chunks)
                stride = tuple(c * (2 if i >= len(chunk) - 2 else 1) for i, c in enumerate(chunk))
                whole = Box.of(target.spatial(target.levels[index].shape))
                for time, box in itertools.product(range(target.n_times), whole.blocks(stride)):
                    steps = zip(self._steps[index - 1], box.slices, strict=True)
                    picks = tuple(i[s] for i, s in steps)
                    part = finer.oindex[(time, *picks) if "t" in target.axes else picks]
                    self._put(index, time, box, np.asarray(part))

    def _put(self, index: int, time: int, box: Box, part: np.ndarray) -> None:
        where: Any = (time, *box.slices) if "t" in self._target.axes else box.slices
        self._arrays[index][where] = part

    @cached_property
    def _arrays(self) -> list[zarr.Array[Any]]:
        staging = self._target.staging
        return [(staging / level.path).array(mode="r+") for level in self._target.levels]

    def _cast(self, labels: np.ndarray) -> np.ndarray:
        dtype = self._arrays[0].dtype
        if labels.dtype == dtype:
            return labels
        if labels.dtype.kind not in "ui" or labels.min() < 0 or labels.max() > np.iinfo(dtype).max:
            raise ValueError(f"labels of dtype {labels.dtype} do not all fit {dtype}")
        return labels.astype(dtype)
