"""``cytopave convert``: images and AnnData of other formats, to the stores that cytopave reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from cytopave.deployments.cli.console import say, write, write_facts, write_json, write_table
from cytopave.deployments.cli.options import Common, Flag
from cytopave.deployments.cli.work import Workers
from cytopave.engine.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cytopave.engine.convert.report import ConvertReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Images:
    """How images are converted."""

    match: str = "*"
    """Shell pattern for the path of a file below a folder."""
    scene: str | None = None
    """The only image to take of each file, by number or name; all, a store each, if not given."""
    axes: str | None = None
    """Axes in the file's order, such as zyx or tyxs (s: colours), for a TIFF that does not say."""
    pixel_size: str | None = None
    """Micrometers in place of what the file says: 0.325 (Y and X), or 2,0.325,0.325 (Z, Y, X)."""
    labels: Flag = False
    """Pixels are ids of objects: coarser levels take one of them instead of the mean."""


def convert(
    *sources: str,
    output: str | None = None,
    overwrite: Flag = False,
    images: Images = Images(),
    x: str = "X",
    work: Workers = Workers(),  # noqa: B008
    common: Common = Common(),  # noqa: B008
) -> None:
    """Write images (TIFF, LIF, ND2, CZI, ...) as OME-Zarr, or AnnData (.h5ad) as Zarr by rows.

    Out of core: no more than a piece is in memory. A store appears when it is complete; the same
    command again makes what is missing.

    Args:
        sources: Files of images, and folders of them; or one .h5ad file or AnnData store.
        output: Folder of the stores, or the only store's path (NAME.zarr); beside the files, under
            their names, where not given.
        overwrite: Replace stores that are there.
        images: How images are converted.
        x: Of AnnData, what becomes X: X, raw, or layers/NAME.
        work: Who converts images.
        common: Options of every command.
    """
    if not sources:
        raise ImageError("nothing is named: give files of images, a folder, or an .h5ad file")
    if len(sources) == 1 and _is_anndata(Path(sources[0])):
        _convert_anndata(sources[0], output, x=x, overwrite=overwrite, json=common.json)
        return
    made = _convert_images(sources, output, images, work, overwrite=overwrite, common=common)
    if common.json:
        write_json(made.model_dump(mode="json"))
        return
    for image in made.images:
        for note in image.notes:
            say(f"{Path(image.source).name}: {note}")
    if len(made.images) == 1:
        write_facts(_facts(made.rows()[0], made))
    else:
        write_table(made.rows(), title=made.summary)


def _is_anndata(path: Path) -> bool:
    if path.suffix.lower() in (".h5ad", ".h5"):
        return True
    return path.is_dir() and (path / "X").exists()


def _facts(row: Mapping[str, str], made: ConvertReport) -> dict[str, object]:
    channels = ", ".join(made.images[0].channels)
    facts: dict[str, object] = {(name or "state"): value for name, value in row.items()}
    return facts | ({"channels": channels} if channels else {})


def _convert_anndata(
    source: str, output: str | None, *, x: str, overwrite: bool, json: bool
) -> None:
    from cytopave.engine.atlas.convert import convert_atlas
    from cytopave.engine.atlas.store import open_atlas

    place = Path(output) if output else Path(source).with_suffix(".zarr")
    made = convert_atlas(source, place, x=x, overwrite=overwrite)
    store = open_atlas(made)
    facts = {"store": str(made), "n_cells": store.n_cells, "n_genes": store.n_genes}
    if json:
        write_json({**facts, "kind": store.kind})
    else:
        write(f"{made}: {store.n_cells} cells by {store.n_genes} genes ({store.kind})")


def _convert_images(
    sources: tuple[str, ...],
    output: str | None,
    images: Images,
    work: Workers,
    *,
    overwrite: bool,
    common: Common,
) -> ConvertReport:
    """Check the request, then run the flow in this process, on an API and workers of its own.

    Raises:
        CytopaveError: As the flow raises it.
    """
    from cytopave.engine.convert.planner import Wanted, plan_conversions
    from cytopave.engine.convert.report import convert_report, failed_conversions

    work.check()
    size = _pixel_size(images.pixel_size)
    how: dict[str, Any] = {"scene": images.scene, "axes": images.axes, "labels": images.labels}
    wanted = Wanted(**how, pixel_size=size, overwrite=overwrite)
    planned = plan_conversions(sources, wanted, output=output, match=images.match)
    if not planned.todo:
        failed = {Path(name): error for name, error in planned.failed.items()}
        report = convert_report(planned, failed)
        if failed:
            raise failed_conversions(report, failed)
        return report
    work.begin(verbose=common.verbose)
    from cytopave.flows import convert_images

    made: ConvertReport = convert_images(
        list(sources),
        output=output,
        match=images.match,
        **how,
        pixel_size=list(size) if size else None,
        overwrite=overwrite,
        **vars(work),
    )
    return made


def _pixel_size(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        size = tuple(float(part) for part in text.split(","))
    except ValueError:
        size = ()
    if not 1 <= len(size) <= 3 or not all(0 < length < float("inf") for length in size):
        raise ImageError(
            f"--pixel-size {text} must be micrometers larger than 0: one for Y and X, or "
            "two, or three (Z, Y, X), such as 2,0.325,0.325"
        )
    return size
