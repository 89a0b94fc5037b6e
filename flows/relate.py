"""The flow that relates the objects of two label images, such as nuclei and cells."""

from __future__ import annotations

from pathlib import Path

from prefect import get_run_logger
from prefect.runtime import flow_run
from pydantic import PositiveInt

from cytopave.blocks.images import local_path
from cytopave.engine.relations.planner import plan_relation
from cytopave.engine.relations.report import RelateReport
from cytopave.engine.relations.stages import report_relation
from cytopave.engine.scratch.tenancy import claimed, occupied
from cytopave.engine.settings import load_settings
from cytopave.engine.tables.export import check_exports
from cytopave.tasks.embedded import embedded_flow, untagged
from cytopave.tasks.relate import relate_objects
from cytopave.tasks.runner import check_no_default_client


def _run_name() -> str:
    parameters = flow_run.parameters
    child, parent = (Path(str(parameters[name])).name for name in ("child", "parent"))
    return f"{Path(str(parameters['image'])).name}, {child} in {parent}"


@embedded_flow(name="relate-labels", flow_run_name=_run_name)
def relate_labels(
    image: str,
    *,
    child: str,
    parent: str,
    overwrite: bool = False,
    axes: str | None = None,
    csv: str | None = None,
    parquet: str | None = None,
    cluster: str = "cpu",
    workers: PositiveInt | None = None,
    scratch: str | None = None,
    keep_scratch: bool = False,
) -> RelateReport:
    """Find each child's parent, and each parent's number of children, into their tables.

    The parent of an object is the one that most of its pixels lie in. Both label images need their
    tables, which get new columns. Run again with the same parameters after a failure: finished
    parts are not read again. Where the very columns are there and only files are asked for,
    nothing is read.

    Args:
        image: OME-Zarr image or zarr array: a path or URL.
        child: Name of the label image whose objects get a parent, or path or URL of labels.
        parent: The same of those that are parents.
        overwrite: Replace columns of the same names, and files that exist.
        axes: Axes of a plain array, such as zyx.
        csv: Also export the children's table to this CSV file.
        parquet: Also export it to this Parquet file.
        cluster: cpu, an address (tcp://...), or a saved block's name.
        workers: Number of workers.
        scratch: Folder for counts that all workers share.
        keep_scratch: Keep the counts.

    Raises:
        UserError: The request cannot be carried out; nothing has been computed.
        CorruptError: A chunk is truncated or damaged.
    """
    check_no_default_client(cluster)
    wanted = {"csv": csv, "parquet": parquet}
    files = check_exports(
        {kind: Path(path) for kind, path in wanted.items() if path}, overwrite=overwrite
    )
    relation = plan_relation(
        local_path(image) or image,
        child=local_path(child) or child,
        parent=local_path(parent) or parent,
        axes=axes,
        scratch=Path(scratch) if scratch else load_settings().scratch,
    )
    related = not (relation.check_columns(overwrite=overwrite, export=bool(files)) and files)
    if related:
        table = relation.child.table().folder
        with (
            untagged(),
            occupied(relation.root, remove=not keep_scratch),
            claimed(relation.root, table, noun="table"),
        ):
            relate_objects(relation)
    report = report_relation(relation, files, related=related)
    get_run_logger().info(
        "%d of %d objects have a parent",
        report.n_children - report.n_without_parent,
        report.n_children,
    )
    return report
