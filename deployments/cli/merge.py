"""``cytopave merge``: the merge alone, for labels that other tools' tiles already wrote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cyclopts import Parameter

from cytopave.deployments.cli.console import write_json
from cytopave.deployments.cli.options import Common, Flag, Keeping, Request, Whole
from cytopave.deployments.cli.segment import run_flow, show


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
    workers: Whole | None = None
    """Number of workers; one a CPU core where not given."""
    cluster: str = "cpu"
    """cpu, a scheduler's address (tcp://...), or a saved block's name."""
    scratch: str | None = None
    """Folder for tile files that all workers share; beside the labels where not given."""


def merge(
    labels: str,
    /,
    *,
    merging: Merging,
    common: Common = Common(),  # noqa: B008
) -> None:
    """Merge labels that were written tile by tile, each tile numbered by itself, without overlap.

    Two labels are one object where they agree in the planes of pixels at both sides of a seam.

    Args:
        labels: OME-Zarr image or zarr array of integers: a path or URL.
        merging: Which labels are merged, and where the result goes.
        common: Options of every command.
    """
    # The image is itself the labels: there are no intensities to measure.
    request = Request(segmenter="stored", halo="0", no_measure=True, **vars(merging))
    made = run_flow(labels, request, Keeping(), common=common)
    if common.json:
        write_json(made.model_dump(mode="json"))
    else:
        show(made)
