"""``cytopave merge``: the merge alone, for labels that other tools' tiles already wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cyclopts import Parameter

from cytopave.deployments.cli.console import write_json
from cytopave.deployments.cli.options import Common, Flag, Keeping, Request, Whole
from cytopave.deployments.cli.segment import run_flow, show
from cytopave.deployments.cli.work import Resumable


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Merging:
    """Which labels are merged, and where the result goes."""

    tile: str
    """The other tool's tile in pixels: 512,512 or 16,512,512, or one number for Y and X alike."""
    name: str = "merged"
    """Name of the label image."""
    merge: Literal["iou", "touch"] = "iou"
    """When labels are one object: where they agree across the seam, or wherever they touch."""
    level: Whole = 0
    """Level of the pyramid; 0 is the finest."""
    axes: str | None = None
    """Axes of a plain zarr array, such as zyx."""
    channels: str | None = None
    """The channel that holds the labels, where there are channels."""
    output: str | None = None
    """Store that gets labels/NAME; the labels' own where not given."""
    overwrite: Flag = False
    """Replace a label image of that name."""


def merge(
    labels: str,
    /,
    *,
    merging: Merging,
    work: Resumable = Resumable(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> None:
    """Merge labels that were written tile by tile, each tile numbered by itself, without overlap.

    Two labels are one object where they agree in the planes of pixels at both sides of a seam.

    Args:
        labels: OME-Zarr image or zarr array of integers: a path or URL.
        merging: Which labels are merged, and where the result goes.
        work: Who does it, and where it is kept meanwhile.
        common: Options of every command.
    """
    # The image is itself the labels: there are no intensities to measure.
    request = Request(
        segmenter="stored",
        halo="0",
        no_measure=True,
        workers=work.workers,
        cluster=work.cluster,
        scratch=work.scratch,
        **vars(merging),
    )
    made = run_flow(labels, request, Keeping(keep_scratch=work.keep_scratch), common=common)
    if common.json:
        write_json(made.model_dump(mode="json"))
    else:
        show(made)
