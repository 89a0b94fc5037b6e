"""The flow that segments one image: probe, plan, segment, merge, publish, report."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from prefect import get_run_logger
from prefect.runtime import flow_run
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from cytopave.blocks.cluster import resolve_cluster
from cytopave.blocks.images import local_path
from cytopave.blocks.models import with_saved_model
from cytopave.blocks.results import check_results
from cytopave.engine.errors import LabelError, SegmenterError
from cytopave.engine.merge import Merge
from cytopave.engine.overtime import forget
from cytopave.engine.planning.foreground import Mask
from cytopave.engine.planning.planner import draft_plan
from cytopave.engine.report import Missing, Report
from cytopave.engine.scratch.tenancy import claimed, occupied
from cytopave.engine.segmenters import Cellpose, Segmenter
from cytopave.engine.settings import load_settings
from cytopave.engine.tables.planner import plan_run
from cytopave.engine.tiling import Tiling
from cytopave.tasks.embedded import embedded_flow, untagged
from cytopave.tasks.failures import completing_command, failed_run, missing_tiles
from cytopave.tasks.foreground import tiles_with_foreground
from cytopave.tasks.limits import gpu_hosts
from cytopave.tasks.measure import measure_objects, publish_table
from cytopave.tasks.merge import (
    resolve_labels,
    scan_groups,
    scan_seams,
    write_groups,
    write_labels,
)
from cytopave.tasks.picture import show_picture
from cytopave.tasks.plan import plan_tiles
from cytopave.tasks.probe import check_gpu, worker_budget
from cytopave.tasks.progress import progress
from cytopave.tasks.publish import count_seams, publish_labels
from cytopave.tasks.report import show_failures, show_plan, show_report, tag_run
from cytopave.tasks.runner import check_no_default_client, neighbours, slots
from cytopave.tasks.segment import segment_task
from cytopave.tasks.stages import Clock
from cytopave.tasks.window import run_all, run_window

if TYPE_CHECKING:
    from cytopave.blocks import Cluster
    from cytopave.engine.gpu.vram import Gpu
    from cytopave.engine.planning.plan import Plan
    from cytopave.engine.tables.target import TableTarget


def _run_name() -> str:
    parameters = flow_run.parameters
    return f"{Path(str(parameters['image'])).name} -> {parameters['name']}"


@embedded_flow(name="segment-image", flow_run_name=_run_name)
def segment_image(
    image: str,
    *,
    segmenter: Segmenter = Cellpose(),  # noqa: B008
    name: str = "cells",
    output: str | None = None,
    overwrite: bool = False,
    level: int = 0,
    axes: str | None = None,
    channels: list[int | str] | None = None,
    mask: Mask | None = None,
    tiling: Tiling = Tiling(),  # noqa: B008
    merge: Merge = Merge(),  # noqa: B008
    cluster: str = "auto",
    workers: PositiveInt | None = None,
    scratch: str | None = None,
    gpu_memory_gb: PositiveFloat | None = None,
    keep_scratch: bool = False,
    measure: bool = True,
    allow_failed: NonNegativeInt = 0,
) -> Report:
    """Segment an image of any size and publish one label image.

    Run again with the same parameters after a failure: finished tiles are not computed again.
    With ``allow_failed``, what cannot be had is left out: the report and the label image's
    attributes name each missing tile, and the others are kept for a run that overwrites.

    Args:
        image: OME-Zarr image or zarr array: a path or URL.
        segmenter: Method and its options.
        name: Name of the label image.
        output: Store that gets the labels; the image's own where not given.
        overwrite: Replace a label image of that name.
        level: Pyramid level to segment; 0 is the finest.
        axes: Axes of a plain array, such as zyx.
        channels: Channels by number or name; all where not given.
        mask: Where to segment at all: a mask image or a threshold; everywhere where not given.
        tiling: Tile and halo.
        merge: When labels of two tiles are one object.
        cluster: auto, cpu, nvlink, capacity, an address (tcp://...), or a saved block's name.
        workers: Number of workers; one a GPU, or one a CPU core, where not given.
        scratch: Folder for tile files that all workers share; beside the labels where not given.
        gpu_memory_gb: GiB of the workers' GPUs, where planning cannot see them.
        keep_scratch: Keep the tile files after publication.
        measure: Measure the objects: a table beside the labels.
        allow_failed: Publish although so many batches of tiles failed.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        LabelError: The segmenter's function returned something that is not a label image.
        SegmenterError: A worker cannot do what was planned, such as load a network.
        TileError: Some tiles failed; all others are finished and kept.
        OutOfMemoryError: The GPU's memory did not suffice, however often it was tried.
    """
    settings = load_settings()
    check_results(settings.results)
    check_no_default_client(cluster)
    image, output = local_path(image) or image, local_path(output)
    segmenter, chosen = with_saved_model(segmenter, channels)
    clock = Clock()
    request: dict[str, Any] = {
        "segmenter": segmenter,
        "tiling": tiling,
        "merge": merge,
        "batch_seconds": settings.batch_seconds,
        "name": name,
        "output": output,
        "overwrite": overwrite,
        "level": level,
        "axes": axes,
        "channels": chosen,
        "mask": mask,
        "scratch": Path(scratch) if scratch else settings.scratch,
        "measure": measure,
    }
    tag_run(f"label:{name}", f"method:{segmenter.kind}")
    with ExitStack() as held:
        held.enter_context(untagged())
        with clock.stage("plan") as done:
            gpus_gb = gpu_memory_gb or settings.gpu_memory_gb
            spec = resolve_cluster(cluster)
            plan, gpus = _plan(image, request, spec, held, workers=workers, assumed_gb=gpus_gb)
            done(units=len(plan.grid), unit="tiles")
        show_plan(plan, gpus)
        stay = held.enter_context(occupied(plan.root, remove=not keep_scratch))
        held.enter_context(claimed(plan.root, plan.target.published))
        path = plan.save()
        wanted = _foreground(plan, path, clock)
        reused, failures = _segment(plan, path, clock, wanted)
        if missing := _leave_out(plan, failures, allowed=allow_failed):
            plan = plan.without(m.tile for m in missing)
            path = plan.save()
            stay.remove = False
        counts = _merge(plan, path, clock)
        table = _measure(plan, clock) if measure else None
        facts = {**counts, "n_reused": reused, "n_skipped": int((~wanted).sum())}
        report = _publish(plan, path, clock, facts, missing, table)
        show_picture(path)
    show_report(report)
    return report


def _plan(
    image: str,
    request: dict[str, Any],
    cluster: Cluster,
    held: ExitStack,
    *,
    workers: int | None,
    assumed_gb: float | None,
) -> tuple[Plan, list[Gpu]]:
    """Plan for the workers that come, and their GPUs, which are held until the end of the run.

    What cannot be carried out is refused before any worker is started.
    """
    at_least = None if cluster.elsewhere else workers or cluster.workers or 1
    draft = draft_plan(image, workers=at_least, **request)
    check_gpu(draft.segmenter, cluster)
    held.enter_context(gpu_hosts(cluster, draft.segmenter, assumed_gb=assumed_gb))
    # What was found out about the whole image need not be found out again.
    request = request | draft.settled
    there = slots()
    budget, gpus = worker_budget(request["segmenter"], cluster, assumed_gb=assumed_gb)
    return plan_tiles(image, budget=budget, workers=there, request=request), gpus


def _foreground(plan: Plan, path: str, clock: Clock) -> np.ndarray:
    """Which tiles are to be segmented, ``(tiles,)`` bool; the others are finished by now."""
    if plan.foreground is None:
        return np.ones(len(plan.grid), bool)
    with clock.stage("foreground") as done:
        wanted = tiles_with_foreground(plan, path)
        done(units=len(wanted) - int(wanted.sum()), unit="tiles skipped")
    return wanted


def _segment(
    plan: Plan, path: str, clock: Clock, wanted: np.ndarray
) -> tuple[int, dict[int, Exception]]:
    """Segment all batches that hold wanted tiles.

    Returns:
        The number of tiles that were finished before, and what ended each batch that failed.
    """
    failures: dict[int, Exception] = {}
    # Counted beforehand: a batch whose result is persisted tells of the run that computed it.
    reused = sum(bool(wanted[i]) for i in plan.scratch.finished())
    sizes = {b: int(wanted[list(tiles)].sum()) for b, tiles in enumerate(plan.batches)}
    batches = [batch for batch, size in sizes.items() if size]
    total = sum(sizes.values())
    shared = {"plan_path": path, "tile_seconds": load_settings().tile_timeout_seconds}
    forget(plan.root)
    with clock.stage("segment") as done, progress("tiles", total, key="tiles") as advance:
        outcomes = run_window(lambda b: segment_task(plan, b), batches, window=slots(), **shared)
        with closing(outcomes):
            for batch, _, error in outcomes:
                if isinstance(error, LabelError | SegmenterError):
                    raise error  # every tile would end so
                if error is not None:
                    failures[batch] = error
                advance(sizes[batch])
        done(tasks=len(batches), units=total - reused, unit="tiles")
    return reused, failures


def _leave_out(plan: Plan, failures: dict[int, Exception], *, allowed: int) -> list[Missing]:
    """What is missing after some batches failed, if so many may fail."""
    if not failures:
        return []
    missing = missing_tiles(plan, failures)
    show_failures(missing, plan)
    if len(failures) > allowed or len(missing) == len(plan.grid):
        raise failed_run(plan, failures)
    return missing


def _merge(plan: Plan, path: str, clock: Clock) -> dict[str, int]:
    """Scan seams, resolve, write; returns what the report counts."""
    tasks = _merge_tasks()
    shared = {"plan_path": path, "tasks": tasks, "neighbours": neighbours()}
    with clock.stage("scan seams") as done:
        n = len(scan_groups(plan, tasks=tasks))
        links = sum(_all(scan_seams, n, shared))
        done(tasks=n, units=links, unit="links")
    with clock.stage("resolve") as done:
        counts = resolve_labels.submit(path, tasks=tasks).result()
        done(units=counts["n_objects"], unit="objects")
    with clock.stage("write") as done:
        n = len(write_groups(plan, tasks=tasks))
        pixels = sum(_all(write_labels, n, shared))
        done(tasks=n, units=pixels, unit="pixels")
    return counts


def _merge_tasks() -> int:
    """Tasks of each stage: two a slot even out their lengths, where there is more than one."""
    return 2 * slots() if slots() > 1 else 1


def _all(task: Any, n: int, parameters: dict[str, Any]) -> list[int]:
    with progress(task.name.replace("_", " "), n, key=task.name.replace("_", "-")) as advance:
        return run_all(task, range(n), advance=advance, **parameters)


def _measure(plan: Plan, clock: Clock) -> TableTarget:
    """Measure the objects before anything is published: a run that is killed here goes on here."""
    with clock.stage("measure") as done:
        measurement = plan_run(plan)
        tasks, rows = measure_objects(measurement)
        done(tasks=tasks, units=rows, unit="objects")
    return measurement.target


def _publish(
    plan: Plan,
    path: str,
    clock: Clock,
    facts: dict[str, Any],
    missing: list[Missing],
    table: TableTarget | None,
) -> Report:
    with clock.stage("count seams"):
        seams = count_seams(path, tasks=_merge_tasks())
    report = Report(
        image=plan.image.url,
        labels_path=str(plan.target.published),
        table_path=str(table.published) if table else None,
        n_tiles=len(plan.grid),
        digest=plan.digest,
        stages=clock.stages,
        seams=seams,
        missing=missing,
        retry=completing_command() if missing else "",
        **facts,
    )
    with clock.stage("publish"):
        publish_labels(path, report=report)
        if table:
            publish_table(table)
    get_run_logger().info("%d objects in %s", report.n_objects, report.labels_path)
    if missing:
        get_run_logger().warning("incomplete: %s", report.missing_note())
    return report.model_copy(update={"stages": clock.stages})
