"""The tasks that convert images, and how a flow runs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect import task

from cytopave.engine.convert import write
from cytopave.engine.convert.conversion import Conversion
from cytopave.tasks.provenance import provenance
from cytopave.tasks.runner import slots
from cytopave.tasks.window import run_all, run_window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@task(name="convert_image", persist_result=False, task_run_name="convert {conversion.store.name}")
def convert_image(conversion: Conversion) -> None:
    """Make a store from beginning to end: for images that are no work for several workers.

    Raises:
        CorruptError: The source is truncated or damaged.
        OutputError: The store cannot be written.
    """
    write.convert_whole(conversion, provenance())


@task(name="convert_part", persist_result=False, task_run_name="convert part {group}")
def convert_part(group: int, *, conversion: Conversion) -> int:
    """Write a group of parts; returns the number of pixels read.

    What an earlier attempt wrote is not read again.
    """
    return write.write_group_of_parts(conversion, group)


@task(name="publish_image", persist_result=False)
def publish_image(conversion: Conversion) -> str:
    """Write the coarsest levels and give the store its name; returns its path.

    Raises:
        OutputError: The name was taken meanwhile.
    """
    write.publish(conversion, provenance())
    return str(conversion.store)


def convert_at_once(
    conversions: Sequence[Conversion], advance: Callable[[int], None]
) -> dict[Path, Exception]:
    """Convert images side by side in the running flow, a task each.

    Returns:
        What ended the tasks that failed, by the store that is not there.
    """
    if not conversions:
        return {}
    failed = {}
    for conversion, _, error in run_window(lambda _: convert_image, conversions, window=slots()):
        if error is not None:
            failed[conversion.store] = error
        advance(1)
    return failed


def convert_by_parts(conversion: Conversion, advance: Callable[[int], None]) -> None:
    """Convert an image by many tasks of the running flow.

    Raises:
        CytopaveError: As the tasks raise it.
    """
    groups = range(len(conversion.groups))
    with write.working(conversion):
        run_all(convert_part, groups, advance=advance, conversion=conversion)
        publish_image.submit(conversion).result()
