"""What a run leaves in Prefect's UI: the plan, the stages, the seams, the tiles that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect.artifacts import create_markdown_artifact, create_table_artifact

if TYPE_CHECKING:
    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.report import Report

_GIB = 2**30


def show_plan(plan: Plan) -> None:
    """The plan with its memory figures."""
    grid = plan.grid
    lines = [
        f"## Plan {plan.digest[:16]}",
        f"- image: `{plan.image.url}`, level {plan.image.level}, {plan.image.shape} pixels",
        f"- tiles: {len(grid)} of {grid.tile} pixels, halo {grid.halo}, "
        f"in {len(plan.batches)} batches",
        f"- memory: {plan.memory.need / _GIB:.2f} GiB a tile of {plan.memory.budget / _GIB:.2f} "
        f"GiB ({plan.memory.source})",
        f"- segmenter: `{plan.segmenter.model_dump_json(exclude_none=True)}`",
        f"- scratch: `{plan.root}`",
    ]
    create_markdown_artifact("\n".join(lines), key="plan", description="What will be done")


def show_failures(failures: dict[int, str], plan: Plan) -> None:
    """Which batches failed, and why."""
    rows = [
        {"batch": plan.batch_name(batch), "why": why} for batch, why in sorted(failures.items())
    ]
    create_table_artifact(rows, key="failed-batches", description="Run again to retry these alone")


def show_report(report: Report) -> None:
    """Stages with their throughput, and the seams beside the control lines."""
    create_table_artifact(
        report.stage_rows(), key="stages", description=f"{report.n_objects} objects"
    )
    create_table_artifact(report.seam_rows(), key="seams", description="Objects cut at seams")
