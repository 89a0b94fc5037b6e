"""The Prefect task of a step. Its persisted result counts while the step's folder is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from prefect import task

from cytopave.engine.atlas.plan import CODE_VERSION, IN_MEMORY, AtlasPlan
from cytopave.engine.gpu.oom import attempt
from cytopave.tasks.atlas.session import dataset_name, opened, root_of
from cytopave.tasks.atlas.steps import STEPS
from cytopave.tasks.atlas.write import write_output
from cytopave.tasks.retry import retrying

if TYPE_CHECKING:
    from collections.abc import Collection

    from prefect import Task
    from prefect.context import TaskRunContext

    from cytopave.tasks.atlas.session import Session


def _cache_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    plan = AtlasPlan.load(parameters["plan_path"])
    return f"cytopave-atlas-{plan.key(parameters['step'])}-{CODE_VERSION}"


@task(name="atlas-step", cache_key_fn=_cache_key, persist_result=True)
def run_step(step: str, *, plan_path: str) -> dict[str, Any]:
    """Take one step of an atlas run.

    Args:
        step: Its name.
        plan_path: The saved plan.

    Returns:
        A few facts about the result, which is in the scratch folder, or stays with the workers.

    Raises:
        UserError: The data, or the request, do not allow it.
        CorruptError: A chunk of the store is damaged.
        OutOfMemoryError: A GPU's memory did not suffice; Prefect tries again later.
    """
    with opened(plan_path) as session:
        try:
            return attempt(lambda: _take(session, step))
        except Exception as error:
            if (ours := root_of(error)) is not error:
                raise ours from error
            raise


def _take(session: Session, step: str) -> dict[str, Any]:
    return write_output(session) if step == "write" else STEPS[step](session)


def step_task(plan: AtlasPlan, step: str, kept: Collection[str]) -> Task[..., dict[str, Any]]:
    """The task as it is submitted for one step.

    Args:
        plan: The run.
        step: The step's name.
        kept: Names of the collections that the workers keep.
    """
    return retrying(run_step).with_options(
        name=step,
        task_run_name=f"{step} of {plan.store.folder.name}",
        result_storage=plan.root / "results",
        refresh_cache=not is_done(plan, step, kept),
    )


def is_done(plan: AtlasPlan, step: str, kept: Collection[str]) -> bool:
    """Whether a step's result is there."""
    if step == "write":
        return False
    if step in IN_MEMORY:
        return plan.results.has(plan.key("pca")) or dataset_name(plan, step) in kept
    return plan.results.has(plan.key(step))
