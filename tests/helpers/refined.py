"""After-processing in this process, by the engine's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import ndimage

from cytopave.engine.refine import stages
from cytopave.engine.refine.planner import plan_refinement

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cytopave.engine.refine import Operation
    from cytopave.engine.refine.refinement import Refinement
    from cytopave.engine.refine.report import RefineReport


def refine_here(refinement: Refinement) -> RefineReport:
    """All stages."""
    refinement.save()
    for phase in stages.phases(refinement):
        if phase.act == "decide":
            stages.decide(refinement, phase.step)
            continue
        for group in range(len(refinement.groups)):
            getattr(stages, phase.act)(refinement, phase.step, group)
    return stages.publish(refinement, {})


def refined(image: Path | str, operations: Sequence[Operation], **request: Any) -> RefineReport:
    """Plan and carry out."""
    return refine_here(plan_refinement(str(image), operations, **request))


def filled(labels: np.ndarray) -> np.ndarray:
    """What `FillHoles` promises, by SciPy, object by object."""
    best: dict[tuple[int, ...], tuple[int, int]] = {}
    for i in np.unique(labels[labels > 0]).tolist():
        own = labels == i
        parts, _ = ndimage.label(ndimage.binary_fill_holes(own) & ~own)
        sizes = np.bincount(parts.ravel())
        for found in np.argwhere((parts > 0) & (labels == 0)).tolist():
            place, claim = tuple(found), (int(sizes[parts[tuple(found)]]), i)
            best[place] = min(best.get(place, claim), claim)
    out = labels.copy()
    for place, (_, i) in best.items():
        out[place] = i
    return out


def expanded(labels: np.ndarray, distance: float, sizes: Sequence[float]) -> np.ndarray:
    """What `Expand` promises, by looking at every pixel of every object."""
    out, places = labels.copy(), np.argwhere(labels)
    if not len(places):
        return out
    ids = labels[labels > 0]
    for place in np.argwhere(labels == 0):
        away = np.sqrt((((places - place) * np.asarray(sizes)) ** 2).sum(axis=1))
        if away.min() <= distance * (1 + 1e-9):
            out[tuple(place)] = ids[away <= away.min() * (1 + 1e-9)].min()
    return out
