"""The flow that segments one image: probe, plan, segment, merge, publish, report."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from distributed import KilledWorker
from prefect import get_run_logger
from prefect.runtime import flow_run
from pydantic import Field

from cytopave.blocks.cluster import resolve_cluster
from cytopave.engine.errors import LabelError, TileError
from cytopave.engine.merge import Merge
from cytopave.engine.planning.budget import gpu_budget, host_budget
from cytopave.engine.planning.planner import draft_plan
from cytopave.engine.report import Report, Stage
from cytopave.engine.scratch.tenancy import claimed, occupied
from cytopave.engine.segmenters import Cellpose, Segmenter
from cytopave.engine.settings import load_settings
from cytopave.engine.tiling import Tiling
from cytopave.tasks.embedded import embedded_flow
from cytopave.tasks.merge import (
    resolve_labels,
    scan_groups,
    scan_seams,
    write_groups,
    write_labels,
)
from cytopave.tasks.plan import plan_tiles
from cytopave.tasks.probe import probe_workers
from cytopave.tasks.progress import progress
from cytopave.tasks.publish import count_seams, publish_labels
from cytopave.tasks.report import show_failures, show_plan, show_report
from cytopave.tasks.runner import check_no_default_client, make_runner, neighbours, slots
from cytopave.tasks.segment import segment_task
from cytopave.tasks.window import run_window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cytopave.engine.planning.plan import Plan


def _run_name() -> str:
    parameters = flow_run.parameters
    return f"{Path(str(parameters['image'])).name} -> {parameters['name']}"


@embedded_flow(
    name="segment-image",
    flow_run_name=_run_name,
    task_runner=make_runner(),
    persist_result=False,
    validate_parameters=True,
)
def segment_image(
    image: Annotated[str, Field(description="OME-Zarr image or zarr array: a path or URL.")],
    *,
    segmenter: Annotated[Segmenter, Field(description="Method and its options.")] = Cellpose(),  # noqa: B008
    name: Annotated[str, Field(description="Name of the label image.")] = "cells",
    output: Annotated[
        str | None, Field(description="Store that gets the labels; None: the image's own.")
    ] = None,
    overwrite: Annotated[bool, Field(description="Replace a label image of that name.")] = False,
    level: Annotated[int, Field(description="Pyramid level to segment; 0 is the finest.")] = 0,
    axes: Annotated[str | None, Field(description="Axes of a plain array, such as 'zyx'.")] = None,
    channels: Annotated[
        list[int | str] | None, Field(description="Channels by number or name; None: all.")
    ] = None,
    tiling: Annotated[Tiling, Field(description="Tile and halo.")] = Tiling(),  # noqa: B008
    merge: Annotated[Merge, Field(description="When two labels are one object.")] = Merge(),  # noqa: B008
    cluster: Annotated[
        str, Field(description="auto, cpu, nvlink, capacity, tcp://..., or a saved block's name.")
    ] = "auto",
    workers: Annotated[int | None, Field(description="Number of workers.", ge=1)] = None,
    scratch: Annotated[
        str | None, Field(description="Folder for tile files that all workers share.")
    ] = None,
    gpu_memory_gb: Annotated[
        float | None, Field(description="GiB of the GPUs where planning cannot see them.", gt=0)
    ] = None,
    keep_scratch: Annotated[
        bool, Field(description="Keep the tile files after publication.")
    ] = False,
) -> Report:
    """Segment an image of any size and publish one label image.

    Run again with the same parameters after a failure: finished tiles are not computed again.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        LabelError: The segmenter's function returned something that is not a label image.
        TileError: Some tiles failed; all others are finished and kept.
        OutOfMemoryError: The GPU's memory did not suffice, however often it was tried.
    """
    settings = load_settings()
    check_no_default_client(cluster)
    clock = _Clock()
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
        "channels": channels,
        "scratch": Path(scratch) if scratch else settings.scratch,
    }
    with clock.stage("plan") as done:
        at_least = _local_workers(cluster, workers)
        plan = _plan(image, request, at_least, gpu_memory_gb or settings.gpu_memory_gb)
        done(units=len(plan.grid), unit="tiles")
    show_plan(plan)
    with occupied(plan.root, remove=not keep_scratch), claimed(plan.root, plan.target.published):
        path = plan.save()
        reused = _segment(plan, path, clock)
        counts = _merge(plan, path, clock)
        report = _publish(plan, path, clock, {**counts, "n_reused": reused})
    show_report(report)
    get_run_logger().info("%d objects in %s", report.n_objects, report.labels_path)
    return report


def _local_workers(cluster: str, workers: int | None) -> int:
    """How many workers will share this host's memory at least; those elsewhere do not."""
    spec = resolve_cluster(cluster)
    elsewhere = spec.address is not None or spec.cluster_class is not None
    return 1 if elsewhere else workers or spec.workers or 1


def _plan(image: str, request: dict[str, Any], at_least: int, assumed_gb: float | None) -> Plan:
    """Refuse bad requests before any worker starts; then plan for the workers that came."""
    draft = draft_plan(image, workers=at_least, **request)
    # What was found out about the whole image need not be found out again.
    request = {**request, "segmenter": draft.segmenter}
    workers = slots()
    gpus = probe_workers(assumed_gb=assumed_gb) if draft.segmenter.uses_gpu else []
    budget = gpu_budget(gpus, assumed_gb=assumed_gb) if gpus else host_budget(workers)
    return plan_tiles(image, budget=budget, workers=workers, request=request)


def _segment(plan: Plan, path: str, clock: _Clock) -> int:
    """Segment all batches; returns the number of tiles that were finished before."""
    failures: dict[int, str] = {}
    # Counted beforehand: a batch whose result is persisted tells of the run that computed it.
    reused = len(plan.scratch.finished())
    batches = range(len(plan.batches))
    with clock.stage("segment") as done, progress("tiles", len(plan.grid), key="tiles") as advance:
        for batch, _, error in run_window(
            lambda b: segment_task(plan, b), batches, window=slots(), plan_path=path
        ):
            if isinstance(error, LabelError):
                raise error  # every tile would end so
            if error is not None:
                failures[batch] = _why(plan, batch, error)
            advance(len(plan.batches[batch]))
        done(tasks=len(batches), units=len(plan.grid) - reused, unit="tiles")
    if failures:
        show_failures(failures, plan)
        shown = "; ".join(list(failures.values())[:5])
        raise TileError(
            f"{len(failures)} of {len(batches)} batches failed, the others are finished and kept; "
            f"the same command tries only these again. {shown}"
        )
    return reused


def _why(plan: Plan, batch: int, error: Exception) -> str:
    if isinstance(error, TileError):
        return str(error)  # names the tiles itself
    if isinstance(error, KilledWorker):
        times = error.allowed_failures + 1
        why = (
            f"its worker died, {times} times in a row: look for what ended it (the host's memory?)"
        )
    else:
        why = f"{type(error).__name__}: {error}"
    return f"{plan.batch_name(batch)}: {why}"


def _merge(plan: Plan, path: str, clock: _Clock) -> dict[str, int]:
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
    results: list[int] = []
    with progress(task.name.replace("_", " "), n, key=task.name.replace("_", "-")) as advance:
        for _, result, error in run_window(lambda _: task, range(n), window=slots(), **parameters):
            if error is not None:
                raise error
            results.append(cast("int", result))
            advance(1)
    return results


def _publish(plan: Plan, path: str, clock: _Clock, counts: dict[str, int]) -> Report:
    with clock.stage("count seams"):
        seams = count_seams(path, tasks=_merge_tasks())
    report = Report(
        image=plan.image.url,
        labels_path=str(plan.target.published),
        n_tiles=len(plan.grid),
        digest=plan.digest,
        stages=clock.stages,
        seams=seams,
        **counts,
    )
    with clock.stage("publish"):
        publish_labels(path, report=report)
    return report.model_copy(update={"stages": clock.stages})


class _Clock:
    """Wall time of each stage."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[..., None]]:
        facts: dict[str, Any] = {}
        start = time.perf_counter()
        yield facts.update
        seconds = time.perf_counter() - start
        self.stages = [*self.stages, Stage(name=name, seconds=seconds, **facts)]
