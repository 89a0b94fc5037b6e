"""Where the marks of a seam map are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import stores

from cytopave.engine.omezarr.image import open_image
from cytopave.engine.seams import SeamReport
from cytopave.engine.show.seam_map import CUT, SUSPECT, draw_seam_map


def centre_of(picture: np.ndarray, colour: tuple[int, int, int]) -> list[float]:
    return list(np.argwhere((picture == colour).all(axis=2)).mean(axis=0).round(1))


def test_marks_lie_where_the_report_says_also_in_a_smaller_picture(tmp_path: Path) -> None:
    image = open_image(stores.ome_image(tmp_path / "i.zarr", np.zeros((3, 200, 400), np.uint8)))
    labels = open_image(stores.ome_image(tmp_path / "l.zarr", np.zeros((3, 200, 400), np.uint32)))
    seams = SeamReport(cut=[(0, 2, 100, 80)], suspects=[(0, 0, 40, 300)])
    edges = ((0, 100, 200), (0, 150, 400))
    picture = draw_seam_map(image, labels, seams, lines=edges, side=200)
    assert picture.shape == (100, 200, 3)
    assert centre_of(picture, CUT) == [50, 40]
    assert centre_of(picture, SUSPECT) == [20, 150]
    assert picture[20, 150].max() == 0  # a ring: what it points at stays visible
    assert (picture[50, 100:140] == picture[50, 100]).all()
    assert picture[50, 100].max() > 0  # the tiles' edge


def test_marks_at_the_corners_stay_inside(tmp_path: Path) -> None:
    image = open_image(stores.ome_image(tmp_path / "i.zarr", np.zeros((64, 64), np.uint8)))
    corners = [(0, 0, 0), (0, 63, 63)]
    picture = draw_seam_map(
        image, image, SeamReport(cut=corners, suspects=corners), lines=((0, 64), (0, 64))
    )
    assert (picture[0, 0] == CUT).all() or (picture[0, 0] == SUSPECT).all()
    assert (picture == SUSPECT).all(axis=2).any()
