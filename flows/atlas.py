"""The flow that analyses an atlas: from a matrix of cells to components, clusters and a map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distributed import KilledWorker
from prefect import get_run_logger
from prefect.runtime import flow_run
from pydantic import PositiveInt

from cytopave.engine.atlas.parameters import Counts, Profile
from cytopave.engine.atlas.plan import IN_MEMORY, AtlasPlan
from cytopave.engine.atlas.planner import check_request
from cytopave.engine.atlas.report import AtlasReport
from cytopave.engine.errors import AtlasError
from cytopave.engine.scratch.tenancy import claimed, occupied
from cytopave.engine.settings import load_settings
from cytopave.tasks.atlas.plan import forget, plan_atlas
from cytopave.tasks.atlas.report import show_atlas
from cytopave.tasks.atlas.task import is_done, step_task
from cytopave.tasks.embedded import embedded_flow, untagged
from cytopave.tasks.progress import progress
from cytopave.tasks.runner import check_no_default_client, datasets, make_runner
from cytopave.tasks.stages import Clock
from cytopave.tasks.window import run_window

if TYPE_CHECKING:
    from collections.abc import Collection


def _run_name() -> str:
    return Path(str(flow_run.parameters["store"])).name


@embedded_flow(
    name="preprocess-atlas",
    flow_run_name=_run_name,
    task_runner=make_runner(library="cupy"),
)
def preprocess_atlas(
    store: str,
    *,
    output: str | None = None,
    profile: Profile = Counts(),  # noqa: B008
    overwrite: bool = False,
    provider: Literal["auto", "scanpy", "rapids"] = "auto",
    cluster: str = "auto",
    workers: PositiveInt | None = None,
    block_rows: PositiveInt | None = None,
    unique_names: bool = False,
    scratch: str | None = None,
    keep_scratch: bool = False,
) -> AtlasReport:
    """Analyse a matrix of cells of any size.

    Run again with the same parameters after a failure: it continues at the step that failed. With
    ``keep_scratch``, so does a run of other parameters, at the first step that they change.

    Args:
        store: AnnData on Zarr, X by rows: a path or URL; or a table of a store.
        output: Path of the new store; None: intensities come back into their table.
        profile: What is in X, and every step.
        overwrite: Replace what is there.
        provider: Who does it; auto: rapids where the workers have it and a GPU.
        cluster: auto, cpu, nvlink, capacity, tcp://..., or a saved block's name.
        workers: Number of workers.
        block_rows: Cells in a block; None: by their number of values.
        unique_names: Number names of cells or genes that come twice.
        scratch: Folder for the steps' results that all workers share.
        keep_scratch: Keep the steps' results.

    Raises:
        UserError: The request cannot be carried out.
        CorruptError: A chunk of the store is truncated or damaged.
    """
    check_no_default_client(cluster)
    found, target = check_request(store, output=output, overwrite=overwrite, profile=profile)
    clock = Clock()
    chosen = Path(scratch) if scratch else load_settings().scratch
    folder = chosen.expanduser().absolute() if chosen else None
    with clock.stage("plan"), untagged():
        path = plan_atlas.submit(
            found.url,  # absolute: workers may be in another folder
            output=str(target.path),
            overwrite=overwrite,
            profile=profile,
            provider=provider,
            block_rows=block_rows,
            unique_names=unique_names,
            scratch=folder,
        ).result()
    plan = AtlasPlan.load(path)
    if plan.resident:
        size = plan.x_bytes / 1e9
        get_run_logger().info("X (%.1f GB) stays on the GPUs: it is read once", size)
    with (
        occupied(plan.root, remove=not keep_scratch),
        claimed(plan.root, plan.target.path, noun="store"),
        untagged(),
    ):
        plan.save()  # whoever used the folder before may have deleted it
        facts, reused = _take_steps(plan, path, clock)
    report = AtlasReport.of(plan, facts, reused, clock.stages)
    show_atlas(report)
    get_run_logger().info("%d cells in %s", report.n_cells, report.output)
    return report


def _take_steps(
    plan: AtlasPlan, path: str, clock: Clock
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Take all steps; returns their facts, and the names of those that were there."""
    facts: dict[str, dict[str, Any]] = {}
    reused = []
    needs = _needed(plan, datasets())
    try:
        with progress("steps", len(needs), key="atlas-steps") as advance:
            for step in needs:
                kept = datasets()
                reused += [step] if is_done(plan, step, kept) else []
                with clock.stage(step) as done:
                    facts[step] = _take(plan, step, path, kept)
                    done(**{k: facts[step][k] for k in ("units", "unit") if k in facts[step]})
                advance(1)
    finally:
        forget(plan)
    return facts, reused


def _needed(plan: AtlasPlan, kept: Collection[str]) -> list[str]:
    """Matrices in memory are made for the PCA alone: with it there, they are not needed."""
    have_pca = is_done(plan, "pca", kept)
    return [s for s in plan.steps if not (have_pca and s in IN_MEMORY)]


def _take(plan: AtlasPlan, step: str, path: str, kept: Collection[str]) -> dict[str, Any]:
    outcomes = run_window(lambda s: step_task(plan, s, kept), [step], window=1, plan_path=path)
    _, result, error = next(iter(outcomes))
    if isinstance(error, KilledWorker):
        raise AtlasError(
            f"the step {step} ended its worker, {error.allowed_failures + 1} times in a row: look "
            "for what did (the host's memory? then fewer block_rows, or fewer workers); the steps "
            "before are kept, and the same command continues with this one"
        ) from error
    if error is not None:
        raise error
    assert result is not None
    return result
