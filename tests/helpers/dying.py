"""A run that dies at a chosen moment, in a process of its own."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from measured import measure_here
from refined import refine_here
from related import relate_here
from runs import merge_here, plan_of

from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.publish import listed_names
from cytopave.engine.refine import Expand, FillHoles, Relabel, RemoveSmall
from cytopave.engine.refine.planner import plan_refinement
from cytopave.engine.relations.planner import plan_relation
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tables.planner import is_written, plan_measurement
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST: dict[str, Any] = {
    "segmenter": Threshold(threshold=0.5),
    "tiling": Tiling(tile=(48, 48), halo=8),
}


def make_labels(image: str, dies_after: int | None) -> None:
    """Make the labels of an image whose tiles are there; die right after the n-th renaming.

    Files and folders get their names by renaming: these are the moments at which a reader, or the
    next run, can find something new.
    """
    _die(dies_after)
    merge_here(plan_of(image, **REQUEST))


def refine_and_relate(image: str, dies_after: int | None) -> None:
    """Refine the labels ``nuclei`` into ``cells``; then measure these and relate the two."""
    _die(dies_after)
    operations: list[Any] = [FillHoles(), RemoveSmall(size=20), Expand(distance=3), Relabel()]
    if "cells" not in listed_names(Folder(image) / "labels"):
        refine_here(plan_refinement(image, operations, labels="nuclei", name="cells"))
    measurement = plan_measurement(image, labels="cells")
    if not is_written(measurement):
        measure_here(measurement)
    relation = plan_relation(image, child="nuclei", parent="cells")
    if not relation.check_columns(overwrite=False, export=True):
        relate_here(relation)


def _die(dies_after: int | None) -> None:
    """Have this process killed right after so many renamings from now on."""
    if dies_after is not None:
        left = dies_after

        def counting(rename: Callable[..., None]) -> Callable[..., None]:
            def counted(*args: Any, **kwargs: Any) -> None:
                nonlocal left
                rename(*args, **kwargs)
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            return counted

        os.rename, os.replace = counting(os.rename), counting(os.replace)
