"""A plate of real fields: one run, one task a well, labels in every image."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anndata
import numpy as np
import pytest
import stores
from plates import write_plate
from runs import labels_of, provenance, run_here
from yaozarrs import validate_zarr_store

from cytopave.engine import samples
from cytopave.engine.errors import ImageError, PlanError, TileError
from cytopave.engine.omezarr.plate import open_plate
from cytopave.engine.planning.foreground import Mask
from cytopave.engine.score import match
from cytopave.engine.segmenters import Cellpose, Custom, Watershed
from cytopave.engine.tiling import Tiling

if TYPE_CHECKING:
    from pathlib import Path

    from runs import Flows

WELLS = ("A/1", "A/2", "A/3", "B/1", "B/2", "B/3")
TILING = Tiling(tile=(128, 128), halo=48)


@pytest.fixture(scope="module")
def fields() -> list[samples.Field]:
    return samples.nuclei_fields("held-out")[:6]


def write(folder: Path, fields: list[samples.Field], **how: Any) -> Path:
    """2 x 3 wells of one real field each, the first of two."""
    wells = {w: [f.image[:256, :256]] for w, f in zip(WELLS, fields, strict=True)}
    wells["A/1"] = [fields[0].image[:256, :256], fields[0].image[256:, :256]]
    return write_plate(folder / "plate.zarr", wells, chunks=(128, 128), n_levels=2, **how)


def plate_flow(flows: Flows, plate: Path, **parameters: Any) -> Any:
    from cytopave.flows import segment_plate

    run: Any = segment_plate
    return run(str(plate), **{"cluster": flows.address} | parameters)


def test_every_image_gets_the_labels_that_it_would_get_alone(
    tmp_path: Path, folder: Path, flows: Flows, fields: list[samples.Field]
) -> None:
    plate = write(folder, fields)
    report = plate_flow(flows, plate, segmenter=Watershed(), tiling=TILING, name="nuclei")
    assert [w.well for w in report.wells] == list(WELLS)
    assert [len(w.fields) for w in report.wells] == [2, 1, 1, 1, 1, 1]
    assert not report.missing
    assert report.n_objects == sum(
        int(labels_of(plate / path, "nuclei").max())
        for well in open_plate(plate).wells
        for path in well.fields
    )
    assert report.n_objects > 60
    alone = stores.ome_image(
        tmp_path / "alone.zarr", fields[3].image[:256, :256], chunks=(128, 128)
    )
    run_here(alone, segmenter=Watershed(), tiling=TILING)
    np.testing.assert_array_equal(labels_of(plate / "B/1/0", "nuclei"), labels_of(alone))
    validate_zarr_store(str(plate))
    validate_zarr_store(str(plate / "A/1/1/labels/nuclei"))
    facts = provenance(plate / "A/1/1", "nuclei")
    assert facts["segmenter"]["kind"] == "watershed"
    table = anndata.read_zarr(plate / "A/1/1/tables/nuclei")
    assert table.n_obs == labels_of(plate / "A/1/1", "nuclei").max()
    # Nothing is left in the plate or beside it.
    assert sorted(p.name for p in folder.iterdir()) == ["plate.zarr"]
    assert [p.name for p in (plate / "A" / "1").iterdir() if p.name.startswith(".")] == []
    # The same again makes nothing again; another well's name is refused.
    again = plate_flow(flows, plate, segmenter=Watershed(), tiling=TILING, name="nuclei")
    assert all(f.reused for w in again.wells for f in w.fields)
    assert again.n_objects == report.n_objects
    with pytest.raises(ImageError, match="has no well D4"):
        plate_flow(flows, plate, segmenter=Watershed(), wells=["D4"])
    with pytest.raises(PlanError, match="a plate has many: give a threshold"):
        plate_flow(flows, plate, segmenter=Watershed(), mask=Mask(image=str(alone)), name="other")


def test_cellpose_finds_the_nuclei_of_a_plate_in_0_4(
    folder: Path, flows: Flows, fields: list[samples.Field]
) -> None:
    plate = write(folder, fields, version="0.4")
    cellpose = Cellpose(model="nuclei-tiny", device="cpu", use_bfloat16=False)
    plate_flow(flows, plate, segmenter=cellpose, tiling=TILING, wells=["A2", "B3"])
    for well, field in (("A/2", fields[1]), ("B/3", fields[5])):
        truth = field.masks[:256, :256]
        assert match(truth, labels_of(plate / well / "0")).average_precision > 0.7
    assert not (plate / "A/1/0/labels").exists()


def test_missing_wells_are_reported_and_failed_images_alone_are_tried_again(
    tmp_path: Path, folder: Path, flows: Flows, fields: list[samples.Field]
) -> None:
    plate = write(folder, fields, absent=["A/3", "A/1/1"])
    # A chunk of an image cut short.
    chunk = stores.chunk_files(plate / "B/2/0/s0")[0]
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[: len(whole) // 2])
    parameters: dict[str, Any] = {
        "segmenter": Watershed(threshold=2000),
        "tiling": TILING,
        "workers": 2,
    }
    with pytest.raises(TileError, match="1 of 5 images failed, the others are published") as caught:
        plate_flow(flows, plate, **parameters)
    assert "B/2/0: " in str(caught.value)
    assert "is truncated or damaged" in str(caught.value)
    chunk.write_bytes(whole)
    report = plate_flow(flows, plate, **parameters)
    assert report.missing == ["A/3"]
    assert report.missing_fields == ["A/1/1"]
    assert [f.field for w in report.wells for f in w.fields if not f.reused] == ["B/2/0"]
    rows = {row["well"]: row for row in report.rows()}
    assert rows["A/3"]["missing"] == "all"
    assert rows["A/1"]["missing"] == 1
    json.loads(report.model_dump_json())


def test_a_request_that_cannot_be_is_refused_before_any_worker_starts(
    folder: Path, flows: Flows, fields: list[samples.Field]
) -> None:
    plate = write(folder, fields)
    with pytest.raises(ImageError, match="has no channel axis"):
        plate_flow(flows, plate, segmenter=Watershed(), channels=["DAPI"])
    with pytest.raises(Exception, match="no module"):
        plate_flow(flows, plate, segmenter=Custom(function="nowhere:f"))
