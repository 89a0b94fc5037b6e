"""Labels with a table, clusters and a report, made in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anndata
import pandas as pd
import zarr
from measured import measured
from runs import labels_of, run_here

from cytopave.engine.report import Report, Stage
from cytopave.engine.seams import AxisSeams, LineCounts, SeamReport
from cytopave.tasks.publish import plan_facts

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


def made_report(image: Path, **request: Any) -> tuple[Report, dict[str, Any]]:
    """Segment and measure; gives what a run's report and the labels' attributes say."""
    plan = run_here(image, **request)
    measured(image, "cells")
    axis = AxisSeams(axis="x", seams=LineCounts(met=40, cut=3), control=LineCounts(met=20, cut=1))
    report = Report(
        image=plan.image.url,
        labels_path=str(plan.target.published),
        n_objects=int(labels_of(image).max()),
        n_joined=7,
        n_suspects=0,
        n_tiles=len(plan.grid),
        n_reused=2,
        digest=plan.digest,
        stages=[
            Stage(name="plan", seconds=0.5),
            Stage(name="segment", seconds=2.0, tasks=3, units=9, unit="tiles"),
        ],
        seams=SeamReport(axes=[axis], cut=[(0, 50, 60)]),
    )
    return report, report.provenance(plan_facts(plan))


def add_clusters(
    table: Path, names: list[str], codes: np.ndarray, places: np.ndarray, *, key: str = "leiden"
) -> None:
    """Columns as ``cytopave atlas`` writes them: -1 and NaN for objects that were left out."""
    group = zarr.open_group(str(table), mode="r+", use_consolidated=False)
    note = {
        "version": "0.1.0",
        "provider": "scanpy",
        "digest": "d" * 64,
        "profile": {"leiden": {"key": key}},
    }
    anndata.io.write_elem(group["uns"], "cytopave_atlas", json.dumps(note))
    anndata.io.write_elem(group["obsm"], "X_umap", places)
    column = pd.Categorical.from_codes(codes.tolist(), categories=pd.Index(names))
    anndata.io.write_elem(group["obs"], key, column)
    attributes: Any = group["obs"].attrs
    attributes["column-order"] = [*attributes["column-order"], key]
