"""The flow that analyses an atlas: from a matrix of cells to components, clusters and a map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from distributed import KilledWorker
from prefect import get_run_logger
from prefect.runtime import flow_run
from pydantic import Field

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
from cytopave.tasks.embedded import embedded_flow
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
    task_runner=make_runner(),
    persist_result=False,
    validate_parameters=True,
)
def preprocess_atlas(
    store: Annotated[
        str, Field(description="AnnData on Zarr, X by rows: a path or URL; or a table of a store.")
    ],
    *,
    output: Annotated[
        str | None,
        Field(description="Path of the new store; None: intensities come back into their table."),
    ] = None,
    profile: Annotated[Profile, Field(description="What is in X, and every step.")] = Counts(),  # noqa: B008
    overwrite: Annotated[bool, Field(description="Replace what is there.")] = False,
    provider: Annotated[
        Literal["auto", "scanpy", "rapids"],
        Field(description="auto: rapids where the workers have it and a GPU."),
    ] = "auto",
    cluster: Annotated[
        str, Field(description="auto, cpu, nvlink, capacity, tcp://..., or a saved block's name.")
    ] = "auto",
    workers: Annotated[int | None, Field(description="Number of workers.", ge=1)] = None,
    block_rows: Annotated[
        int | None, Field(description="Cells in a block; None: by their number of values.", ge=1)
    ] = None,
    unique_names: Annotated[
        bool, Field(description="Number names of cells or genes that come twice.")
    ] = False,
    scratch: Annotated[
        str | None, Field(description="Folder for the steps' results that all workers share.")
    ] = None,
    keep_scratch: Annotated[bool, Field(description="Keep the steps' results.")] = False,
) -> AtlasReport:
    """Analyse a matrix of cells of any size.

    Run again with the same parameters after a failure: it continues at the step that failed. With
    ``keep_scratch``, so does a run of other parameters, at the first step that they change.

    Raises:
        UserError: The request cannot be carried out.
        CorruptError: A chunk of the store is truncated or damaged.
    """
    check_no_default_client(cluster)
    check_request(store, output=output, overwrite=overwrite, profile=profile)
    clock = Clock()
    folder = Path(scratch) if scratch else load_settings().scratch
    with clock.stage("plan"):
        path = plan_atlas.submit(
            store,
            output=output,
            overwrite=overwrite,
            profile=profile,
            provider=provider,
            block_rows=block_rows,
            unique_names=unique_names,
            scratch=folder,
        ).result()
    plan = AtlasPlan.load(path)
    with occupied(plan.root, remove=not keep_scratch), claimed(plan.root, plan.target.path):
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
