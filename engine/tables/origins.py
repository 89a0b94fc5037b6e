"""Which tiles drew an object, from what the merge of a run decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.merge.stages import load_resolution

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_AT_ONCE = 1 << 20  # views


@dataclass(frozen=True)
class Origins:
    """The final id of each view, and where each tile's views begin: arrays mapped into memory."""

    offsets: np.ndarray
    final: np.ndarray

    @classmethod
    def load(cls, merge_folder: Path) -> Origins:
        """Those of a run that was resolved."""
        resolution = load_resolution(merge_folder)
        return cls(np.asarray(resolution.offsets), resolution.final)

    def of(self, labels: np.ndarray) -> dict[str, np.ndarray]:
        """The tiles of some objects.

        All views are looked through, since an id says nothing of where its views are: 0.1 s for
        10^8 of them.

        Args:
            labels: Ids of which each occurs once.

        Returns:
            ``tile``, the first tile that drew a part of the object, -1 if none did, and
            ``n_tiles``, how many did.
        """
        order = np.argsort(labels)
        ids = labels[order]
        first = np.full(len(ids), np.iinfo(np.int64).max)
        count = np.zeros(len(ids), np.int64)
        for row, tile in self._pairs(ids):
            np.minimum.at(first, row, tile)
            np.add.at(count, row, 1)
        columns = {name: np.empty(len(ids), np.int64) for name in ("tile", "n_tiles")}
        columns["tile"][order] = np.where(count > 0, first, -1)
        columns["n_tiles"][order] = count
        return columns

    def _pairs(self, ids: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Rows in ``ids`` and tiles that drew these: each pair once."""
        if not len(ids):
            return
        # Cut where tiles begin, so that a pair is never met twice.
        starts = np.arange(0, len(self.final) + 1, _AT_ONCE)
        edges = np.unique([*self.offsets[np.searchsorted(self.offsets, starts)], self.offsets[-1]])
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            part = np.asarray(self.final[begin:end])
            found = np.flatnonzero((part >= ids[0]) & (part <= ids[-1]))
            row = np.searchsorted(ids, part[found])
            known = ids[row] == part[found]
            tile = np.searchsorted(self.offsets, found[known] + begin, side="right") - 1
            # Two views of one tile may have become one object.
            pairs = np.unique(row[known] * len(self.offsets) + tile)
            yield np.divmod(pairs, len(self.offsets))
