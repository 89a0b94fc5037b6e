"""What is measured where: labels by name or place, and those that do not belong to the image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
import zarr
from measured import measured

from cytopave.engine.errors import ImageError, LabelError, OutputError
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.tables import measurement
from cytopave.engine.tables.measurement import Measurement, region_shape
from cytopave.engine.tables.planner import is_written, plan_measurement


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Two channels, two levels, and labels of each level."""
    pixels = stores.pixels((2, 60, 80))
    path = stores.ome_image(
        tmp_path / "i.zarr", pixels, axes="cyx", n_levels=2, channels=("DAPI", "actin")
    )
    labels = stores.random_labels((60, 80))
    stores.group(path / "labels", {"ome": {"version": "0.5", "labels": ["cells", "coarse"]}})
    stores.ome_image(path / "labels" / "cells", labels, axes="yx", n_levels=2)
    stores.ome_image(path / "labels" / "coarse", labels[::2, ::2], axes="yx", scale=1.0)
    return path


def plan(image: Path, labels: Path | str = "cells", **request: Any) -> Measurement:
    return plan_measurement(str(image), labels=str(labels), **request)


def test_labels_by_name_and_by_place(image: Path) -> None:
    by_name = plan(image)
    assert by_name == plan(image, image / "labels" / "cells")
    assert by_name.place == f"{image}/labels/cells"
    assert by_name.region == "../labels/cells"
    assert str(by_name.target.published) == f"{image}/tables/cells"
    assert by_name.image.level == 0
    assert by_name.channels == (0, 1)
    assert plan(image, channels=["actin"]).channels == (1,)


def test_the_level_that_the_labels_fit(image: Path) -> None:
    coarse = plan(image, "coarse")
    assert coarse.image.level == 1
    assert coarse.columns.scale == (1.0, 1.0)
    with pytest.raises(LabelError, match=r"fit no level .*level 0 has \(2, 60, 80\)"):
        plan(image, "coarse", level=0)


def test_labels_elsewhere(image: Path, tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "mine.zarr", stores.random_labels((60, 80)))
    made = plan(image, tmp_path / "mine.zarr", name="theirs", output=str(tmp_path / "out.zarr"))
    assert str(made.target.published) == f"{tmp_path}/out.zarr/tables/theirs"
    assert made.region == "../../mine.zarr"
    assert str(plan(image, tmp_path / "mine.zarr").target.published) == f"{image}/tables/mine"


def test_a_plain_image_takes_the_labels_pixel_size(tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "scan.zarr", stores.pixels((40, 50)))
    stores.ome_image(tmp_path / "mine.zarr", stores.random_labels((40, 50)), scale=0.25)
    columns = plan(tmp_path / "scan.zarr", tmp_path / "mine.zarr").columns
    assert (columns.scale, columns.units) == ((0.25, 0.25), ("micrometer", "micrometer"))


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        ({"labels": "nuclei"}, OutputError, "no label image 'nuclei': those there are cells"),
        ({"labels": "no/where.zarr"}, ImageError, "there are no labels at"),
        ({"labels": "text.txt"}, ImageError, "is a file, not a zarr image"),
        ({"labels": "float.zarr"}, LabelError, "holds float32 values, which are no labels"),
        ({"labels": "i.zarr"}, LabelError, "has 2 channels, and labels have none"),
        ({"labels": "other.zarr"}, LabelError, r"have the shape \(61, 80\) \(yx\) and fit no lev"),
        ({"labels": "stack.zarr"}, LabelError, r"\(2, 60, 80\) \(zyx\) and fit no level"),
        ({"labels": "scaled.zarr"}, LabelError, r"pixels of \(0.7, 0.7\), the image's are of \(0"),
        ({"channels": ["GFP"]}, ImageError, r"no channel 'GFP' .*0 \(DAPI\), 1 \(actin\)"),
        ({"level": 5}, ImageError, "has no level 5"),
        ({"axes": "zyx"}, ImageError, "leave the axes out"),
        ({"output": "text.txt"}, OutputError, "is a file: give a folder"),
        ({"output": "float.zarr"}, OutputError, "is a zarr array, which cannot hold a table"),
    ],
)
def test_bad_requests(
    image: Path,
    monkeypatch: pytest.MonkeyPatch,
    request_: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    folder = image.parent
    monkeypatch.chdir(folder)
    (folder / "text.txt").touch()
    stores.plain_array(folder / "float.zarr", np.zeros((60, 80), np.float32))
    stores.plain_array(folder / "other.zarr", np.zeros((61, 80), np.uint8))
    stores.plain_array(
        folder / "stack.zarr", np.zeros((2, 60, 80), np.uint8), dimension_names="zyx"
    )
    stores.ome_image(folder / "scaled.zarr", np.zeros((60, 80), np.uint8), scale=0.7)
    before = sorted(folder.rglob("*"))
    with pytest.raises(error, match=says) as caught:
        plan(image, **{"labels": "cells"} | request_)
    assert "\n" not in str(caught.value)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["a/b", ".hidden", ""])
def test_names_that_no_table_can_have(image: Path, name: str) -> None:
    with pytest.raises(OutputError, match="cannot name a table"):
        plan(image, name=name).target.check()


def test_whether_the_very_table_is_there(image: Path) -> None:
    assert not is_written(plan(image))
    measured(image, "cells")
    assert is_written(plan(image))
    assert not is_written(plan(image, channels=["DAPI"]))
    assert not is_written(plan(image, name="other"))
    assert not is_written(plan(image, "coarse", name="cells"))


def test_the_digest_holds_all_that_matters(image: Path) -> None:
    first = plan(image).digest
    assert plan(image, name="other", overwrite=True).digest == first
    others = {plan(image, channels=["DAPI"]).digest, plan(image, "coarse").digest}
    content = json.loads((image / "zarr.json").read_text())
    stores.plain_array(image / "s0", stores.pixels((2, 60, 80), seed=9), dimension_names="cyx")
    others.add(plan(image).digest)
    content["attributes"]["ome"]["omero"]["channels"][0]["label"] = "Hoechst"
    (image / "zarr.json").write_text(json.dumps(content))
    others.add(plan(image).digest)
    assert len({first, *others}) == 5


@pytest.mark.parametrize(
    ("chunks", "label_chunks", "pixels", "wanted"),
    [
        ((256, 256), (512, 512), 2**20, (1024, 1024)),
        ((256, 256), (400, 400), 2**20, (4000, 5000)),  # 6400 is more than there are
        ((1000, 1), (1, 1000), 2**10, (1000, 1000)),
        ((100, 100), (100, 100), 100, (100, 100)),
    ],
)
def test_regions_hold_whole_chunks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chunks: Any,
    label_chunks: Any,
    pixels: int,
    wanted: tuple[int, ...],
) -> None:
    for name, shape in (("i", chunks), ("l", label_chunks)):
        zarr.create_array(
            str(tmp_path / f"{name}.zarr"), shape=(4000, 5000), chunks=shape, dtype="u1"
        )
    image, labels = open_image(tmp_path / "i.zarr"), open_image(tmp_path / "l.zarr")
    monkeypatch.setattr(measurement, "REGION_PIXELS", pixels)
    assert region_shape(image, labels) == wanted
    # Where no region of bearable size does, it holds whole chunks of labels.
    monkeypatch.setattr(measurement, "MOST_PIXELS", 1)
    monkeypatch.setattr(measurement, "REGION_PIXELS", 1)
    assert region_shape(image, labels) == label_chunks
