"""The task that finishes the label image and makes it visible."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from typing import Any

from prefect import task

from cytopave.engine.merge import stages
from cytopave.engine.planning.plan import Plan
from cytopave.engine.report import Report
from cytopave.engine.seams import SeamReport
from cytopave.tasks.merge import write_groups
from cytopave.tasks.provenance import provenance

_PACKAGES = ("numpy", "scipy", "scikit-image", "zarr", "torch", "cellpose", "stardist")


@task(name="count_seams", persist_result=False, task_run_name="count seams")
def count_seams(plan_path: str, *, tasks: int) -> SeamReport:
    """Objects cut at seams beside control lines, from the planes that the writers kept."""
    plan = Plan.load(plan_path)
    return stages.count_seams(plan, write_groups(plan, tasks=tasks))


@task(name="publish_labels", persist_result=False, task_run_name="publish labels")
def publish_labels(plan_path: str, *, report: Report) -> str:
    """Finish the pyramid, validate, and publish under the final name; returns the labels' URL.

    Raises:
        OutputError: The name was taken meanwhile, or the written image is not valid.
    """
    plan = Plan.load(plan_path)
    plan.target.writer().finish()
    plan.target.publish(report.provenance(plan_facts(plan)))
    return str(plan.target.published)


def plan_facts(plan: Plan) -> dict[str, Any]:
    """What the label image's attributes say of how it was made."""
    return {
        **provenance(),
        "software": software(),
        "fingerprint": plan.fingerprint,
        "axes": plan.image.axes,
        "level": plan.image.level,
        "channels": list(plan.channels),
        "tile": list(plan.grid.tile),
        "halo": list(plan.grid.halo),
        "merge": plan.merge.model_dump(),
        "segmenter": plan.segmenter.provenance(),
        **({"mask": plan.foreground.provenance()} if plan.foreground else {}),
    }


def software() -> dict[str, str]:
    """Versions of Python and of those packages that may compute labels and are installed."""
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
