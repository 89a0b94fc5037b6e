"""``cytopave refine``: the flow ``refine_labels``, run in this process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from cytopave.deployments.cli.console import write_facts, write_json
from cytopave.deployments.cli.options import Common, Flag, Whole
from cytopave.deployments.cli.saved import look_up_stores
from cytopave.deployments.cli.work import Resumable

if TYPE_CHECKING:
    from cytopave.engine.refine import Operation
    from cytopave.engine.refine.report import RefineReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Refining:
    """What is done to the labels, in the order of this list."""

    fill_holes: Flag = False
    """Give objects the background that they enclose; objects within keep their pixels."""
    remove_small: str | None = None
    """Remove objects smaller than this: pixels, or a size such as 20um2 (stacks: 80um3)."""
    remove_large: str | None = None
    """Remove objects larger than this; given likewise."""
    clear_border: Flag = False
    """Remove objects that touch the image's edge."""
    expand: str | None = None
    """Grow objects by this distance, pixels or such as 2.5um; the nearest object wins."""
    relabel: Flag = False
    """Number objects 1, 2, ... in the order of their first pixels."""
    margin: Whole | None = None
    """Pixels from the edge within which --clear-border removes objects as well."""
    planewise: Flag = False
    """Of stacks: fill holes plane by plane, and look at the edges in Y and X alone."""

    def operations(self) -> list[Operation]:
        """What these options mean.

        Raises:
            LabelError: An option has a value that it cannot have, or nothing is asked for.
        """
        from pydantic import TypeAdapter, ValidationError

        from cytopave.engine.errors import LabelError
        from cytopave.engine.refine import Operation

        if self.margin is not None and not self.clear_border:
            raise LabelError("--margin says more of --clear-border")
        asked: list[tuple[bool, str, dict[str, Any]]] = [
            (self.fill_holes, "fill_holes", {"planewise": self.planewise}),
            (self.remove_small is not None, "remove_small", {"size": self.remove_small}),
            (self.remove_large is not None, "remove_large", {"size": self.remove_large}),
            (
                self.clear_border,
                "clear_border",
                {"margin": self.margin or 0, "planewise": self.planewise},
            ),
            (self.expand is not None, "expand", {"distance": self.expand}),
            (self.relabel, "relabel", {}),
        ]
        if not any(wanted for wanted, _, _ in asked):
            raise LabelError(
                "nothing is asked for: give --fill-holes, --remove-small, --remove-large, "
                "--clear-border, --expand or --relabel"
            )
        adapter: TypeAdapter[Operation] = TypeAdapter(Operation)
        found = []
        for wanted, kind, options in asked:
            try:
                if wanted:
                    found.append(adapter.validate_python({"kind": kind, **options}))
            except ValidationError as error:
                reason = error.errors()[0]["msg"].removeprefix("Value error, ")
                raise LabelError(f"--{kind.replace('_', '-')}: {reason}") from None
        return found


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Placing:
    """Which labels are meant, and where the result goes."""

    name: str | None = None
    """Name of the label image of IMAGE; where not given, IMAGE is itself the labels."""
    output_name: str | None = None
    """Name of the new label image; that of the labels and -refined where not given."""
    output: str | None = None
    """Store that gets labels/NAME; the labels' own where not given."""
    overwrite: Flag = False
    """Replace a label image of that name; with the same name, the labels themselves."""
    axes: str | None = None
    """Axes of a plain zarr array, such as zyx."""


def refine(
    image: str,
    /,
    *,
    refining: Refining = Refining(),
    placing: Placing = Placing(),
    work: Resumable = Resumable(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> None:
    """Refine labels: holes, sizes, borders, growth, ids; publish a new label image.

    Whatever the order of the options, holes are filled first, then objects
    removed, then grown, then numbered; for another order, call it several times.

    Interrupted or failed, the same command resumes.

    Args:
        image: OME-Zarr image that has the labels, or the labels themselves: a path or URL.
        refining: What is done to the labels.
        placing: Which labels are meant, and where the result goes.
        work: Who does it, and where it is kept meanwhile.
        common: Options of every command.
    """
    made = _run(image, refining, placing, work, common)
    if common.json:
        write_json(made.model_dump(mode="json"))
        return
    write_facts(
        {
            "objects": f"{made.n_objects}, of {made.n_before}",
            **{done.operation: f"{done.changed} {done.unit}" for done in made.operations},
            "labels": made.labels_path,
        }
    )


def _run(
    image: str, refining: Refining, placing: Placing, work: Resumable, common: Common
) -> RefineReport:
    """Check the request, then run the flow in this process, on an API and workers of its own.

    Raises:
        CytopaveError: As the flow raises it.
    """
    from cytopave.engine.refine.planner import plan_refinement

    look_up_stores(verbose=common.verbose)
    work.check()
    operations = refining.operations()
    request: dict[str, Any] = {
        "labels": placing.name,
        "name": placing.output_name,
        "output": placing.output,
        "overwrite": placing.overwrite,
        "axes": placing.axes,
    }
    plan_refinement(image, operations, scratch=work.folder, **request)
    work.begin(verbose=common.verbose)
    from cytopave.flows import refine_labels

    made: RefineReport = refine_labels(
        image,
        operations=operations,
        **vars(work),
        **request,
    )
    return made
