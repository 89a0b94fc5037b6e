"""The flow that converts files, on worker processes; and the stores as others read them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ops_flows
import pytest
import stores
import tifffile
from converted import convert_here, level
from lif import write_lif

from cytopave.engine.errors import ConvertError, CorruptError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling
from cytopave.flows import convert_images

if TYPE_CHECKING:
    from collections.abc import Callable

    from runs import Flows

PYTHON = Path(__file__).parents[2] / ".venv-readers" / "bin" / "python"
SCRIPT = Path(__file__).parents[1] / "helpers" / "image_readers.py"
SIZES = {"PhysicalSizeX": 0.325, "PhysicalSizeY": 0.325, "PhysicalSizeZ": 2.0}


@pytest.fixture
def convert(prefect_api: str, dask_address: str) -> Callable[..., Any]:
    del prefect_api

    def run(*sources: Path, **options: Any) -> Any:
        run_flow: Any = convert_images
        return run_flow([str(s) for s in sources], **{"cluster": dask_address} | options)

    return run


def write(path: Path, shape: tuple[int, ...] = (2, 300, 310), axes: str = "CYX") -> np.ndarray:
    pixels = stores.pixels(shape, "uint16")
    metadata = {"axes": axes, **SIZES}
    tifffile.imwrite(path, pixels, photometric="minisblack", metadata=metadata)
    return pixels


def test_a_folder_of_files_and_then_the_rest(folder: Path, convert: Callable[..., Any]) -> None:
    truth = {name: write(folder / f"{name}.ome.tif") for name in ("a", "b")}
    lif = stores.pixels((1, 1, 2, 40, 50), "uint8")
    size = dict.fromkeys("tzyx", 1e-6)
    write_lif(folder / "c.lif", {"one": lif}, pixel_size=size, channels=("Gray",))
    (folder / "d.tif").write_bytes(b"half a copy")
    with pytest.raises(ConvertError, match=r"1 of 4 images could not be .*d\.tif.*no TIFF file"):
        convert(folder, output=str(folder / "out"))
    write(folder / "d.tif", axes="CYX")
    made = convert(folder, output=str(folder / "out"))
    states = {Path(i.store).name: i.state for i in made.images}
    assert states == {
        "a.zarr": "done before", "b.zarr": "done before", "c.zarr": "done before",
        "d.zarr": "converted",
    }  # fmt: skip
    for name, pixels in truth.items():
        image = open_image(folder / "out" / f"{name}.zarr")
        np.testing.assert_array_equal(level(image), pixels)
        assert image.scale == (1, 0.325, 0.325)
    np.testing.assert_array_equal(level(open_image(folder / "out" / "c.zarr")), lif[0])
    assert sorted(os.listdir(folder / "out")) == ["a.zarr", "b.zarr", "c.zarr", "d.zarr"]


def test_a_large_file_by_many_tasks(
    folder: Path, convert: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a failure leaves: the parts that were written, and no store."""
    monkeypatch.setattr("cytopave.engine.convert.conversion.SPANS", (512,))
    monkeypatch.setattr("cytopave.engine.convert.conversion.GROUP_PIXELS", 2 * 512**2)
    path = folder / "a.tif"
    pixels = stores.pixels((1500, 1400), "uint16")
    tifffile.imwrite(path, pixels, tile=(256, 256), compression="zlib")
    whole = path.read_bytes()
    with tifffile.TiffFile(path) as tif:
        place = tif.pages[0].dataoffsets[-1]
    path.write_bytes(whole[:place] + b"\xff" * 500 + whole[place + 500 :])
    stamp = path.stat()
    with pytest.raises(CorruptError, match="is truncated or damaged"):
        convert(path)
    (left,) = (p for p in folder.iterdir() if p.is_dir())
    assert left.name.startswith(".a.zarr.")
    n_done = len(os.listdir(left / "done"))
    assert 0 < n_done < 5
    path.write_bytes(whole)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    state: Any = convert(path, return_state=True)
    np.testing.assert_array_equal(level(open_image(folder / "a.zarr")), pixels)
    assert sorted(os.listdir(folder)) == ["a.tif", "a.zarr"]
    assert names_of(state, 6) == {"convert_part": 5, "publish_image": 1}


def names_of(state: Any, n: int) -> dict[str, int]:
    """How many tasks of each kind a run had; none has tags, each of which costs seconds."""
    found = ops_flows.task_runs(state.state_details.flow_run_id, {"Completed": n})
    assert not any(run.tags for run in found)
    names = [run.task_key.split("-")[0].split(".")[-1] for run in found]
    return {name: names.count(name) for name in names}


def test_what_was_converted_can_be_segmented(
    folder: Path, convert: Callable[..., Any], flows: Flows
) -> None:
    yy, xx = np.mgrid[:200, :220]
    disk = ((yy - 90) ** 2 + (xx - 110) ** 2 < 40**2) * np.uint16(1000)
    metadata = {"axes": "YX", **SIZES}
    tifffile.imwrite(folder / "a.ome.tif", disk.astype(np.uint16), metadata=metadata)
    convert(folder / "a.ome.tif")
    report = flows.segment(
        folder / "a.zarr",
        segmenter=Threshold(threshold=500),
        tiling=Tiling(tile=(100, 100), halo=10),
    )
    assert report.n_objects == 1


@pytest.mark.skipif(not PYTHON.exists(), reason="needs `make readers`")
def test_others_read_what_was_converted(folder: Path) -> None:
    pixels = stores.pixels((2, 3, 700, 600), "uint16")
    metadata = {
        "axes": "CZYX", **SIZES, "Channel": {"Name": ["DAPI", "GFP"], "Color": [65535, 16711935]},
    }  # fmt: skip
    tifffile.imwrite(folder / "a.ome.tif", pixels, photometric="minisblack", metadata=metadata)
    (image,) = convert_here(folder / "a.ome.tif")
    done = subprocess.run(
        [PYTHON, "-W", "ignore", SCRIPT, image.url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    shapes = [[2, 3, 700, 600], [2, 3, 350, 300]]
    total = int(pixels.sum(dtype=np.int64))
    assert seen["ngio"] == {
        "levels": 2, "shape": shapes[0], "channels": ["DAPI", "GFP"], "sum": total,
        "pixel size": [2.0, 0.325, 0.325, "micrometer"],
    }  # fmt: skip
    assert seen["ome-zarr-py"] == {"shapes": shapes, "channels": ["DAPI", "GFP"]}
    layers = [
        {"name": f"a: {name}", "color": color, "kind": "image", "scale": [2.0, 0.325, 0.325],
         "shapes": [shape[1:] for shape in shapes]}
        for name, color in (("DAPI", "blue"), ("GFP", "green"))
    ]  # fmt: skip
    assert seen["napari-ome-zarr"] == layers
