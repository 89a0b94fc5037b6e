"""The flow that refines labels which are there: sizes, holes, borders, growth, new ids."""

from __future__ import annotations

from pathlib import Path

from prefect import get_run_logger
from prefect.runtime import flow_run
from pydantic import PositiveInt

from cytopave.blocks.images import local_path
from cytopave.engine.refine import Operation
from cytopave.engine.refine.planner import plan_refinement
from cytopave.engine.refine.report import RefineReport
from cytopave.engine.scratch.tenancy import claimed, occupied
from cytopave.engine.settings import load_settings
from cytopave.tasks.embedded import embedded_flow, untagged
from cytopave.tasks.refine import refine_blocks
from cytopave.tasks.runner import check_no_default_client


def _run_name() -> str:
    parameters = flow_run.parameters
    labels = parameters.get("labels") or parameters["image"]
    return f"{Path(str(parameters['image'])).name}, {Path(str(labels)).name}"


@embedded_flow(name="refine-labels", flow_run_name=_run_name)
def refine_labels(
    image: str,
    *,
    operations: list[Operation],
    labels: str | None = None,
    name: str | None = None,
    output: str | None = None,
    overwrite: bool = False,
    axes: str | None = None,
    cluster: str = "cpu",
    workers: PositiveInt | None = None,
    scratch: str | None = None,
    keep_scratch: bool = False,
) -> RefineReport:
    """Refine a label image of any size, and publish the result as a label image of its own.

    Run again with the same parameters after a failure: finished steps are not done again.

    Args:
        image: OME-Zarr image or zarr array: a path or URL; or the labels themselves.
        operations: What is done, in order.
        labels: Name of a label image of the image, or a path or URL of labels.
        name: Name of the new label image; that of the labels and -refined where not given.
        output: Store that gets the labels; the labels' own where not given.
        overwrite: Replace a label image of that name, the refined one included.
        axes: Axes of a plain array, such as zyx.
        cluster: cpu, an address (tcp://...), or a saved block's name.
        workers: Number of workers.
        scratch: Folder for what lies between steps, which all workers share.
        keep_scratch: Keep that.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        CorruptError: A chunk is truncated or damaged.
    """
    check_no_default_client(cluster)
    refinement = plan_refinement(
        local_path(image) or image,
        operations,
        labels=local_path(labels),
        name=name,
        output=local_path(output),
        overwrite=overwrite,
        axes=axes,
        scratch=Path(scratch) if scratch else load_settings().scratch,
    )
    with (
        untagged(),
        occupied(refinement.root, remove=not keep_scratch),
        claimed(refinement.root, refinement.target.published),
    ):
        report = refine_blocks(refinement)
    get_run_logger().info("%d objects in %s", report.n_objects, report.labels_path)
    return report
