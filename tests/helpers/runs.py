"""Runs of `segment_image` for tests: on worker processes, or all in this process."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.ndimage as ndi
from measured import measure_here

from cytopave.engine.merge import Merge, stages
from cytopave.engine.omezarr.labels import open_labels
from cytopave.engine.planning import skipping
from cytopave.engine.planning.budget import Budget
from cytopave.engine.planning.planner import make_plan
from cytopave.engine.segment import segment_tiles
from cytopave.engine.tables.planner import plan_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.report import Report

PLENTY = Budget(2**40, "plenty", on_gpu=False)


@dataclass(frozen=True)
class Flows:
    """Starts flow runs on a running cluster."""

    api: str
    address: str

    def segment(self, image: Path | str, **parameters: Any) -> Report:
        from cytopave.flows import segment_image

        run: Callable[..., Report] = segment_image
        return run(str(image), **{"cluster": self.address} | parameters)


def plan_of(image: Path | str, *, workers: int = 2, batch_seconds: float = 20, **kw: Any) -> Plan:
    """The plan of a run, saved where the stages find it."""
    request: dict[str, Any] = {"merge": Merge(), "name": "cells"} | kw
    plan = make_plan(
        str(image), budget=PLENTY, workers=workers, batch_seconds=batch_seconds, **request
    )
    plan.save()
    return plan


def run_here(image: Path | str, **request: Any) -> Plan:
    """A whole run in this process, by the engine's own functions; returns its plan."""
    plan = plan_of(image, **request)
    if plan.foreground is not None:
        skip_here(plan)
    for batch in plan.batches:
        segment_tiles(plan, batch)
    merge_here(plan)
    return plan


def skip_here(plan: Plan) -> np.ndarray:
    """Skip the tiles without foreground, in groups of a few; gives which tiles have any."""
    assert plan.foreground is not None
    groups = [tuple(g) for g in itertools.batched(plan.foreground.blocks(), 2)]
    for group in groups:
        skipping.look(plan, group)
    found = skipping.join(plan, groups)
    for tiles in itertools.batched(range(len(plan.grid)), 3):
        skipping.skip(plan, tiles)
    return found


def merge_here(
    plan: Plan, *, tiles: int = 3, blocks: int = 2, threads: int = 1, table: bool = False
) -> None:
    """Everything after the segmentation, in groups of a few tiles and blocks."""
    groups = [tuple(g) for g in itertools.batched(range(len(plan.grid)), tiles)]
    for group in groups:
        stages.scan_tiles(plan, group, threads=threads)
    resolved = stages.resolve_run(plan, groups)
    plan.target.create(resolved.final.dtype)
    for part in itertools.batched(plan.target.blocks(), blocks):
        stages.write_blocks(plan, part, threads=threads)
    provenance: dict[str, Any] = {
        "fingerprint": plan.fingerprint,
        "n_objects": resolved.n_objects,
    }
    if table:
        provenance["merge"] = plan.merge.model_dump()
        measure_here(plan_run(plan))
    plan.target.writer().finish()
    plan.target.publish(provenance)


def labels_of(store: Path | str, name: str = "cells", level: int = 0) -> np.ndarray:
    """Pixels of a published label image."""
    return np.asarray(open_labels(store, name).levels[level][...])


def provenance(store: Path | str, name: str = "cells") -> dict[str, Any]:
    """What a label image says of how it was made."""
    content: dict[str, Any] = json.loads(
        json.dumps(dict(open_labels(store, name).attributes["cytopave"]))
    )
    return content


def blobs(shape: tuple[int, ...], *, sigma: float = 3, share: float = 0.4, seed: int = 0) -> Any:
    """Irregular foreground of objects of all sizes, many of which cross every line."""
    noise = ndi.gaussian_filter(np.random.default_rng(seed).normal(size=shape), sigma)
    return noise > np.quantile(noise, 1 - share)


def components(mask: np.ndarray) -> np.ndarray:
    """Connected components (diagonals count) by SciPy, numbered in raster order."""
    labels, _ = ndi.label(mask, np.ones((3,) * mask.ndim))
    ids, first = np.unique(labels, return_index=True)
    ids, first = ids[ids > 0], first[ids > 0]
    lut = np.zeros(len(ids) + 1, np.int64)
    lut[ids[np.argsort(first)]] = np.arange(1, len(ids) + 1)
    return np.asarray(lut[labels])


def components_over_time(mask: np.ndarray) -> np.ndarray:
    """Components of each time point by itself, numbered through."""
    frames, count = [], 0
    for frame in mask:
        labels = components(frame)
        frames.append(np.where(labels > 0, labels + count, 0))
        count += int(labels.max())
    return np.stack(frames)
