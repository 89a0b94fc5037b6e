"""``cytopave segment`` of a plate: the flow ``segment_plate``, run in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from cytopave.deployments.cli.clusters import expected_workers, find_cluster
from cytopave.deployments.cli.console import say, write_facts, write_table
from cytopave.deployments.cli.environment import prepare_prefect

if TYPE_CHECKING:
    from cytopave.deployments.cli.options import Common, Keeping, Request
    from cytopave.engine.plate_report import PlateReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Wells:
    """Which part of a plate: an option of ``segment``."""

    wells: str | None = None
    """Wells of a plate, such as A/1,B/2; all where not given."""


def refuse_wells(wells: Wells) -> None:
    """Refuse wells of what is no plate.

    Raises:
        PlanError: Some are given.
    """
    from cytopave.engine.errors import PlanError

    if wells.wells is not None:
        raise PlanError("--wells belongs to a plate, and this is an image: leave it out")


def run_plate(
    plate: str, request: Request, *, keeping: Keeping, wells: Wells, common: Common
) -> PlateReport:
    """Check the request, then run the flow in this process, on an API and workers of its own.

    Raises:
        CytopaveError: As the flow raises it.
    """
    from cytopave.engine.omezarr.plate import open_plate
    from cytopave.engine.settings import load_settings

    _refuse(
        output=request.output,
        axes=request.axes,
        keep_scratch=keeping.keep_scratch,
        allow_failed=keeping.allow_failed,
    )
    chosen = None if wells.wells is None else [w.strip() for w in wells.wells.split(",")]
    found = open_plate(plate, wells=chosen)
    _, asked = request.resolved(plate, verbose=common.verbose)
    parameters = {k: v for k, v in asked.items() if k not in ("output", "axes")}
    prepare_prefect(verbose=common.verbose)
    from cytopave.flows import segment_plate
    from cytopave.flows.plate import check_plate, plate_scratch
    from cytopave.tasks.runner import embedded_api

    scratch = parameters.pop("scratch")
    seconds = load_settings().batch_seconds
    draft = check_plate(
        found,
        {**parameters, "batch_seconds": seconds, "scratch": plate_scratch(found, scratch)},
    )
    expected_workers(find_cluster(request.cluster), gpu=draft.segmenter.uses_gpu)
    if sys.stderr.isatty():
        say("starting; this takes some seconds")
    embedded_api()
    made: PlateReport = segment_plate(
        plate,
        wells=chosen,
        **parameters,
        scratch=str(scratch) if scratch else None,
        cluster=request.cluster,
        workers=request.workers,
        gpu_memory_gb=request.gpu_memory_gb,
    )
    return made


def show_plate(made: PlateReport) -> None:
    """Print where everything is and what is missing."""
    fields = sum(len(well.fields) for well in made.wells)
    gone = [*made.missing, *made.missing_fields]
    write_facts(
        {
            "objects": made.n_objects,
            "images": f"{fields} in {len(made.wells)} wells",
            **({"missing": ", ".join(gone)} if gone else {}),
            "labels": f"labels/{made.name} in each image of {made.plate}",
        }
    )
    write_table(made.rows(), title="Wells")


def _refuse(**options: Any) -> None:
    from cytopave.engine.errors import PlanError

    for name, value in options.items():
        if value:
            raise PlanError(
                f"--{name.replace('_', '-')} does not apply to a plate, whose labels go into it: "
                "leave it out"
            )
