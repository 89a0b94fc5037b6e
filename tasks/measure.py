"""The tasks that measure objects and write their table, and how a flow runs them."""

from __future__ import annotations

from prefect import task

from cytopave.engine.tables import stages
from cytopave.engine.tables.measurement import Measurement
from cytopave.engine.tables.target import TableTarget
from cytopave.tasks.progress import progress
from cytopave.tasks.provenance import provenance
from cytopave.tasks.window import run_all


@task(name="measure_cells", persist_result=False, task_run_name="measure cells, group {group}")
def measure_group(group: int, *, path: str) -> int:
    """Take the sums of a group of regions; returns the number of regions that it measured.

    Each region's are a committed file: what an earlier attempt finished is not read again.
    """
    return stages.measure_group(Measurement.load(path), group)


@task(name="write_table", persist_result=False, task_run_name="write table")
def write_table(path: str) -> int:
    """Join the sums and write the table, not yet visible; returns the number of rows.

    Raises:
        StaleTableError: The labels changed meanwhile.
        OutputError: The table cannot be written.
    """
    return stages.write_table(Measurement.load(path), provenance())


@task(name="publish_table", persist_result=False, task_run_name="publish table")
def publish_table(target: TableTarget) -> str:
    """Make the table visible; returns its URL.

    Raises:
        OutputError: The name was taken meanwhile.
    """
    target.publish()
    return str(target.published)


def measure_objects(measurement: Measurement) -> tuple[int, int]:
    """Run the tasks of a measurement in the running flow, up to publication.

    Returns:
        The number of tasks, and of objects.
    """
    path = measurement.save()
    n = len(measurement.groups)
    with progress("measure cells", n, key="measure-cells") as advance:
        run_all(measure_group, range(n), advance=advance, path=path)
    return n + 1, write_table.submit(path).result()
