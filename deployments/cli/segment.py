"""``cytopave segment``: the flow ``segment_image``, run in this process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cytopave.deployments.cli.clusters import expected_workers, is_saved
from cytopave.deployments.cli.console import say, write_facts, write_json, write_table
from cytopave.deployments.cli.environment import prepare_prefect
from cytopave.deployments.cli.options import Common, Keeping, Request

if TYPE_CHECKING:
    from cytopave.engine.report import Report


def segment(
    image: str,
    /,
    *,
    request: Request = Request(),  # noqa: B008
    keeping: Keeping = Keeping(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> None:
    """Segment an image of any size and publish one label image.

    Interrupted or failed, the same command resumes: finished tiles are not computed again.

    Args:
        image: OME-Zarr image or zarr array: a path or URL.
        request: What to segment and how.
        keeping: What becomes of tile files.
        common: Options of every command.
    """
    made = run_flow(image, request, keep_scratch=keeping.keep_scratch, common=common)
    if common.json:
        write_json(made.model_dump(mode="json"))
    else:
        show(made)


def run_flow(image: str, request: Request, *, keep_scratch: bool, common: Common) -> Report:
    """Check the request, then run the flow in this process, on an API and workers of its own.

    Raises:
        CytopaveError: As the flow raises it.
    """
    from cytopave.engine.planning.planner import draft_plan

    parameters = request.parameters()
    draft = draft_plan(image, workers=request.sharing, **parameters)
    # What is known of the whole image by now need not be found out again.
    parameters["segmenter"] = draft.segmenter
    parameters["scratch"] = str(parameters["scratch"]) if parameters["scratch"] else None
    prepare_prefect(verbose=common.verbose)
    if not is_saved(request.cluster):
        expected_workers(request.cluster, gpu=draft.segmenter.uses_gpu)
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
        keep_scratch=keep_scratch,
    )
    return made


def show(made: Report, **further: object) -> None:
    """Print where everything is and how the run went.

    Args:
        made: The run's report.
        further: Further lines, or other ones in the place of these.
    """
    from cytopave.engine.report import SEAMS

    reused = f" ({made.n_reused} of them finished before)" if made.n_reused else ""
    facts = {
        "objects": f"{made.n_objects}, of which {made.n_joined} lie on more than one tile",
        "tiles": f"{made.n_tiles}{reused}",
        "labels": made.labels_path,
        **({"table": made.table_path} if made.table_path else {}),
        "report": f"in their attributes: cytopave report {made.labels_path}",
    }
    write_facts({**facts, **further})
    write_table(made.stage_rows(), title="Stages")
    write_table(made.seam_rows(), title=SEAMS)
