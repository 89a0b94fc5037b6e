"""``cytopave relate``: the flow ``relate_labels``, run in this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import Parameter

from cytopave.deployments.cli.console import write_facts, write_json
from cytopave.deployments.cli.options import Common, Flag
from cytopave.deployments.cli.saved import look_up_stores
from cytopave.deployments.cli.work import Resumable

if TYPE_CHECKING:
    from cytopave.engine.relations.report import RelateReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Relating:
    """Which labels are related, and what else is written."""

    child: str
    """Name of the label image whose objects get a parent, such as nuclei; or path or URL."""
    parent: str
    """The same of the objects that are parents, such as cells."""
    csv: str | None = None
    """Also write the children's table to this CSV file; of columns that are there, only do this."""
    parquet: str | None = None
    """The same as Parquet (extra cytopave[parquet])."""
    axes: str | None = None
    """Axes of a plain zarr array, such as zyx."""
    overwrite: Flag = False
    """Replace columns of the same names, and files that exist."""


def relate(
    image: str,
    /,
    *,
    relating: Relating,
    work: Resumable = Resumable(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> None:
    """Find which object of one label image lies in which of another: nuclei in cells.

    An object's parent is the one that most of its pixels lie in. The children's
    table gets the parent and the share of the child within it, the parents'
    table the number of children.

    Interrupted or failed, the same command resumes.

    Args:
        image: OME-Zarr image or zarr array: a path or URL.
        relating: Which labels are related, and what else is written.
        work: Who does it, and where it is kept meanwhile.
        common: Options of every command.
    """
    made = _run(image, relating, work, common)
    if common.json:
        write_json(made.model_dump(mode="json"))
        return
    ids, share = made.child_columns
    write_facts(
        {
            "children": f"{made.n_children}, {made.n_without_parent} of them without a parent",
            "parents": f"{made.n_parents}, {made.n_without_child} of them without a child",
            "children's table": f"{made.child_table}, columns {ids}, {share}",
            "parents' table": f"{made.parent_table}, column {made.parent_column}",
            **made.files,
        }
    )


def _run(image: str, relating: Relating, work: Resumable, common: Common) -> RelateReport:
    """Check the request, then run the flow in this process, on an API and workers of its own.

    Raises:
        CytopaveError: As the flow raises it.
    """
    from cytopave.engine.relations.planner import plan_relation
    from cytopave.engine.relations.stages import report_relation
    from cytopave.engine.tables.export import check_exports

    look_up_stores(verbose=common.verbose)
    work.check()
    wanted = {"csv": relating.csv, "parquet": relating.parquet}
    files = check_exports(
        {kind: Path(path) for kind, path in wanted.items() if path}, overwrite=relating.overwrite
    )
    relation = plan_relation(
        image,
        child=relating.child,
        parent=relating.parent,
        axes=relating.axes,
        scratch=work.folder,
    )
    if relation.check_columns(overwrite=relating.overwrite, export=bool(files)) and files:
        return report_relation(relation, files, related=False)
    work.begin(verbose=common.verbose)
    from cytopave.flows import relate_labels

    made: RelateReport = relate_labels(image, **vars(relating), **vars(work))
    return made
