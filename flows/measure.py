"""The flow that measures the objects of labels which are there already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from prefect import get_run_logger
from prefect.runtime import flow_run
from pydantic import Field

from cytopave.engine.scratch.tenancy import claimed, occupied
from cytopave.engine.settings import load_settings
from cytopave.engine.tables.export import check_exports
from cytopave.engine.tables.planner import is_written, plan_measurement
from cytopave.engine.tables.stages import report_table
from cytopave.tasks.embedded import embedded_flow
from cytopave.tasks.measure import measure_objects, publish_table
from cytopave.tasks.runner import check_no_default_client, make_runner

if TYPE_CHECKING:
    from cytopave.engine.tables.measurement import Measurement
    from cytopave.engine.tables.report import TableReport


def _run_name() -> str:
    parameters = flow_run.parameters
    return f"{Path(str(parameters['image'])).name}, {Path(str(parameters['labels'])).name}"


@embedded_flow(
    name="measure-cells",
    flow_run_name=_run_name,
    task_runner=make_runner(),
    persist_result=False,
    validate_parameters=True,
)
def measure_cells(
    image: Annotated[str, Field(description="OME-Zarr image or zarr array: a path or URL.")],
    *,
    labels: Annotated[
        str, Field(description="Name of a label image of the image, or a path or URL of labels.")
    ] = "cells",
    name: Annotated[
        str | None, Field(description="Name of the table; None: that of the labels.")
    ] = None,
    output: Annotated[
        str | None, Field(description="Store that gets the table; None: the labels' own.")
    ] = None,
    overwrite: Annotated[bool, Field(description="Replace a table of that name.")] = False,
    level: Annotated[
        int | None, Field(description="Pyramid level; None: the one that the labels fit.")
    ] = None,
    axes: Annotated[str | None, Field(description="Axes of a plain array, such as 'zyx'.")] = None,
    channels: Annotated[
        list[int | str] | None, Field(description="Channels by number or name; None: all.")
    ] = None,
    csv: Annotated[str | None, Field(description="Also export to this CSV file.")] = None,
    parquet: Annotated[str | None, Field(description="Also export to this Parquet file.")] = None,
    cluster: Annotated[str, Field(description="cpu, tcp://..., or a saved block's name.")] = "cpu",
    workers: Annotated[int | None, Field(description="Number of workers.", ge=1)] = None,
    scratch: Annotated[
        str | None, Field(description="Folder for partial sums that all workers share.")
    ] = None,
    keep_scratch: Annotated[bool, Field(description="Keep the partial sums.")] = False,
) -> TableReport:
    """Measure every object of a label image and publish one table.

    Run again with the same parameters after a failure: finished parts are not read again. Where the
    very table is there and only files are asked for, nothing is measured.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        CorruptError: A chunk is truncated or damaged.
    """
    check_no_default_client(cluster)
    wanted = {"csv": csv, "parquet": parquet}
    files = check_exports(
        {kind: Path(path) for kind, path in wanted.items() if path}, overwrite=overwrite
    )
    folder = Path(scratch) if scratch else load_settings().scratch
    measurement = plan_measurement(
        image,
        labels=labels,
        name=name,
        output=output,
        overwrite=overwrite,
        level=level,
        axes=axes,
        channels=channels,
        scratch=folder,
    )
    measured = not (files and is_written(measurement))
    if measured:
        _measure(measurement, keep_scratch=keep_scratch)
    report = report_table(measurement, files, measured=measured)
    get_run_logger().info("%d objects in %s", report.n_objects, report.table_path)
    return report


def _measure(measurement: Measurement, *, keep_scratch: bool) -> None:
    target = measurement.target
    target.check()
    with (
        occupied(measurement.root, remove=not keep_scratch),
        claimed(measurement.root, target.published),
    ):
        measure_objects(measurement)
        publish_table(target)
