"""``cytopave measure``: the flow ``measure_cells``, run in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from cytopave.deployments.cli.console import write_facts, write_json
from cytopave.deployments.cli.options import Common, Flag, Whole, parse_channels
from cytopave.deployments.cli.saved import look_up_stores
from cytopave.deployments.cli.work import Resumable

if TYPE_CHECKING:
    from cytopave.engine.tables.report import TableReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Measuring:
    """Which labels are measured, and where the table goes."""

    labels: str = "cells"
    """Name of a label image of the image; or path or URL of labels from elsewhere."""
    name: str | None = None
    """Name of the table; that of the labels where not given."""
    csv: str | None = None
    """Also write the table to this CSV file; of a table that is there, only do this."""
    parquet: str | None = None
    """The same as Parquet (extra cytopave[parquet])."""
    level: Whole | None = None
    """Level of the image's pyramid; the one that the labels fit where not given."""
    axes: str | None = None
    """Axes of a plain zarr array, such as zyx."""
    channels: str | None = None
    """Channels by number or name, such as 0,1 or DAPI (or a JSON list); all where not given."""
    output: str | None = None
    """Store that gets tables/NAME; the labels' own where not given."""
    overwrite: Flag = False
    """Replace a table of that name, and files that exist."""


def measure(
    image: str,
    /,
    *,
    measuring: Measuring = Measuring(),
    work: Resumable = Resumable(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> None:
    """Measure the objects of a label image, and publish one table.

    Interrupted or failed, the same command resumes: finished parts are not read again.

    Args:
        image: OME-Zarr image or zarr array: a path or URL.
        measuring: Which labels are measured, and where the table goes.
        work: Who does it, and where it is kept meanwhile.
        common: Options of every command.
    """
    made = _run(image, measuring, work, common)
    if common.json:
        write_json(made.model_dump(mode="json"))
        return
    what = "objects" if made.measured else "objects, measured before"
    write_facts(
        {
            what: made.n_objects,
            "labels": made.labels_path,
            "table": made.table_path,
            **made.files,
        }
    )


def _run(image: str, measuring: Measuring, work: Resumable, common: Common) -> TableReport:
    """Check the request, then run the flow in this process, on an API and workers of its own.

    Raises:
        CytopaveError: As the flow raises it.
    """
    from cytopave.engine.tables.export import check_exports
    from cytopave.engine.tables.planner import check_place, is_written, plan_measurement
    from cytopave.engine.tables.stages import report_table

    look_up_stores(verbose=common.verbose)
    work.check()
    parameters = {**vars(measuring), "channels": parse_channels(measuring.channels)}
    asked = {kind: parameters[kind] for kind in ("csv", "parquet")}
    files = check_exports(
        {kind: Path(path) for kind, path in asked.items() if path}, overwrite=measuring.overwrite
    )
    measurement = plan_measurement(
        image,
        scratch=work.folder,
        **{name: value for name, value in parameters.items() if name not in asked},
    )
    if files and is_written(measurement):
        return report_table(measurement, files, measured=False)
    check_place(measurement)
    work.begin(verbose=common.verbose)
    from cytopave.flows import measure_cells

    made: TableReport = measure_cells(image, **parameters, **vars(work))
    return made
