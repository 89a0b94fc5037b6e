"""The tasks that relate two label images, and how a flow runs them."""

from __future__ import annotations

from prefect import task

from cytopave.engine.relations import stages
from cytopave.engine.relations.relation import Relation
from cytopave.tasks.progress import progress
from cytopave.tasks.provenance import provenance
from cytopave.tasks.window import run_all


@task(name="count_overlaps", persist_result=False, task_run_name="count overlaps, group {group}")
def count_overlaps(group: int, *, path: str) -> int:
    """Count common pixels in a group of regions; returns the number of regions that it read.

    Each region's are a committed file: what an earlier attempt finished is not read again.
    """
    return stages.count_group(Relation.load(path), group)


@task(name="write_columns", persist_result=False, task_run_name="write columns")
def write_columns(path: str) -> int:
    """Find the parents and write the columns of both tables; returns the number of children.

    Raises:
        StaleTableError: Labels or tables changed meanwhile.
        OutputError: A table cannot be written.
    """
    return stages.write_columns(Relation.load(path), provenance())


def relate_objects(relation: Relation) -> None:
    """Run the tasks of a relation in the running flow."""
    path = relation.save()
    n = len(relation.groups)
    with progress("count overlaps", n, key="count-overlaps") as advance:
        run_all(count_overlaps, range(n), advance=advance, path=path)
    write_columns.submit(path).result()
