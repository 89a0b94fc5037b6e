"""``cytopave sweep``: the flow ``sweep_images``, run in this process."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from cytopave.deployments.cli.clusters import expected_workers, find_cluster
from cytopave.deployments.cli.console import write_json, write_table
from cytopave.deployments.cli.environment import prepare_prefect
from cytopave.deployments.cli.options import Common, Flag, Keeping, Request
from cytopave.deployments.cli.saved import check_results
from cytopave.deployments.cli.segment import INCOMPLETE
from cytopave.engine.errors import PlanError

if TYPE_CHECKING:
    from cytopave.flows.sweep import SweepReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Sweeping:
    """Which images, and what runs them."""

    match: str = "*"
    """Shell pattern for the path of an image below the folder."""
    deployment: str | None = None
    """Deployment that runs each image, such as segment-image/segment-image; here if not given."""
    settled_seconds: float = 60.0
    """Leave images that changed since so many seconds alone: they may still be arriving."""
    retry_failed: Flag = False
    """Start anew where a deployment's run for the same pixels failed before."""
    dry_run: Flag = False
    """Only say what would be done."""


def sweep(
    folder: str,
    /,
    *,
    sweeping: Sweeping = Sweeping(),
    request: Request = Request(),  # noqa: B008
    keeping: Keeping = Keeping(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> int:
    """Segment every image of a folder that has no labels of that name, or changed since.

    Images that are done, or of which a run is under way, are left alone: repeat it at will.

    Args:
        folder: Folder or bucket of images: a path, a URL or store://NAME/folder. With --output,
            that is a folder too.
        sweeping: Which images, and what runs them.
        request: What to segment and how.
        keeping: What becomes of tile files, and of tiles that fail.
        common: Options of every command.
    """
    if request.overwrite:
        raise PlanError("a sweep replaces labels where the image changed: leave --overwrite out")
    parameters = request.parameters()
    prepare_prefect(verbose=common.verbose)
    cluster = find_cluster(request.cluster)
    if sweeping.deployment is None:  # else the runs are another host's
        expected_workers(cluster, gpu=parameters["segmenter"].uses_gpu)
        check_results()
    from cytopave.flows import sweep_images
    from cytopave.tasks.runner import embedded_api

    embedded_api()
    made: SweepReport = sweep_images(
        folder,
        name=request.name,
        segmenter=parameters["segmenter"],
        output=request.output,
        parameters=_further(parameters, request, keeping),
        **vars(sweeping),
    )
    if common.json:
        write_json(made.model_dump(mode="json"))
    else:
        rows = [
            {"image": row.image, "labels": row.state, "run": row.action, "": row.note}
            for row in made.images
        ]
        write_table(rows, title=f"{len(rows)} images in {folder}")
    return INCOMPLETE if made.incomplete else 0


def _further(parameters: dict[str, Any], request: Request, keeping: Keeping) -> dict[str, Any]:
    """What is not as the flow has it by default: a deployment may have defaults of its own."""
    from cytopave.flows import segment_image

    given = {
        **parameters,
        "cluster": request.cluster,
        "workers": request.workers,
        "gpu_memory_gb": request.gpu_memory_gb,
        "keep_scratch": keeping.keep_scratch,
        "allow_failed": keeping.allow_failed,
    }
    plain = {k: str(v) if isinstance(v, PurePath) else v for k, v in given.items()}
    defaults = {k: p.default for k, p in inspect.signature(segment_image.fn).parameters.items()}
    own = ("segmenter", "name", "output", "overwrite")
    return {k: v for k, v in plain.items() if k not in own and v != defaults[k]}
