"""The flow that converts files of microscopes' formats to OME-Zarr."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from prefect import get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.runtime import flow_run
from pydantic import PositiveFloat, PositiveInt

from cytopave.engine.convert.planner import Wanted, plan_conversions
from cytopave.engine.convert.report import ConvertReport, convert_report, failed_conversions
from cytopave.tasks.convert import convert_at_once, convert_by_parts
from cytopave.tasks.embedded import embedded_flow, untagged
from cytopave.tasks.progress import progress
from cytopave.tasks.runner import check_no_default_client

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cytopave.engine.convert.conversion import Conversion


def _run_name() -> str:
    sources = flow_run.parameters["sources"]
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    return f"{Path(str(sources[0])).name}{more}"


@embedded_flow(name="convert-images", flow_run_name=_run_name)
def convert_images(
    sources: list[str],
    *,
    output: str | None = None,
    match: str = "*",
    scene: int | str | None = None,
    axes: str | None = None,
    pixel_size: list[PositiveFloat] | None = None,
    labels: bool = False,
    overwrite: bool = False,
    cluster: str = "cpu",
    workers: PositiveInt | None = None,
) -> ConvertReport:
    """Convert files of images, or all in a folder, to OME-Zarr: each image to a store of its own.

    Run again with the same parameters after a failure: what is there is not made again.

    Args:
        sources: Files, and folders that are searched throughout.
        output: Folder of the stores, or the path of the only one, ending in .zarr; beside the
            files where not given.
        match: Shell pattern for the path of a file below a folder.
        scene: The only image to take of each file, by number or name; all where not given.
        axes: Letters of the axes in the file's order, for TIFF files that do not say.
        pixel_size: Micrometers in place of what the file says: (Y and X), (Y, X), or (Z, Y, X).
        labels: Pixels are ids: coarser levels take one of them instead of the mean.
        overwrite: Replace stores that are there.
        cluster: cpu, an address (tcp://...), or a saved block's name.
        workers: Number of workers.

    Raises:
        UserError: The request cannot be carried out; nothing has been written.
        ConvertError: Some files failed; the others are converted.
    """
    check_no_default_client(cluster)
    wanted = Wanted(
        scene=scene,
        axes=axes,
        pixel_size=tuple(pixel_size) if pixel_size else None,
        labels=labels,
        overwrite=overwrite,
    )
    planned = plan_conversions(sources, wanted, output=output, match=match)
    failed: dict[Path, Exception] = {Path(name): error for name, error in planned.failed.items()}
    parts = sum(len(c.groups) for c in planned.todo)
    with progress("convert", parts, key="convert-images") as advance, untagged():
        failed |= _convert(planned.todo, advance)
    report = convert_report(planned, failed)
    create_table_artifact(report.rows(), key="converted", description="Images and their stores")
    get_run_logger().info("%s", report.summary)
    if failed:
        raise failed_conversions(report, failed)
    return report


def _convert(todo: Sequence[Conversion], advance: Callable[[int], None]) -> dict[Path, Exception]:
    """Convert small images side by side, and each large one by all workers; what failed."""
    failed = convert_at_once([c for c in todo if len(c.groups) == 1], advance)
    for conversion in todo:
        if len(conversion.groups) == 1:
            continue
        try:
            convert_by_parts(conversion, advance)
        except Exception as error:  # noqa: BLE001  whatever it was is this image's outcome
            failed[conversion.store] = error
    return failed
