"""What an atlas run leaves in Prefect's UI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect.artifacts import create_table_artifact

if TYPE_CHECKING:
    from cytopave.engine.atlas.report import AtlasReport


def show_atlas(report: AtlasReport) -> None:
    """The steps with their times, and what came of them."""
    clusters = f", {report.n_clusters} clusters" if report.n_clusters else ""
    create_table_artifact(
        report.stage_rows(),
        key="atlas-stages",
        description=f"{report.n_cells} of {report.n_cells_read} cells{clusters}: {report.output}",
    )
