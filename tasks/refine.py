"""The tasks that refine labels, and how a flow runs them."""

from __future__ import annotations

from typing import Any

from prefect import task

from cytopave.engine.refine import stages
from cytopave.engine.refine.refinement import Refinement
from cytopave.engine.refine.report import RefineReport
from cytopave.tasks.progress import progress
from cytopave.tasks.provenance import provenance
from cytopave.tasks.window import run_all


@task(name="look_at_labels", persist_result=False, task_run_name="look, step {step}, group {group}")
def look_at_labels(group: int, *, path: str, step: int) -> None:
    """Take from a group of blocks what the step has to know of all of them."""
    stages.look(Refinement.load(path), step, group)


@task(name="decide_step", persist_result=False, task_run_name="decide, step {step}")
def decide_step(path: str, *, step: int) -> None:
    """Decide about what all groups have seen, and make room for what is painted."""
    stages.decide(Refinement.load(path), step)


@task(name="paint_labels", persist_result=False, task_run_name="paint, step {step}, group {group}")
def paint_labels(group: int, *, path: str, step: int) -> int:
    """Write what a group of blocks becomes; returns the number of pixels that objects gained."""
    return stages.paint(Refinement.load(path), step, group)


@task(name="publish_refined", persist_result=False, task_run_name="publish labels")
def publish_refined(path: str) -> RefineReport:
    """Finish the pyramid, validate, and publish.

    Raises:
        OutputError: The name was taken, or the labels changed, meanwhile.
    """
    return stages.publish(Refinement.load(path), provenance())


def refine_blocks(refinement: Refinement) -> RefineReport:
    """Run all tasks of a refinement in the running flow, publication included."""
    path = refinement.save()
    mapped: dict[str, Any] = {"look": look_at_labels, "paint": paint_labels}
    n = len(refinement.groups)
    for phase in stages.phases(refinement):
        if not phase.mapped:
            decide_step.submit(path, step=phase.step).result()
            continue
        with progress(phase.name, n, key=f"step-{phase.step}-{phase.act}") as advance:
            run_all(mapped[phase.act], range(n), advance=advance, path=path, step=phase.step)
    return publish_refined(path)
