"""Relations in this process, by the engine's own functions, and by definition."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from cytopave.engine.relations import stages

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.relations.relation import Relation
    from cytopave.engine.relations.report import RelateReport


def relate_here(relation: Relation, *, files: dict[str, Path] | None = None) -> RelateReport:
    """All stages."""
    relation.save()
    for group in range(len(relation.groups)):
        stages.count_group(relation, group)
    stages.write_columns(relation, {"version": "0"})
    return stages.report_relation(relation, files or {}, related=True)


def related(child: np.ndarray, parent: np.ndarray) -> dict[int, tuple[int, float]]:
    """Each child's parent and the share of it within, by definition."""
    found = {}
    for i in np.unique(child[child > 0]).tolist():
        below = Counter(parent[child == i].tolist())
        total = below.total()
        del below[0]
        best = min(below, key=lambda p: (-below[p], p), default=0)
        found[i] = (best, below[best] / total)
    return found
