"""``cytopave demo``: the whole main job on real nuclei, in a few minutes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from cytopave.deployments.cli.console import say, write, write_json
from cytopave.deployments.cli.options import Common, Keeping, Request, Whole
from cytopave.deployments.cli.report import find_labels
from cytopave.deployments.cli.segment import run_flow, show

if TYPE_CHECKING:
    import numpy as np

ROWS, COLS, SIDE = 3, 3, 512
TILE, HALO = 400, 48
"""The tiles' seams run through the fields of the mosaic, never along their lines."""
NAME = "nuclei"
# The fields are of several magnifications: a stand-in of the right order, to show that it is kept.
_PIXEL_SIZE = 0.5
_MARK = "cytopave-demo"


def demo(*, out: str = "demo", workers: Whole = 2, common: Common = Common()) -> None:  # noqa: B008
    """Segment a mosaic of real nuclei that the small network never saw, and draw the result.

    The network is for demos and tests only.

    Args:
        out: Folder that gets the image with its labels and table, the report and the picture.
        workers: Number of worker processes.
        common: Options of every command.
    """
    from cytopave.engine.show.files import write_report

    since = time.monotonic()
    folder = Path(out)
    image = folder / "nuclei.zarr"
    truth = _write_mosaic(image)
    request = Request(
        name=NAME,
        segmenter="cellpose",
        model="nuclei-tiny",
        tile=str(TILE),
        halo=str(HALO),
        overwrite=True,
        workers=workers,
        cluster="cpu",
    )
    made = run_flow(str(image), request, Keeping(), common=common)
    _, provenance = find_labels(str(image), NAME)
    files = write_report(made, provenance, folder, image=str(image))
    files["cells"] = _write_cells(image, folder / "cells.csv")
    precision = _precision(truth, made.labels_path)
    if common.json:
        facts = made.model_dump(mode="json")
        write_json({**facts, "average_precision": precision, "files": files})
        return
    show(
        made,
        report=files["report"],
        stages=files["stages"],
        overlay=files["overlay"],
        page=files["page"],
        cells=files["cells"],
        accuracy=f"AP@0.5 {precision:.3f} against {int(truth.max())} nuclei outlined by people",
    )
    write()
    write(
        f"Done in {time.monotonic() - since:.0f} s. Look at {files['overlay']} and {files['page']}"
    )


def _write_mosaic(path: Path) -> np.ndarray:
    """Write the image; returns the true labels.

    Raises:
        UserError: The sample images cannot be had, or something else is in the way.
    """
    import shutil

    from cytopave.engine.errors import OutputError
    from cytopave.engine.omezarr.folders import Folder
    from cytopave.engine.omezarr.ngff import read_attributes
    from cytopave.engine.omezarr.write import write_image
    from cytopave.engine.samples import mosaic, nuclei_fields

    if path.exists():
        if _MARK not in (read_attributes(Folder(str(path.absolute()))) or {}):
            raise OutputError(f"{path} is not an image of this demo: give another folder (--out)")
        shutil.rmtree(path)
    say("collecting real images of nuclei")
    pixels, truth = mosaic(nuclei_fields("held-out"), ROWS, COLS, side=SIDE)
    write_image(path, pixels, pixel_size=_PIXEL_SIZE, attributes={_MARK: True})
    return truth


def _write_cells(image: Path, path: Path) -> str:
    from cytopave.engine.tables.export import export_csv
    from cytopave.engine.tables.read import open_table

    export_csv(open_table(image, NAME), path)
    return str(path.absolute())


def _precision(truth: np.ndarray, labels_path: str) -> float:
    from cytopave.engine.boxes import Box
    from cytopave.engine.omezarr.image import open_image
    from cytopave.engine.score import average_precision

    labels = open_image(labels_path)
    return average_precision(truth, labels.read(Box.of(labels.spatial_shape)))
