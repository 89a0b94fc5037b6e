"""What a run leaves in Prefect's UI: the plan, the stages, the seams, the tiles that failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from cytopave.engine.boxes import Box
from cytopave.tasks.failures import retry_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cytopave.engine.gpu.vram import Gpu
    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.report import Missing, Report

_GIB = 2**30


def tag_run(*tags: str) -> None:
    """Add tags to the running flow run, by which the UI finds runs that belong together."""
    run_id = flow_run.id
    if run_id is None:
        return
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(run_id), tags={*flow_run.tags, *tags})


def show_plan(plan: Plan, gpus: Sequence[Gpu]) -> None:
    """The plan with its memory figures."""
    parent = flow_run.parent_flow_run_id
    started_by = f"[another run]({url_for('flow-run', parent)})" if parent else None
    create_markdown_artifact(
        plan_page(plan, gpus, started_by=started_by), key="plan", description="What will be done"
    )


def plan_page(plan: Plan, gpus: Sequence[Gpu], *, started_by: str | None = None) -> str:
    """The plan as Markdown.

    Args:
        plan: The run.
        gpus: The GPU of each worker, if the method uses them.
        started_by: Link to the run that started this one.
    """
    grid, image = plan.grid, plan.image
    method = plan.segmenter.model_dump(
        exclude_defaults=True, exclude={"kind", "network", "sha256", "source_sha256"}
    )
    facts = {
        "Image": f"`{image.url}`, level {image.level}, {_by(image.shape)} ({image.axes})",
        "Labels": f"`{plan.target.published}`",
        "Method": plan.segmenter.title,
        "Tiles": f"{len(grid)} of {_by(grid.largest_core)} pixels, halo {_by(grid.halo)}, in "
        f"{len(plan.batches)} batches",
        "Memory": f"{_size(plan.memory.need)} a tile, of {_size(plan.memory.budget)}: "
        f"{plan.memory.source}",
        "Tile files": f"`{plan.root}`",
    }
    if started_by:
        facts["Started by"] = started_by
    lines = ["| | |", "| --- | --- |", *(f"| {name} | {fact} |" for name, fact in facts.items())]
    if gpus:
        lines += ["", "| worker | GPU | VRAM | free | for a tile |", "| --- " * 5 + "|"]
        lines += [
            f"| {i} | {gpu.name or gpu.note} | {_size(gpu.total_bytes)} | {_size(gpu.free_bytes)} "
            f"| {_size(gpu.budget_bytes)} |"
            for i, gpu in enumerate(gpus)
        ]
    # A list, which the page wraps: a table with a long line in it is cut off.
    lines += ["", *(f"- {name}: {value}" for name, value in method.items())]
    return "\n".join(lines)


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
    found = f"{report.n_objects} objects, of which {report.n_joined} lie on more than one tile"
    create_table_artifact(report.stage_rows(), key="stages", description=f"Throughput. {found}")
    if report.seams.axes:
        create_table_artifact(
            seam_table(report), key="seams", description="Objects that end exactly at tiles' seams"
        )
    if report.missing:
        create_table_artifact(
            report.missing_rows(), key="missing-area", description=report.missing_note()
        )


def seam_table(report: Report) -> list[dict[str, Any]]:
    """The seams with a column an axis: a column a count is wider than the UI's page."""
    axes = report.seam_rows()
    counts = [name for name in axes[0] if name != "axis"]
    return [{"count": n, **{f"axis {row['axis']}": row[n] for row in axes}} for n in counts]


def show_cleaning(rows: Sequence[dict[str, Any]], *, freed: int, dry_run: bool) -> None:
    """What housekeeping found, and what it freed."""
    table = [{**row, "age_days": round(row["age_days"], 1)} for row in rows]
    would = "would be " if dry_run else ""
    create_table_artifact(table, key="cleaned", description=f"{freed / 2**20:.1f} MiB {would}freed")


def _by(lengths: Sequence[int]) -> str:
    return " x ".join(map(str, lengths))


def _size(size: int) -> str:
    return f"{size / _GIB:.1f} GiB" if size >= _GIB else f"{size / 2**20:.1f} MiB"
