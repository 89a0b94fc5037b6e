"""Which objects stay, and under which id: decided from a census, out of core."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.refine.census import join
from cytopave.engine.refine.ids import map_ids
from cytopave.engine.refine.relabel import renumber
from cytopave.engine.scratch.archive import write_array, write_bytes
from cytopave.engine.tables.combine import load_rows, merged

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cytopave.engine.omezarr.image import Image
    from cytopave.engine.refine.clear_border import ClearBorder
    from cytopave.engine.refine.remove import RemoveLarge, RemoveSmall

_AT_ONCE = 1 << 20  # rows


@dataclass(frozen=True)
class Selection:
    """What becomes of the ids of a label image.

    Attributes:
        dropped: Ids that are removed, sorted within each time point.
        begin: Where those of each time point begin, and as the last entry their number.
        old: Ids that get another one, sorted; None where ids stay.
        new: The other one of each.
    """

    dropped: np.ndarray
    begin: np.ndarray
    old: np.ndarray | None = None
    new: np.ndarray | None = None

    @classmethod
    def load(cls, folder: Path) -> Selection:
        """A decision that was taken, mapped into memory."""
        names = ["dropped", "begin", *(n for n in ("old", "new") if _path(folder, n).exists())]
        return cls(**{name: load_rows(_path(folder, name)) for name in names})

    def apply(self, labels: np.ndarray, time: int) -> np.ndarray:
        """Labels with the ids that they have after the decision."""
        dropped = self.dropped[self.begin[time] : self.begin[time + 1]]
        if self.old is None and not len(dropped):
            return labels

        def change(ids: np.ndarray) -> np.ndarray:
            wide = ids.astype(np.uint64)
            place = np.searchsorted(dropped, wide)
            gone = np.zeros(len(ids), bool)
            known = place < len(dropped)
            gone[known] = dropped[place[known]] == wide[known]
            if self.old is None or self.new is None:
                return np.where(gone, np.zeros(1, ids.dtype), ids)
            others = np.zeros(len(ids), self.new.dtype)
            others[~gone] = self.new[np.searchsorted(self.old, wide[~gone])]
            return others

        changed = map_ids(labels, change)
        return changed if self.new is None else changed.astype(self.new.dtype, copy=False)


def decide(
    parts: Sequence[Path],
    rules: Sequence[RemoveSmall | RemoveLarge | ClearBorder],
    *,
    relabel: bool,
    labels: Image,
    folder: Path,
) -> None:
    """Decide about all objects, and keep the decision in a folder.

    Args:
        parts: Files of a census.
        rules: What an object has to meet to stay.
        relabel: Whether those that stay are numbered anew.
        labels: The labels, for their pixel size.
        folder: Gets what `Selection.load` and `counts` read.
    """
    removed, before = [0] * len(rules), 0
    dropped, begin = [np.zeros(0, np.uint64)], np.zeros(labels.n_times + 1, np.int64)
    ids, first = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for rows in merged(parts, at_once=_AT_ONCE, join=join):
        before += len(rows)
        kept = np.ones(len(rows), bool)
        for number, rule in enumerate(rules):
            meets = rule.keeps(rows, labels)
            removed[number] += int((kept & ~meets).sum())
            kept &= meets
        dropped.append(rows["label"][~kept])
        begin[1:] += np.bincount(rows["time"][~kept], minlength=labels.n_times)
        if relabel:
            ids.append(rows["label"][kept])
            first.append(rows["first"][kept])
    write_array(_path(folder, "dropped"), np.concatenate(dropped))
    write_array(_path(folder, "begin"), np.cumsum(begin))
    if relabel:
        old, new = renumber(np.concatenate(ids), np.concatenate(first))
        write_array(_path(folder, "old"), old)
        write_array(_path(folder, "new"), new)
    facts = {"before": before, "removed": removed}
    write_bytes(folder / "counts.json", json.dumps(facts).encode())


def counts(folder: Path) -> tuple[int, list[int]]:
    """How many objects there were before a decision, and how many each rule removed."""
    facts = json.loads((folder / "counts.json").read_bytes())
    return int(facts["before"]), [int(n) for n in facts["removed"]]


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.npy"
