"""``cytopave convert`` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tifffile
import zarr

if TYPE_CHECKING:
    from commands import Command


@pytest.fixture
def files(folder: Path) -> Path:
    """A scan, a copy of it that was cut off, and what is no image."""
    pixels = np.arange(2 * 40 * 50, dtype=np.uint16).reshape(2, 40, 50)
    size = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
    named = {"axes": "CYX", "Channel": {"Name": ["DAPI", "GFP"]}, **size}
    tifffile.imwrite(folder / "scan.ome.tif", pixels, photometric="minisblack", metadata=named)
    content = (folder / "scan.ome.tif").read_bytes()
    (folder / "cut.tif").write_bytes(content[:3000])
    (folder / "pages.tif").write_bytes(b"")
    tifffile.imwrite(folder / "pages.tif", pixels, photometric="minisblack", metadata=None)
    (folder / "a.czi").write_bytes(b"anything")
    (folder / "notes.txt").write_text("nothing")
    (folder / "empty").mkdir()
    zarr.open_group(folder / "taken" / "scan.zarr", mode="w")
    return folder


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        ((), "nothing is named"),
        (("absent.tif",), "there is no file"),
        (("notes.txt",), "has an unknown format (.txt)"),
        (("a.czi",), "without the package bioio-czi (GPL-3.0"),
        (("empty",), "has no files of images below it"),
        (("pages.tif",), "name its axes in this order with --axes, such as zyx"),
        (("scan.ome.tif", "--axes", "yx"), "has 3 axes (2x40x50), but 'yx' names 2"),
        (("scan.ome.tif", "--scene", "3"), "there is no image '3' in"),
        (("scan.ome.tif", "--output", "taken"), "exists and was not made of"),
        (("scan.ome.tif", "--pixel-size", "0"), "--pixel-size 0 must be micrometers larger than 0"),
        (("scan.ome.tif", "--pixel-size", "1,2,3,4"), "must be micrometers"),
        (("scan.ome.tif", "--workers", "0"), "--workers 0 must be a number larger than 0"),
        (("scan.ome.tif", "scan.ome.tif", "--output", "a.zarr", "absent.tif"), "one store only"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    command: Command, files: Path, tokens: tuple[str, ...], says: str
) -> None:
    before = sorted(files.rglob("*"))
    ended = command("convert", *tokens)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("cytopave: error: ")
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert sorted(files.rglob("*")) == before


def test_truncated_files_are_status_1(command: Command, files: Path) -> None:
    ended = command("convert", "cut.tif")
    assert (ended.status, ended.out) == (1, "")
    assert ended.err.count("\n") == 1
    assert "cut.tif is truncated" in ended.err
    assert not (files / "cut.zarr").exists()


@pytest.mark.parametrize("verb", ["segment", "plan", "measure"])
def test_other_commands_say_what_to_do_first(command: Command, files: Path, verb: str) -> None:
    (files / "my scan.tif").write_bytes((files / "scan.ome.tif").read_bytes())
    ended = command(verb, "my scan.tif")
    assert (ended.status, ended.out) == (2, "")
    assert f"to my scan.zarr, with `cytopave convert '{files}/my scan.tif'`" in ended.err
    assert ended.err.count("\n") == 1


def test_convert_and_convert_again(
    command: Command, files: Path, prefect_api: str, dask_address: str
) -> None:
    del prefect_api
    out = ("--output", "out", "--cluster", dask_address)
    ended = command("convert", "scan.ome.tif", *out)
    assert ended.status == 0, ended.err
    facts = dict(
        line.split(maxsplit=1) for line in ended.out.replace("pixel size", "size").splitlines()
    )
    assert facts == {
        "file": "scan.ome.tif",
        "store": f"{files}/out/scan.zarr",
        "state": "converted",
        "axes": "cyx",
        "pixels": "2 x 40 x 50",
        "size": "y 0.5 um, x 0.5 um",
        "channels": "DAPI, GFP",
    }
    both = ("scan.ome.tif", "pages.tif", "--axes", "cyx", *out)
    ended = command("convert", *both, "--json")
    assert ended.status == 0, ended.err
    states = {Path(i["store"]).name: i["state"] for i in json.loads(ended.out)["images"]}
    assert states == {"scan.zarr": "done before", "pages.zarr": "converted"}
    again = command("convert", *both)
    assert (again.status, again.out.splitlines()[1]) == (0, "2 done before")
    assert "pages.tif: the file does not say the pixel size along y, x" in again.err
