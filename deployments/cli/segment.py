"""``cytopave segment``: the flow ``segment_image``, run in this process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cytopave.deployments.cli.clusters import expected_workers, find_cluster
from cytopave.deployments.cli.console import say, write_facts, write_json, write_table
from cytopave.deployments.cli.environment import prepare_prefect
from cytopave.deployments.cli.options import Common, Keeping, Request
from cytopave.deployments.cli.saved import check_results, look_up_stores
from cytopave.deployments.cli.segment_plate import Wells, refuse_wells, run_plate, show_plate
from cytopave.engine.errors import PlanError

if TYPE_CHECKING:
    from cytopave.engine.report import Report


def segment(
    image: str,
    /,
    *,
    request: Request = Request(),  # noqa: B008
    keeping: Keeping = Keeping(),  # noqa: B008
    wells: Wells = Wells(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> int:
    """Segment an image of any size and publish one label image; of a plate, one in each image.

    Interrupted or failed, the same command resumes: finished tiles are not computed again.

    Args:
        image: OME-Zarr image or plate, or zarr array: a path or URL.
        request: What to segment and how.
        keeping: What becomes of tile files, and of tiles that fail.
        wells: Which part of a plate.
        common: Options of every command.
    """
    from cytopave.engine.omezarr.plate import is_plate

    if keeping.allow_failed < 0:
        raise PlanError(f"--allow-failed {keeping.allow_failed} must be 0 or more")
    look_up_stores(verbose=common.verbose)
    if image.strip() and is_plate(image):  # an empty text is refused as an image
        plate = run_plate(image, request, keeping=keeping, wells=wells, common=common)
        if common.json:
            write_json(plate.model_dump(mode="json"))
        else:
            show_plate(plate)
        return 0
    refuse_wells(wells)
    made = run_flow(image, request, keeping, common=common)
    if common.json:
        write_json(made.model_dump(mode="json"))
    else:
        show(made)
    if not made.missing:
        return 0
    say(f"incomplete: {made.missing_note()}")
    return INCOMPLETE


INCOMPLETE = 3
"""Exit status of a run that published labels with an area missing, as ``--allow-failed`` asked."""


def run_flow(image: str, request: Request, keeping: Keeping, *, common: Common) -> Report:
    """Check the request, then run the flow in this process, on an API and workers of its own.

    Raises:
        CytopaveError: As the flow raises it.
    """
    from cytopave.engine.planning.planner import draft_plan

    image, parameters = request.resolved(image, verbose=common.verbose)
    draft = draft_plan(image, workers=request.sharing, **parameters)
    # What is known of the whole image by now need not be found out again.
    parameters |= draft.settled
    parameters["scratch"] = str(parameters["scratch"]) if parameters["scratch"] else None
    prepare_prefect(verbose=common.verbose)
    expected_workers(find_cluster(request.cluster), gpu=draft.segmenter.uses_gpu)
    check_results()
    if sys.stderr.isatty():
        say("starting; this takes some seconds")
    from cytopave.flows import segment_image
    from cytopave.tasks.runner import embedded_api

    embedded_api()
    made: Report = segment_image(
        image,
        **parameters,
        cluster=request.cluster,
        workers=request.workers,
        gpu_memory_gb=request.gpu_memory_gb,
        keep_scratch=keeping.keep_scratch,
        allow_failed=keeping.allow_failed,
    )
    return made


def show(made: Report, **further: object) -> None:
    """Print where everything is and how the run went.

    Args:
        made: The run's report.
        further: Further lines, or other ones in the place of these.
    """
    from cytopave.engine.report import MISSING, SEAMS

    skipped = f", {made.n_skipped} of them skipped: no foreground" if made.n_skipped else ""
    reused = f" ({made.n_reused} of them finished before)" if made.n_reused else ""
    facts = {
        "objects": f"{made.n_objects}, of which {made.n_joined} lie on more than one tile",
        "tiles": f"{made.n_tiles}{skipped}{reused}",
        "labels": made.labels_path,
        **({"table": made.table_path} if made.table_path else {}),
        "report": f"in their attributes: cytopave report {made.labels_path}",
    }
    write_facts({**facts, **further})
    write_table(made.stage_rows(), title="Stages")
    write_table(made.seam_rows(), title=SEAMS)
    write_table(made.missing_rows(), title=MISSING)
