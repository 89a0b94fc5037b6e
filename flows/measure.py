"""The flow that measures the objects of labels which are there already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prefect import get_run_logger
from prefect.runtime import flow_run
from pydantic import PositiveInt

from cytopave.blocks.images import local_path
from cytopave.engine.scratch.tenancy import claimed, occupied
from cytopave.engine.settings import load_settings
from cytopave.engine.tables.export import check_exports
from cytopave.engine.tables.planner import check_place, is_written, plan_measurement
from cytopave.engine.tables.report import TableReport
from cytopave.engine.tables.stages import report_table
from cytopave.tasks.embedded import embedded_flow, untagged
from cytopave.tasks.measure import measure_objects, publish_table
from cytopave.tasks.runner import check_no_default_client

if TYPE_CHECKING:
    from cytopave.engine.tables.measurement import Measurement


def _run_name() -> str:
    parameters = flow_run.parameters
    return f"{Path(str(parameters['image'])).name}, {Path(str(parameters['labels'])).name}"


@embedded_flow(name="measure-cells", flow_run_name=_run_name)
def measure_cells(
    image: str,
    *,
    labels: str = "cells",
    name: str | None = None,
    output: str | None = None,
    overwrite: bool = False,
    level: int | None = None,
    axes: str | None = None,
    channels: list[int | str] | None = None,
    csv: str | None = None,
    parquet: str | None = None,
    cluster: str = "cpu",
    workers: PositiveInt | None = None,
    scratch: str | None = None,
    keep_scratch: bool = False,
) -> TableReport:
    """Measure every object of a label image and publish one table.

    Run again with the same parameters after a failure: finished parts are not read again. Where the
    very table is there and only files are asked for, nothing is measured.

    Args:
        image: OME-Zarr image or zarr array: a path or URL.
        labels: Name of a label image of the image, or a path or URL of labels.
        name: Name of the table; that of the labels where not given.
        output: Store that gets the table; the labels' own where not given.
        overwrite: Replace a table of that name.
        level: Pyramid level; the one that the labels fit where not given.
        axes: Axes of a plain array, such as zyx.
        channels: Channels by number or name; all where not given.
        csv: Also export to this CSV file.
        parquet: Also export to this Parquet file.
        cluster: cpu, an address (tcp://...), or a saved block's name.
        workers: Number of workers.
        scratch: Folder for partial sums that all workers share.
        keep_scratch: Keep the partial sums.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        CorruptError: A chunk is truncated or damaged.
    """
    check_no_default_client(cluster)
    image, labels = local_path(image) or image, local_path(labels) or labels
    wanted = {"csv": csv, "parquet": parquet}
    files = check_exports(
        {kind: Path(path) for kind, path in wanted.items() if path}, overwrite=overwrite
    )
    folder = Path(scratch) if scratch else load_settings().scratch
    measurement = plan_measurement(
        image,
        labels=labels,
        name=name,
        output=local_path(output),
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
    check_place(measurement)
    with (
        untagged(),
        occupied(measurement.root, remove=not keep_scratch),
        claimed(measurement.root, target.published, noun="table"),
    ):
        measure_objects(measurement)
        publish_table(target)
