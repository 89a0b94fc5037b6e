"""Tables as flows write them: with the labels, or for labels that are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import run_flow
import stores
from runs import blobs, components, components_over_time, labels_of
from skimage.measure import regionprops_table

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.publish import locked
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tables.read import open_table
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runs import Flows

    from cytopave.engine.tables.report import TableReport

REQUEST: dict[str, Any] = {
    "segmenter": Threshold(threshold=500),
    "tiling": Tiling(tile=(64, 64), halo=8),
    "channels": [0],
}


def two_channels(mask: np.ndarray, axis: int = 0) -> np.ndarray:
    """What is segmented, and something else to be measured as well."""
    return np.stack([mask * np.uint16(1000), stores.pixels(mask.shape)], axis=axis)


def measure(flows: Flows, image: Path, **parameters: Any) -> TableReport:
    from cytopave.flows import measure_cells

    run: Callable[..., TableReport] = measure_cells
    return run(str(image), cluster=flows.address, **parameters)


def test_segmentation_leaves_a_table(folder: Path, flows: Flows) -> None:
    mask = blobs((200, 190))
    pixels = two_channels(mask)
    image = stores.ome_image(folder / "image.zarr", pixels, axes="cyx", chunks=(1, 50, 50))
    report = flows.segment(image, **REQUEST)
    assert report.table_path == f"{image}/tables/cells"
    (stage,) = (s for s in report.stages if s.name == "measure")
    assert (stage.units, stage.tasks) == (report.n_objects, 1)
    labels = components(mask)
    np.testing.assert_array_equal(labels_of(image), labels)
    table = open_table(image, "cells").read()
    wanted = regionprops_table(
        labels,
        np.moveaxis(pixels, 0, -1).astype(float),
        properties=("label", "num_pixels", "intensity_mean", "intensity_std", "axis_major_length"),
        spacing=(0.5, 0.5),
    )
    np.testing.assert_array_equal(table["label"], wanted["label"])
    np.testing.assert_array_equal(table["n_pixels"], wanted["num_pixels"])
    np.testing.assert_allclose(table["axis_major_length"], wanted["axis_major_length"])
    np.testing.assert_allclose(table["channel_1_mean"], wanted["intensity_mean-1"])
    np.testing.assert_allclose(table["channel_1_std"], wanted["intensity_std-1"])
    assert table["n_tiles"].max() > 1
    assert [p.name for p in folder.iterdir()] == ["image.zarr"]

    # The name is taken; replaced, both are.
    with pytest.raises(OutputError, match="the label image 'cells' is already in"):
        flows.segment(image, **REQUEST)
    flows.segment(image, overwrite=True, **REQUEST | {"segmenter": Threshold(threshold=2000)})
    assert len(open_table(image, "cells")) == 0


def test_a_taken_table_is_noticed_before_anything_is_computed(folder: Path, flows: Flows) -> None:
    image = stores.ome_image(folder / "image.zarr", two_channels(blobs((90, 90))), axes="cyx")
    stores.group(image / "tables", {"tables": ["cells"]})
    stores.group(image / "tables" / "cells", {})
    with pytest.raises(OutputError, match="the table 'cells' is already in"):
        flows.segment(image, **REQUEST)
    assert [p.name for p in folder.iterdir()] == ["image.zarr"]
    report = flows.segment(image, measure=False, **REQUEST)
    assert report.table_path is None
    assert sorted(p.name for p in (image / "tables").iterdir()) == ["cells", "zarr.json"]


def test_time_points_and_exports(folder: Path, flows: Flows) -> None:
    mask = blobs((3, 90, 100))
    image = stores.ome_image(folder / "image.zarr", two_channels(mask, axis=1), axes="tcyx")
    flows.segment(image, measure=False, **REQUEST)
    first = measure(flows, image, channels=[1])
    labels = components_over_time(mask)
    assert (first.n_objects, first.measured) == (labels.max(), True)
    table = open_table(image, "cells").read()
    np.testing.assert_array_equal(table["label"], np.arange(labels.max()) + 1)
    times = [int(np.flatnonzero((labels == i).any(axis=(1, 2)))[0]) for i in table["label"]]
    assert table["time"].tolist() == times
    assert not [name for name in table if name.startswith("channel_0")]
    assert [p.name for p in folder.iterdir()] == ["image.zarr"]
    # It is there: only copied, not measured again.
    files = {"csv": str(folder / "a.csv"), "parquet": str(folder / "a.parquet")}
    again = measure(flows, image, channels=[1], **files)
    assert (again.n_objects, again.measured, again.files) == (labels.max(), False, files)
    assert len((folder / "a.csv").read_text().splitlines()) == labels.max() + 1
    with pytest.raises(OutputError, match="the table 'cells' is already in"):
        measure(flows, image)
    assert measure(flows, image, overwrite=True).measured


def test_killed_while_it_measures(folder: Path, prefect_api: str, tmp_path: Path) -> None:
    """Neither labels nor table are there; the same run then publishes both."""
    mask = blobs((150, 140))
    image = stores.ome_image(folder / "image.zarr", mask * np.uint16(1000))
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    parameters = {
        "image": str(image),
        "segmenter": REQUEST["segmenter"].model_dump(),
        "tiling": REQUEST["tiling"].model_dump(),
        "cluster": "cpu",
        "workers": 1,
    }
    process = run_flow.Process(cwd, parameters, PREFECT_API_URL=prefect_api)
    with locked(Folder(str(image))):  # without which nothing is published
        process.kill_when(lambda: any(folder.glob(".cytopave/*/table-*/parts/*/*.npy")))
    assert stores.listed(image) == []
    assert not (image / "tables" / "cells").exists()
    run_flow.Process(cwd, parameters, PREFECT_API_URL=prefect_api).wait()
    np.testing.assert_array_equal(labels_of(image), components(mask))
    assert len(open_table(image, "cells")) == components(mask).max()
    assert [p.name for p in folder.iterdir()] == ["image.zarr"]
    assert [p.name for p in (image / "tables").iterdir() if p.is_dir()] == ["cells"]
