"""Relations of stores: the columns that their tables get, and what is refused."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any

import anndata
import fsspec
import numpy as np
import pytest
import stores
import zarr
from labelled import labelled, small_blocks
from measured import measured
from refined import refined
from related import relate_here, related
from worlds import disks

from cytopave.engine.errors import CorruptError, LabelError, OutputError, StaleTableError, UserError
from cytopave.engine.refine import Expand, Relabel, RemoveSmall
from cytopave.engine.relations import stages
from cytopave.engine.relations.planner import plan_relation
from cytopave.engine.tables.export import export_csv
from cytopave.engine.tables.read import open_table

if TYPE_CHECKING:
    from pathlib import Path

    from cytopave.engine.relations.report import RelateReport


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


def nuclei_and_cells(shape: tuple[int, ...], *, seed: int = 0) -> dict[str, np.ndarray]:
    """Nuclei in cells, across their borders, outside; cells with several nuclei and with none."""
    pitch = 14
    nuclei = disks(shape, radius=4, pitch=pitch, seed=seed)
    cells = disks(shape, radius=11, pitch=2 * pitch, seed=seed + 1)
    return {"nuclei": nuclei.astype(np.uint32), "cells": cells.astype(np.uint32)}


def world(folder: Path, labels: dict[str, np.ndarray], **metadata: Any) -> Path:
    image = labelled(folder / "image.zarr", labels, **metadata)
    for name in labels:
        measured(image, name)
    return image


def relate(image: Path, **request: Any) -> RelateReport:
    return relate_here(plan_relation(str(image), child="nuclei", parent="cells", **request))


def check(image: Path, child: np.ndarray, parent: np.ndarray, *, time: int | None = None) -> None:
    """The columns of both tables, against the whole arrays."""
    wanted = related(child, parent)
    rows = open_table(image, "nuclei").read()
    outer = open_table(image, "cells").read()
    if time is not None:
        rows, outer = ({k: v[t["time"] == time] for k, v in t.items()} for t in (rows, outer))
    assert rows["label"].tolist() == list(wanted)
    assert rows["in_cells"].tolist() == [p for p, _ in wanted.values()]
    np.testing.assert_array_equal(rows["in_cells_fraction"], [f for _, f in wanted.values()])
    counts = Counter(p for p, _ in wanted.values())
    assert outer["n_nuclei"].tolist() == [counts[i] for i in outer["label"].tolist()]


@pytest.mark.parametrize(
    ("version", "chunks"), [("0.5", (32, 32)), ("0.4", (32, 32)), ("0.5", (50, 70))]
)
def test_columns_of_both_tables(tmp_path: Path, version: str, chunks: tuple[int, int]) -> None:
    labels = nuclei_and_cells((170, 150))
    image = world(tmp_path, labels, version=version, chunks=chunks)
    plan = plan_relation(str(image), child="nuclei", parent="cells")
    assert len(plan.groups) > 2
    report = relate_here(plan)
    check(image, labels["nuclei"], labels["cells"])
    wanted = related(labels["nuclei"], labels["cells"])
    outside = sum(p == 0 for p, _ in wanted.values())
    assert (report.n_children, report.n_without_parent) == (len(wanted), outside)
    assert 0 < outside < len(wanted)
    with_child = {p for p, _ in wanted.values() if p}
    assert report.n_parents - report.n_without_child == len(with_child)
    # anndata reads them, and everything else is as it was.
    for name in ("nuclei", "cells"):
        found = anndata.read_zarr(image / "tables" / name)
        table = open_table(image, name)
        assert [c for c in found.obs if c != "region"] == list(table.obs)
        assert found.obs["label"].tolist() == table.read()["label"].tolist()
    made = open_table(image, "nuclei").made["relations"]["in_cells"]
    assert made["labels"] == "../labels/cells"
    export_csv(open_table(image, "nuclei"), tmp_path / "a.csv")
    assert "in_cells,in_cells_fraction" in (tmp_path / "a.csv").read_text().splitlines()[0]


def test_stacks_and_time_points(tmp_path: Path) -> None:
    frames = [nuclei_and_cells((8, 60, 50), seed=s) for s in (0, 5)]
    labels = {name: np.stack([f[name] for f in frames]) for name in ("nuclei", "cells")}
    image = world(tmp_path, labels, axes="tzyx", chunks=(1, 3, 32, 32))
    relate(image)
    for time, frame in enumerate(frames):
        check(image, frame["nuclei"], frame["cells"], time=time)


def test_both_label_images_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = {k: v + 1 for k, v in nuclei_and_cells((128, 128)).items()}  # no chunk of zeros
    image = world(tmp_path, labels, chunks=(32, 32))
    traffic = stores.Traffic(monkeypatch)
    relate(image)
    reads = {k: n for k, n in traffic.chunks(traffic.reads).items() if "/labels/" in k}
    assert len(reads) == 2 * 16
    assert set(reads.values()) == {1}


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    labels = nuclei_and_cells((100, 90))
    image = world(tmp_path, labels, chunks=(32, 32))
    plan = plan_relation(str(image), child="nuclei", parent="cells")
    assert stages.count_group(plan, 0) > 0
    assert stages.count_group(plan, 0) == 0
    relate_here(plan)
    check(image, labels["nuclei"], labels["cells"])
    # A part that was damaged is named.
    plan.part(1).write_bytes(b"nothing")
    with pytest.raises(CorruptError, match="delete it and run again"):
        stages.write_columns(plan, {})


def test_columns_that_are_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    labels = nuclei_and_cells((100, 90))
    image = world(tmp_path, labels, chunks=(32, 32))
    plan = plan_relation(str(image), child="nuclei", parent="cells")
    assert not plan.check_columns(overwrite=False, export=False)
    relate_here(plan)
    with pytest.raises(OutputError, match=r"has a column 'in_cells' already.*--overwrite"):
        plan.check_columns(overwrite=False, export=False)
    assert plan.check_columns(overwrite=False, export=True)
    # Of other cells under the same name they are others.
    refined(image, [RemoveSmall(size=200)], labels="cells", name="cells", overwrite=True)
    with pytest.raises(StaleTableError, match="have changed since"):
        plan_relation(str(image), child="nuclei", parent="cells").check_columns(
            overwrite=False, export=False
        )
    measured(image, "cells", overwrite=True)
    with caplog.at_level("WARNING"):
        assert "in_cells" not in open_table(image, "nuclei").obs
    assert "the columns in_cells, in_cells_fraction of" in caplog.text
    again = plan_relation(str(image), child="nuclei", parent="cells")
    assert not again.check_columns(overwrite=False, export=False)
    relate_here(again)
    sizes = np.bincount(labels["cells"].ravel())
    check(image, labels["nuclei"], np.where(sizes[labels["cells"]] < 200, 0, labels["cells"]))


def test_a_copied_store_keeps_its_columns(tmp_path: Path) -> None:
    labels = nuclei_and_cells((64, 60))
    image = world(tmp_path, labels, chunks=(32, 32))
    relate(image)
    shutil.move(image, tmp_path / "moved.zarr")
    check(tmp_path / "moved.zarr", labels["nuclei"], labels["cells"])


def test_a_remote_store(tmp_path: Path) -> None:
    """Labels refined, measured and related where there are neither folders nor locks."""
    nuclei = nuclei_and_cells((64, 60))["nuclei"]
    local = labelled(tmp_path / "image.zarr", {"nuclei": nuclei}, chunks=(32, 32))
    image = f"memory://{uuid.uuid4().hex}/image.zarr"
    system, path = fsspec.url_to_fs(image)
    system.put(str(local), path, recursive=True)
    scratch = tmp_path / "scratch"
    operations: list[Any] = [Expand(distance=2), Relabel()]
    refined(image, operations, labels="nuclei", name="cells", scratch=scratch)
    for name in ("nuclei", "cells"):
        measured(image, name, scratch=scratch)
    plan = plan_relation(image, child="nuclei", parent="cells", scratch=scratch)
    assert relate_here(plan).n_without_parent == 0
    assert plan.check_columns(overwrite=False, export=True)
    table = open_table(image, "nuclei").read()
    assert sorted(table["in_cells"]) == list(range(1, len(np.unique(nuclei))))
    assert set(table["in_cells_fraction"]) == {1.0}


def test_columns_of_other_tools_are_not_replaced_unasked(tmp_path: Path) -> None:
    image = world(tmp_path, nuclei_and_cells((64, 60)), chunks=(32, 32))
    relate(image)
    path = image / "tables" / "cells" / "zarr.json"
    path.write_text(path.read_text().replace('"relations"', '"others"'))
    again = plan_relation(str(image), child="nuclei", parent="cells")
    with pytest.raises(OutputError, match="has a column 'n_nuclei' already"):
        again.check_columns(overwrite=False, export=True)
    assert not again.check_columns(overwrite=True, export=False)


def test_other_relations_keep_their_columns(tmp_path: Path) -> None:
    labels = nuclei_and_cells((100, 90))
    labels["tissue"] = (labels["cells"] > 0).astype(np.uint32)
    image = world(tmp_path, labels, chunks=(32, 32))
    relate(image)
    relate_here(plan_relation(str(image), child="nuclei", parent="tissue"))
    relate_here(plan_relation(str(image), child="cells", parent="tissue"))
    check(image, labels["nuclei"], labels["cells"])
    columns = open_table(image, "tissue").read()
    assert columns["n_cells"].tolist() == [len(np.unique(labels["cells"])) - 1]
    assert open_table(image, "nuclei").obs[-4:] == (
        *("in_cells", "in_cells_fraction", "in_tissue", "in_tissue_fraction"),
    )


def test_consolidated_metadata_know_the_columns(tmp_path: Path) -> None:
    labels = nuclei_and_cells((64, 60))
    image = world(tmp_path, labels, chunks=(32, 32))
    zarr.consolidate_metadata(str(image / "tables" / "nuclei"))
    relate(image)
    group = zarr.open_group(str(image / "tables" / "nuclei"), mode="r", use_consolidated=True)
    assert "obs/in_cells" in group
    assert "in_cells" in anndata.read_zarr(image / "tables" / "nuclei").obs


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"child": "absent"}, "no label image 'absent'"),
        ({"child": "cells"}, "child and parent are both"),
        ({"parent": "{0}/coarse.zarr"}, "name label images of the same pixels"),
        ({"parent": "{0}/small.zarr"}, "fit no level of"),
        ({"parent": "{0}/elsewhere.zarr"}, "of the same field of view"),
        ({"parent": "{0}/fine.zarr"}, "the image's are of"),
        ({"parent": "{0}/float.zarr"}, "which are no labels"),
        ({"parent": "bare"}, r"have no table 'bare' .*cytopave measure --labels bare\)"),
    ],
)
def test_refused(tmp_path: Path, change: dict[str, str], says: str) -> None:
    labels = nuclei_and_cells((64, 60))
    image = labelled(tmp_path / "image.zarr", {**labels, "bare": labels["cells"]}, n_levels=2)
    measured(image, "nuclei")
    measured(image, "cells")
    cells = labels["cells"]
    stores.ome_image(tmp_path / "coarse.zarr", cells[::2, ::2], scale=1.0)
    stores.ome_image(tmp_path / "small.zarr", cells[:40])
    stores.ome_image(tmp_path / "fine.zarr", cells, scale=0.1)
    stores.ome_image(tmp_path / "elsewhere.zarr", cells, translate=True, factors=[1.0])
    path = tmp_path / "elsewhere.zarr" / "zarr.json"
    path.write_text(path.read_text().replace("0.0", "300.0"))
    stores.plain_array(tmp_path / "float.zarr", cells.astype(np.float32))
    request = {"child": "nuclei", "parent": "cells", **change}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=says) as raised:
        plan_relation(
            str(image),
            child=request["child"],
            parent=request["parent"].format(tmp_path),
        ).check_columns(overwrite=False, export=False)
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_negative_ids_and_labels_that_change(tmp_path: Path) -> None:
    labels = nuclei_and_cells((64, 60))
    image = world(tmp_path, labels, chunks=(32, 32))
    plan = plan_relation(str(image), child="nuclei", parent="cells")
    for group in range(len(plan.groups)):
        stages.count_group(plan, group)
    refined(image, [Relabel(), RemoveSmall(size=99)], labels="cells", name="cells", overwrite=True)
    with pytest.raises(StaleTableError, match="were changed while they were read"):
        stages.write_columns(plan, {})
    shutil.rmtree(image / "labels" / "cells")
    cells = np.full((64, 60), -2, np.int32)
    stores.ome_image(image / "labels" / "cells", cells, chunks=(32, 32))
    with pytest.raises(LabelError, match="hold the id -2"):
        stages.count_group(plan_relation(str(image), child="nuclei", parent="cells"), 0)
