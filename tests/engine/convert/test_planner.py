"""What becomes which store, and what is left alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import zarr
from converted import conversions, convert_here, level

from cytopave.engine.convert.planner import Planned, Wanted, plan_conversions
from cytopave.engine.errors import CytopaveError, ImageError, MissingExtraError, OutputError


def write(path: Path, value: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, np.full((40, 50), value, np.uint8))
    return path


def plan(*sources: Path, output: Path | None = None, match: str = "*", **wanted: Any) -> Planned:
    place = str(output) if output else None
    return plan_conversions([str(s) for s in sources], Wanted(**wanted), output=place, match=match)


def test_a_folder_and_what_is_below_it(folder: Path) -> None:
    write(folder / "in" / "b.tif")
    write(folder / "in" / "day 1" / "a.ome.tif")
    write(folder / "in" / "day 2" / "a.OME.TIFF")
    write(folder / "in" / ".hidden" / "a.tif")
    write(folder / "in" / "store.zarr" / "a.tif")
    zarr.open_group(folder / "in" / "store.zarr", mode="w")
    (folder / "in" / "notes.txt").write_text("no image")
    (folder / "in" / "preview.png").write_bytes(b"a picture of it")
    (folder / "in" / ".x.tif").write_bytes(b"half a copy")
    made = conversions(folder / "in")
    names = ["b.zarr", "day 1/a.zarr", "day 2/a.zarr"]
    assert [str(c.store.relative_to(folder / "in")) for c in made] == names
    made = conversions(folder / "in", output=folder / "out")
    assert [str(c.store.relative_to(folder / "out")) for c in made] == names
    chosen = plan(folder / "in", match="day 2/*").todo
    assert [c.scene.path for c in chosen] == [str(folder / "in" / "day 2" / "a.OME.TIFF")]
    with pytest.raises(ImageError, match=r"no files of images below it that match '\*.lif'"):
        plan(folder / "in", match="*.lif")


def test_the_name_of_the_only_store(folder: Path) -> None:
    a, b = write(folder / "a.tif"), write(folder / "b.tif")
    (made,) = conversions(a, output=folder / "x" / "y.zarr")
    assert made.store == folder / "x" / "y.zarr"
    with pytest.raises(OutputError, match=r"y\.zarr can be one store only"):
        plan(a, b, output=folder / "y.zarr")


def test_two_files_that_would_be_one_store(folder: Path) -> None:
    a, b = write(folder / "a.tif"), write(folder / "a.ome.tif")
    with pytest.raises(OutputError, match=r"a\.tif and .*a\.ome\.tif would both become .*a\.zarr"):
        plan(a, b)


def test_one_bad_file_among_others(folder: Path) -> None:
    write(folder / "a.tif")
    (folder / "b.tif").write_bytes(b"no image")
    (folder / "c.czi").write_bytes(b"anything")
    found = plan(folder)
    assert [c.store.name for c in found.todo] == ["a.zarr"]
    kinds = {Path(p).name: type(e) for p, e in found.failed.items()}
    assert kinds == {"b.tif": ImageError, "c.czi": MissingExtraError}
    with pytest.raises(ImageError, match="no TIFF file"):
        plan(folder / "b.tif")


def test_what_is_there(folder: Path) -> None:
    """The very same is done; anything else is an error, or replaced when that is asked for."""
    source = write(folder / "a.tif", 1)
    (image,) = convert_here(source)
    written = (folder / "a.zarr" / "zarr.json").stat().st_mtime_ns
    for overwrite in (False, True):
        again = plan(source, overwrite=overwrite)
        assert ([c.store.name for c in again.done], again.todo) == (["a.zarr"], [])
    for change in ({"pixel_size": (1.0,)}, {"labels": True}):
        with pytest.raises(OutputError, match=r"a\.zarr exists and was not made of .*--overwrite"):
            plan(source, **change)
    write(source, 2)
    with pytest.raises(OutputError, match="was not made of"):
        plan(source)
    assert (folder / "a.zarr" / "zarr.json").stat().st_mtime_ns == written
    assert (level(image) == 1).all()
    (image,) = convert_here(source, overwrite=True)
    assert (level(image) == 2).all()
    assert sorted(os.listdir(folder)) == ["a.tif", "a.zarr"]


def test_what_is_no_store_is_not_replaced(folder: Path) -> None:
    source = write(folder / "a.tif")
    (folder / "a.zarr").mkdir()
    (folder / "a.zarr" / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match="is no zarr store and is not replaced"):
        plan(source, overwrite=True)


@pytest.mark.parametrize(
    ("source", "says"), [("s3://b/a.tif", "no local file"), ("absent.tif", "there is no file")]
)
def test_sources_that_cannot_be(folder: Path, source: str, says: str) -> None:
    place = source if "://" in source else str(folder / source)
    with pytest.raises(CytopaveError, match=says):
        plan_conversions([place], Wanted())
