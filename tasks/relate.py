"""The tasks that relate two label images, and how a flow runs them."""

from __future__ import annotations

import datetime
import importlib.metadata

from prefect import task

from cytopave.engine.relations import stages
from cytopave.engine.relations.relation import Relation
from cytopave.tasks.progress import progress
from cytopave.tasks.runner import slots
from cytopave.tasks.window import run_window


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
    provenance = {
        "version": importlib.metadata.version("cytopave"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return stages.write_columns(Relation.load(path), provenance)


def relate_objects(relation: Relation) -> None:
    """Run the tasks of a relation in the running flow."""
    path = relation.save()
    n = len(relation.groups)
    with progress("count overlaps", n, key="count-overlaps") as advance:
        for _, _, error in run_window(
            lambda _: count_overlaps, range(n), window=slots(), path=path
        ):
            if error is not None:
                raise error
            advance(1)
    write_columns.submit(path).result()
