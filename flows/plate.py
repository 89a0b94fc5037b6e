"""The flow that segments all wells of a plate: one run, one task a well."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import get_run_logger
from prefect.artifacts import create_table_artifact
from prefect.runtime import flow_run
from pydantic import PositiveFloat, PositiveInt

from cytopave.blocks.cluster import resolve_cluster
from cytopave.engine.errors import PlanError, TileError
from cytopave.engine.merge import Merge
from cytopave.engine.omezarr.plate import open_plate
from cytopave.engine.planning.foreground import Mask
from cytopave.engine.planning.planner import draft_plan
from cytopave.engine.plate_report import PlateReport
from cytopave.engine.scratch.tenancy import DEFAULT_FOLDER
from cytopave.engine.segmenters import Cellpose, Segmenter
from cytopave.engine.settings import load_settings
from cytopave.engine.tiling import Tiling
from cytopave.tasks.embedded import embedded_flow, untagged
from cytopave.tasks.limits import gpu_hosts
from cytopave.tasks.plate import failed_well, segment_well
from cytopave.tasks.probe import check_gpu, worker_budget
from cytopave.tasks.progress import progress
from cytopave.tasks.report import tag_run
from cytopave.tasks.retry import retrying
from cytopave.tasks.runner import check_no_default_client, slots
from cytopave.tasks.window import run_window

if TYPE_CHECKING:
    from cytopave.engine.omezarr.plate import Plate
    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.plate_report import WellResult

_SHOWN = 5


def _run_name() -> str:
    parameters = flow_run.parameters
    return f"{Path(str(parameters['plate'])).name} -> {parameters['name']}"


@embedded_flow(name="segment-plate", flow_run_name=_run_name)
def segment_plate(
    plate: str,
    *,
    wells: list[str] | None = None,
    segmenter: Segmenter = Cellpose(),  # noqa: B008
    name: str = "cells",
    overwrite: bool = False,
    level: int = 0,
    channels: list[int | str] | None = None,
    mask: Mask | None = None,
    tiling: Tiling = Tiling(),  # noqa: B008
    merge: Merge = Merge(),  # noqa: B008
    cluster: str = "auto",
    workers: PositiveInt | None = None,
    scratch: str | None = None,
    gpu_memory_gb: PositiveFloat | None = None,
    measure: bool = True,
) -> PlateReport:
    """Segment every image of a plate, and publish a label image in each.

    Intensity ranges and thresholds that are not given come from each image by itself. Run again
    with the same parameters after a failure: finished images are not computed again.

    Args:
        plate: OME-Zarr plate: a path or URL.
        wells: Wells, such as A/1 or A1; all where not given.
        segmenter: Method and its options.
        name: Name of each image's label image.
        overwrite: Replace label images of that name.
        level: Pyramid level to segment; 0 is the finest.
        channels: Channels by number or name; all where not given.
        mask: Threshold of where to segment at all; everywhere where not given.
        tiling: Tile and halo.
        merge: When labels of two tiles are one object.
        cluster: auto, cpu, nvlink, capacity, an address (tcp://...), or a saved block's name.
        workers: Number of workers; one a GPU, or one a CPU core, where not given.
        scratch: Folder for tile files that all workers share; beside the plate where not given.
        gpu_memory_gb: GiB of the workers' GPUs, where planning cannot see them.
        measure: Measure the objects: a table beside each image's labels.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        TileError: Some images failed; all others are published.
    """
    start = time.perf_counter()
    check_no_default_client(cluster)
    settings = load_settings()
    found = open_plate(plate, wells=wells)
    assumed = gpu_memory_gb or settings.gpu_memory_gb
    request: dict[str, Any] = {
        "segmenter": segmenter,
        "name": name,
        "overwrite": overwrite,
        "level": level,
        "channels": channels,
        "mask": mask,
        "tiling": tiling,
        "merge": merge,
        "batch_seconds": settings.batch_seconds,
        "scratch": plate_scratch(found, scratch or settings.scratch),
        "measure": measure,
    }
    draft = check_plate(found, request)
    tag_run(f"label:{name}", f"method:{segmenter.kind}")
    with ExitStack() as held:
        held.enter_context(untagged())
        spec = resolve_cluster(cluster)
        check_gpu(draft.segmenter, spec)
        held.enter_context(gpu_hosts(spec, draft.segmenter, assumed_gb=assumed))
        budget, _ = worker_budget(draft.segmenter, spec, assumed_gb=assumed)
        request |= {"budget": budget, "workers": 1}
        results = _segment(found, request)
    report = PlateReport(
        plate=found.url,
        name=name,
        wells=results,
        missing=list(found.missing),
        seconds=time.perf_counter() - start,
    )
    _show(report)
    return report


def plate_scratch(plate: Plate, asked: str | Path | None) -> Path | None:
    """Folder of the tile files: as asked, else beside the plate, where no reader takes it for one.

    None for a remote plate.
    """
    if asked is not None:
        return Path(asked)
    return None if "://" in plate.url else Path(plate.url).parent / DEFAULT_FOLDER


def check_plate(plate: Plate, request: dict[str, Any]) -> Plan:
    """Refuse what cannot work before any worker starts; returns the first image's draft plan.

    Raises:
        UserError: The request cannot be carried out.
    """
    mask: Mask | None = request["mask"]
    if mask is not None and mask.image is not None:
        raise PlanError(
            "a mask image shows one field of view, and a plate has many: give a threshold"
        )
    image = plate.image(plate.wells[0].fields[0])
    # Whether a name is taken is seen image by image: labels of this very request may stay.
    return draft_plan(image, workers=1, **{**request, "overwrite": True})


def _segment(plate: Plate, request: dict[str, Any]) -> list[WellResult]:
    results: dict[str, WellResult] = {}
    task = retrying(segment_well)
    with progress("wells", len(plate.wells), key="wells") as advance:
        for well, result, error in run_window(
            lambda _: task, plate.wells, window=slots(), plate=plate.url, request=request
        ):
            if error is not None:
                result = failed_well(well, error)
            assert result is not None
            results[well.name] = result
            advance(1)
    return [results[well.name] for well in plate.wells]


def _show(report: PlateReport) -> None:
    """Leave the result in the UI and the log.

    Raises:
        TileError: Some images failed.
    """
    log = get_run_logger()
    create_table_artifact(
        report.rows(), key="wells", description=f"{report.n_objects} objects named {report.name}"
    )
    if gone := [*report.missing, *report.missing_fields]:
        log.warning("not there, although the plate's metadata name them: %s", ", ".join(gone))
    if report.failed:
        total = sum(len(well.fields) for well in report.wells)
        shown = "; ".join(f"{f.field}: {f.error}" for f in report.failed[:_SHOWN])
        raise TileError(
            f"{len(report.failed)} of {total} images failed, the others are published; the same "
            f"command tries only these again. {shown}"
        )
    log.info("%d objects in %d wells of %s", report.n_objects, len(report.wells), report.plate)
