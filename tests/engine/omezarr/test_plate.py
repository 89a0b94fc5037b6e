from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
import stores
from plates import write_plate
from yaozarrs import validate_zarr_store

from cytopave.engine.errors import ImageError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.plate import Well, is_plate, open_plate

if TYPE_CHECKING:
    from pathlib import Path

IMAGES = [np.zeros((20, 30), np.uint8)] * 2
WELLS = dict.fromkeys(("A/1", "A/2", "B/1", "B/2"), IMAGES)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_wells_and_fields_in_the_plate_s_order(tmp_path: Path, version: str) -> None:
    path = write_plate(tmp_path / "plate.zarr", WELLS, version=version)
    validate_zarr_store(str(path))
    assert is_plate(path)
    plate = open_plate(path)
    assert plate.missing == ()
    assert plate.wells == tuple(Well(w, (f"{w}/0", f"{w}/1")) for w in WELLS)
    assert open_image(plate.image("B/1/1")).shape == (20, 30)


def test_what_metadata_name_and_is_not_there(tmp_path: Path) -> None:
    path = write_plate(tmp_path / "plate.zarr", WELLS, absent=["A/2", "B/1/0", "B/2/0", "B/2/1"])
    plate = open_plate(path)
    assert plate.missing == ("A/2", "B/2")
    assert plate.wells == (
        Well("A/1", ("A/1/0", "A/1/1")),
        Well("B/1", ("B/1/1",), missing=("B/1/0",)),
    )


def test_some_wells(tmp_path: Path) -> None:
    path = write_plate(tmp_path / "plate.zarr", WELLS)
    assert [w.name for w in open_plate(path, wells=["B/2", "a1"]).wells] == ["A/1", "B/2"]
    with pytest.raises(ImageError, match=re.escape("has no well C9: its 4 wells are A/1, A/2, B/")):
        open_plate(path, wells=["A/1", "C9"])
    with pytest.raises(ImageError, match="has no well of no name"):
        open_plate(path, wells=[])


def test_what_is_no_plate(tmp_path: Path) -> None:
    image = stores.ome_image(tmp_path / "image.zarr", IMAGES[0])
    assert not is_plate(image)
    assert not is_plate(tmp_path / "nothing")
    with pytest.raises(ImageError, match="is no plate"):
        open_plate(image)
    empty = write_plate(tmp_path / "plate.zarr", {"A/1": IMAGES}, absent=["A/1"])
    with pytest.raises(ImageError, match="holds no image in any of its 1 wells"):
        open_plate(empty)
    with pytest.raises(ImageError, match="all of them are for segment_plate"):
        open_image(empty)
