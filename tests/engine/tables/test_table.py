"""Tables as they are written: complete, in the image's own format, and tied to their labels."""

from __future__ import annotations

import shutil
import uuid
import warnings
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pytest
import stores
import worlds
import zarr
from measured import measure_here, measured
from skimage.measure import regionprops_table

from cytopave.engine.errors import CorruptError, OutputError, StaleTableError
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.ngff import read_attributes
from cytopave.engine.tables import combine, layout, measurement, stages
from cytopave.engine.tables.planner import check_place, plan_measurement
from cytopave.engine.tables.read import open_table


def add_labels(image: Path, labels: np.ndarray, name: str = "cells", **kwargs: Any) -> Path:
    """Write labels as another tool might."""
    version = kwargs.get("version", "0.5")
    names = [*stores.listed(image), name]
    content: dict[str, Any] = {"labels": names}
    if version == "0.5":
        content = {"ome": {"version": "0.5", **content}}
    if not (image / "labels").exists():
        stores.group(image / "labels", content, version=version)
    return stores.ome_image(image / "labels" / name, labels, **kwargs)


def read(path: Path) -> anndata.AnnData:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return anndata.read_zarr(path)


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_anndata_reads_what_scikit_image_says(tmp_path: Path, version: str) -> None:
    labels = worlds.disks((300, 260), radius=9, pitch=22).astype(np.uint32)
    pixels = stores.pixels((2, 300, 260))
    image = stores.ome_image(
        tmp_path / "i.zarr", pixels, axes="cyx", version=version, chunks=(1, 64, 64),
        channels=("DAPI", "actin"),
    )  # fmt: skip
    add_labels(image, labels, version=version, axes="yx", chunks=(50, 50))
    assert measured(image, "cells").target.published == Folder(str(image), {}, "tables/cells")
    table = read(image / "tables" / "cells")
    wanted = regionprops_table(
        labels, np.moveaxis(pixels, 0, -1),
        properties=("label", "area", "centroid", "eccentricity", "intensity_mean"),
        spacing=(0.5, 0.5),
    )  # fmt: skip
    np.testing.assert_array_equal(table.obs["label"], wanted["label"])
    assert table.obs_names.tolist() == [str(i) for i in wanted["label"]]
    np.testing.assert_allclose(table.obs["area"], wanted["area"])
    np.testing.assert_allclose(table.obs["eccentricity"], wanted["eccentricity"], atol=1e-6)
    np.testing.assert_allclose(
        table.obsm["spatial"], np.stack([wanted["centroid-1"], wanted["centroid-0"]], axis=1)
    )
    assert table.var_names[:6].tolist() == [
        "DAPI_mean", "DAPI_min", "DAPI_max", "DAPI_std", "DAPI_sum", "actin_mean"
    ]  # fmt: skip
    assert table.var["channel"].tolist() == 5 * ["DAPI"] + 5 * ["actin"]
    np.testing.assert_allclose(table[:, "actin_mean"].X[:, 0], wanted["intensity_mean-1"])
    assert table.uns["units"] == {"y": "micrometer", "x": "micrometer"}
    assert table.uns["pixel_size"] == {"y": 0.5, "x": 0.5}
    assert (table.obs["region"] == "cells").all()
    assert table.X.dtype == np.float64
    assert zarr.open_group(str(image / "tables" / "cells")).metadata.zarr_format == (
        2 if version == "0.4" else 3
    )


def test_attributes_of_both_conventions(tmp_path: Path) -> None:
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((40, 40)))
    add_labels(image, stores.random_labels((40, 40)))
    measured(image, "cells")
    assert read_attributes(Folder(str(image), {}, "tables")) == {"tables": ["cells"]}
    attributes = read_attributes(Folder(str(image), {}, "tables/cells")) or {}
    assert attributes["region"] == {"path": "../labels/cells"}
    assert (attributes["type"], attributes["fractal_table_version"]) == ("feature_table", "1")
    assert (attributes["instance_key"], attributes["encoding-type"]) == ("label", "anndata")
    assert attributes["spatialdata-encoding-type"] == "ngff:regions_table"
    assert read(image / "tables" / "cells").uns["spatialdata_attrs"] == {
        "region": "cells", "region_key": "region", "instance_key": "label"
    }  # fmt: skip


def test_many_parts_are_joined_out_of_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of files, ranges and chunks of rows, where the defaults would make one of each."""
    labels = worlds.confluent((256, 240), pitch=10).astype(np.uint32)
    # Ids that say nothing of where objects are, with gaps.
    ids = np.concatenate([[0], np.random.default_rng(0).permutation(10**6)[: labels.max()] + 1])
    labels = ids.astype(np.uint32)[labels]
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((256, 240)), chunks=(32, 32))
    add_labels(image, labels, chunks=(16, 16))
    whole = measured(image, "cells", name="whole")
    assert len(whole.groups) == len(whole.regions) == 1
    monkeypatch.setattr(measurement, "REGION_PIXELS", 1024)
    monkeypatch.setattr(measurement, "LEAST_PIXELS", 3 * 1024)
    monkeypatch.setattr(measurement, "BLOCK_BYTES", 40 * 256)
    monkeypatch.setattr(layout, "CHUNK", 50)
    monkeypatch.setattr(stages, "CHUNK", 50)
    monkeypatch.setattr(combine, "_SAMPLES", 200)
    parts = measured(image, "cells", name="parts")
    assert (len(parts.groups), len(parts.regions)) == (20, 64)
    assert len(parts.blocks(parts.regions[0][1])) == 4
    a, b = (read(image / "tables" / name) for name in ("whole", "parts"))
    assert a.n_obs == len(ids) - 1
    assert a.obs_names.equals(b.obs_names)
    np.testing.assert_array_equal(a.obs["label"], np.sort(ids[1:]))
    for name in a.obs:
        if name != "region":
            np.testing.assert_allclose(a.obs[name], b.obs[name], rtol=1e-12, err_msg=name)
    np.testing.assert_allclose(a.X, b.X, rtol=1e-12)
    np.testing.assert_allclose(a.obsm["spatial"], b.obsm["spatial"], rtol=1e-12)
    assert zarr.open_array(str(image / "tables/parts/obs/label")).chunks == (50,)


@pytest.mark.parametrize(("times", "chunks"), [(3, (1, 1, 16, 16)), (3, (2, 2, 16, 16))])
def test_time_points_are_measured_by_themselves(
    tmp_path: Path, times: int, chunks: tuple[int, ...]
) -> None:
    """The same id in two time points, as of a tracked cell, is two rows."""
    labels = np.stack([stores.random_labels((40, 50), seed=t) for t in range(times)])
    pixels = stores.pixels((times, 2, 40, 50))
    image = stores.ome_image(tmp_path / "i.zarr", pixels, axes="tcyx", chunks=chunks)
    add_labels(image, labels, axes="tyx", chunks=(1, 16, 16))
    measured(image, "cells")
    table = read(image / "tables" / "cells")
    rows = [(t, i) for t in range(times) for i in np.unique(labels[t]) if i]
    found = list(zip(table.obs["time"], table.obs["label"], strict=True))
    assert found == rows
    assert table.obs_names.tolist() == [f"{t}_{i}" for t, i in rows]
    sums = [pixels[t, 1][labels[t] == i].sum() for t, i in rows]
    np.testing.assert_array_equal(table[:, "channel_1_sum"].X[:, 0], sums)


def test_a_stack_and_a_plain_array(tmp_path: Path) -> None:
    labels = worlds.disks((12, 50, 40), radius=6, pitch=15).astype(np.uint16)
    pixels = stores.pixels((12, 50, 40), "float32")
    stores.plain_array(tmp_path / "scan.zarr", pixels, chunks=(5, 16, 16))
    stores.plain_array(tmp_path / "mine.zarr", labels, chunks=(4, 25, 40))
    made = measured(tmp_path / "scan.zarr", tmp_path / "mine.zarr")
    assert made.region == "../../mine.zarr"
    table = read(tmp_path / "scan.labels.zarr" / "tables" / "mine")
    wanted = regionprops_table(
        labels, pixels.astype(float), properties=("label", "area", "intensity_std", "centroid")
    )
    np.testing.assert_array_equal(table.obs["volume"], wanted["area"])
    np.testing.assert_allclose(table[:, "intensity_std"].X[:, 0], wanted["intensity_std"])
    np.testing.assert_allclose(table.obsm["spatial"][:, 2], wanted["centroid-0"])
    assert "eccentricity" not in table.obs
    assert "axis_middle_length" in table.obs
    assert len(open_table(tmp_path / "scan.labels.zarr", "mine")) == len(wanted["label"])


def test_no_objects(tmp_path: Path) -> None:
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((40, 40)))
    add_labels(image, np.zeros((40, 40), np.uint32))
    measured(image, "cells")
    assert read(image / "tables" / "cells").shape == (0, 5)
    assert len(open_table(image, "cells")) == 0


def test_image_and_labels_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In many tasks, whose borders neither image nor labels' chunks cross."""
    pixels = stores.pixels((2, 300, 280)) | 1  # of nothing but zeros there is no file
    image = stores.ome_image(tmp_path / "i.zarr", pixels, axes="cyx", chunks=(2, 24, 24))
    add_labels(image, np.ones((300, 280), np.uint8), axes="yx", chunks=(32, 32))
    for name in ("REGION_PIXELS", "LEAST_PIXELS"):
        monkeypatch.setattr(measurement, name, 96 * 96)
    monkeypatch.setattr(measurement, "BLOCK_BYTES", 48 * 32 * 32)
    plan = plan_measurement(str(image), labels="cells")
    assert len(plan.groups) > 5
    assert len(plan.blocks(plan.regions[0][1])) == 9
    traffic = stores.Traffic(monkeypatch)
    measure_here(plan)
    chunks = {k: n for k, n in traffic.chunks(traffic.reads).items() if "/i.zarr/" in k}
    of_image = [n for k, n in chunks.items() if "/i.zarr/s0/" in k]
    of_labels = [n for k, n in chunks.items() if "/labels/cells/" in k]
    assert of_image == 13 * 12 * [1]
    assert of_labels == 10 * 9 * [1]


def test_chunks_that_are_larger_than_a_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = worlds.disks((100, 90), radius=9, pitch=22).astype(np.uint8)
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((100, 90)))
    add_labels(image, labels)
    measured(image, "cells", name="whole")
    monkeypatch.setattr(measurement, "BLOCK_BYTES", 40 * 600)
    plan = plan_measurement(str(image), labels="cells")
    assert len(plan.blocks(plan.regions[0][1])) == 16
    shutil.rmtree(plan.root)
    traffic = stores.Traffic(monkeypatch)
    measure_here(plan)
    assert {n for k, n in traffic.chunks(traffic.reads).items() if "/s0/c" in k} == {1}
    whole, parts = (open_table(image, name).read() for name in ("whole", "cells"))
    for name, column in whole.items():
        np.testing.assert_allclose(column, parts[name], rtol=1e-12)


def test_image_without_objects_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((128, 128)), chunks=(32, 32))
    labels = np.zeros((128, 128), np.uint8)
    labels[40:60, 40:60] = 3
    add_labels(image, labels, chunks=(32, 32))
    monkeypatch.setattr(measurement, "BLOCK_BYTES", 40 * 32 * 32)
    plan = plan_measurement(str(image), labels="cells")
    traffic = stores.Traffic(monkeypatch)
    assert measure_here(plan) == 1
    assert [k.rpartition("/s0/")[2] for k in traffic.reads if "/i.zarr/s0/c" in k] == ["c/1/1"]


def test_a_killed_measurement_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((128, 128)), chunks=(32, 32))
    add_labels(image, stores.random_labels((128, 128)), chunks=(32, 32))
    monkeypatch.setattr(measurement, "REGION_PIXELS", 32 * 32)
    monkeypatch.setattr(measurement, "LEAST_PIXELS", 32 * 32)
    plan = plan_measurement(str(image), labels="cells")
    assert len(plan.groups) == 16
    for group in range(10):
        stages.measure_group(plan, group)
    plan.target.empty()  # as after a kill in the middle of writing
    (plan.target.staging.local or tmp_path).mkdir(parents=True)
    traffic = stores.Traffic(monkeypatch)
    again = plan_measurement(str(image), labels="cells")
    assert again == plan
    measure_here(again)
    reads = [k for k in traffic.chunks(traffic.reads) if "/labels/cells/" in k]
    assert len(reads) == 6
    assert len(open_table(image, "cells")) == len(np.unique(stores.random_labels((128, 128)))) - 1
    assert [p.name for p in (image / "tables").iterdir() if p.is_dir()] == ["cells"]


@pytest.mark.parametrize("damage", ["missing", "truncated", "other"])
def test_damaged_sums_are_named(tmp_path: Path, damage: str) -> None:
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((60, 60)))
    add_labels(image, stores.random_labels((60, 60)))
    plan = plan_measurement(str(image), labels="cells")
    stages.measure_group(plan, 0)
    part = plan.part(0)
    if damage == "missing":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:-50] if damage == "truncated" else b"other")
    with pytest.raises(CorruptError, match=r"scratch file .* is missing or damaged .*; delete it"):
        stages.write_table(plan, {})
    part.unlink(missing_ok=True)
    measure_here(plan)
    assert len(open_table(image, "cells")) > 0


def test_a_store_that_is_no_folder(tmp_path: Path) -> None:
    store = f"memory://{uuid.uuid4().hex}/i.zarr"
    labels = stores.random_labels((60, 60))
    stores.group(store, stores.attributes("yx", version="0.5"))
    stores.plain_array(f"{store}/s0", stores.pixels((60, 60)), dimension_names="yx")
    stores.group(f"{store}/labels", {"ome": {"version": "0.5", "labels": ["cells"]}})
    stores.group(f"{store}/labels/cells", stores.attributes("yx", version="0.5"))
    stores.plain_array(f"{store}/labels/cells/s0", labels, dimension_names="yx")
    made = measured(store, "cells", scratch=tmp_path)
    assert made.region == "../labels/cells"
    table = open_table(store, "cells")
    np.testing.assert_array_equal(table.read()["label"], np.unique(labels)[1:])
    with pytest.raises(OutputError, match="already in"):
        measured(store, "cells", scratch=tmp_path)
    zarr.open_array(f"{store}/labels/cells/s0")[20:40, 20:40] = np.arange(400).reshape(20, 20)
    with pytest.raises(StaleTableError):
        open_table(store, "cells")


class TestFingerprint:
    @pytest.fixture
    def image(self, tmp_path: Path) -> Path:
        image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((60, 60)))
        add_labels(image, stores.random_labels((60, 60)))
        measured(image, "cells")
        return image

    def test_a_copy_is_the_same(self, image: Path, tmp_path: Path) -> None:
        shutil.copytree(image, tmp_path / "elsewhere" / "copy.zarr")
        shutil.rmtree(image)
        assert len(open_table(tmp_path / "elsewhere" / "copy.zarr", "cells")) > 0

    def test_changed_labels_are_noticed(self, image: Path) -> None:
        array = zarr.open_array(str(image / "labels" / "cells" / "s0"))
        array[20:40, 20:40] = np.arange(400).reshape(20, 20)
        with pytest.raises(StaleTableError, match=r"is not that of the labels .*have changed"):
            open_table(image, "cells")
        with pytest.raises(StaleTableError, match=r"labels .* as before it changed: .*--overwrite"):
            check_place(plan_measurement(str(image), labels="cells"))
        check_place(plan_measurement(str(image), labels="cells", overwrite=True))

    def test_labels_that_are_gone(self, image: Path) -> None:
        shutil.rmtree(image / "labels" / "cells")
        with pytest.raises(StaleTableError, match=r"labels .*labels/cells, which cannot be opened"):
            open_table(image, "cells")

    def test_labels_that_change_meanwhile(self, image: Path) -> None:
        plan = plan_measurement(str(image), labels="cells", name="other")
        array = zarr.open_array(str(image / "labels" / "cells" / "s0"))
        array[20:40, 20:40] = np.arange(400).reshape(20, 20)
        with pytest.raises(StaleTableError, match="changed while they were measured"):
            measure_here(plan)
        assert stores.listed(image) == ["cells"]
        assert not (image / "tables" / "other").exists()

    def test_other_tools_tables(self, image: Path) -> None:
        read(image / "tables" / "cells").write_zarr(image / "tables" / "theirs")
        with pytest.raises(OutputError, match=r"no table 'theirs': those there are cells"):
            open_table(image, "theirs")
        zarr.open_group(str(image / "tables")).attrs["tables"] = ["theirs"]
        with pytest.raises(OutputError, match=r"'theirs' .* was not made by cytopave"):
            open_table(image, "theirs")


def test_a_name_that_is_taken(tmp_path: Path) -> None:
    image = stores.ome_image(tmp_path / "i.zarr", stores.pixels((60, 60)))
    labels = stores.random_labels((60, 60))
    add_labels(image, labels)
    measured(image, "cells")
    with pytest.raises(OutputError, match=r"the table 'cells' is already in .*--overwrite"):
        measured(image, "cells")
    measured(image, "cells", name="again")
    add_labels(image, np.where(labels == labels.max(), 0, labels).astype(np.uint32))
    measured(image, "cells", overwrite=True)
    assert len(open_table(image, "cells")) == len(np.unique(labels)) - 2
    assert read_attributes(Folder(str(image), {}, "tables")) == {"tables": ["cells", "again"]}
    with pytest.raises(StaleTableError):
        open_table(image, "again")
