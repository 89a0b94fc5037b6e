"""What a run leaves in Prefect's UI: the plan, the stages, the seams, the tiles that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from cytopave.engine.boxes import Box
from cytopave.tasks.failures import retry_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.report import Missing, Report

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


def show_failures(missing: Sequence[Missing], plan: Plan) -> None:
    """Which tiles failed, why, and how to try them again."""
    rows = [
        {
            "tile": m.tile,
            **({"time": m.time} if plan.grid.times > 1 else {}),
            "pixels": str(Box(m.start, m.stop)),
            "why": m.why,
        }
        for m in missing
    ]
    create_table_artifact(
        rows,
        key="failed-tiles",
        description=f"{len(missing)} of {len(plan.grid)} tiles failed. These alone are tried again "
        f"by `{retry_command()}`",
    )


def show_report(report: Report) -> None:
    """Stages with their throughput, and the seams beside the control lines."""
    create_table_artifact(
        report.stage_rows(), key="stages", description=f"{report.n_objects} objects"
    )
    create_table_artifact(report.seam_rows(), key="seams", description="Objects cut at seams")


def show_cleaning(rows: Sequence[dict[str, Any]], *, freed: int, dry_run: bool) -> None:
    """What housekeeping found, and what it freed."""
    table = [{**row, "age_days": round(row["age_days"], 1)} for row in rows]
    would = "would be " if dry_run else ""
    create_table_artifact(table, key="cleaned", description=f"{freed / 2**20:.1f} MiB {would}freed")
