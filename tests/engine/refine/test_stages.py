"""Whole refinements of stores, compared with the same done to the array at once."""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from labelled import labelled, small_blocks
from measured import measured
from refined import expanded, filled, refine_here, refined
from runs import blobs, components, labels_of, provenance
from scipy import ndimage
from worlds import disks
from yaozarrs import validate_zarr_store

from cytopave.engine.errors import LabelError, OutputError, StaleTableError
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.omezarr.labels import open_labels
from cytopave.engine.refine import (
    ClearBorder,
    Expand,
    FillHoles,
    Relabel,
    RemoveLarge,
    RemoveSmall,
    stages,
)
from cytopave.engine.refine.planner import plan_refinement
from cytopave.engine.tables.read import open_table

if TYPE_CHECKING:
    from pathlib import Path

ALL: list[Any] = [
    FillHoles(),
    RemoveSmall(size=40),
    RemoveLarge(size=900),
    ClearBorder(),
    Expand(distance=3),
    Relabel(),
]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)


def cells(shape: tuple[int, ...], *, seed: int = 0) -> np.ndarray:
    """Irregular objects, some with holes; ids in no order."""
    labels = components(blobs(shape, sigma=2.5, share=0.45, seed=seed))
    ids = np.concatenate([[0], np.random.default_rng(seed).permutation(labels.max()) + 5])
    return np.asarray(ids[labels], np.uint32)


def balls(shape: tuple[int, ...]) -> np.ndarray:
    """Round objects in a stack; every second one is hollow, and some of these are open."""
    labels = disks(shape, radius=5, pitch=13)
    labels[ndimage.binary_erosion(labels > 0) & (labels % 2 == 0)] = 0
    labels[:, ::21] = 0
    return labels.astype(np.uint32)


def at_once(labels: np.ndarray, operations: list[Any], sizes: tuple[float, ...]) -> np.ndarray:
    """The operations on an array of one time point, by NumPy and SciPy."""
    for operation in operations:
        counts = np.bincount(labels.ravel())
        keep = np.ones(len(counts), bool)
        if isinstance(operation, FillHoles):
            planes = operation.planewise and labels.ndim == 3
            labels = np.stack([filled(p) for p in labels]) if planes else filled(labels)
        elif isinstance(operation, Expand):
            labels = expanded(labels, operation.distance.value, sizes)
        elif isinstance(operation, RemoveSmall):
            keep = counts >= operation.size.value
        elif isinstance(operation, RemoveLarge):
            keep = counts <= operation.size.value
        elif isinstance(operation, ClearBorder):
            first = labels.ndim - 2 if operation.planewise else 0
            ends = [labels.take(i, a) for a in range(first, labels.ndim) for i in (0, -1)]
            keep[np.concatenate([e.ravel() for e in ends])] = False
        if isinstance(operation, Relabel):
            ids, place = np.unique(labels, return_index=True)
            order = ids[np.argsort(place)]
            order = order[order > 0]
            table = np.zeros(len(counts), np.uint32)
            table[order] = np.arange(1, len(order) + 1)
            labels = table[labels]
        labels = np.where(keep[labels], labels, 0) if not keep.all() else labels
    return labels


@pytest.mark.parametrize(
    ("version", "chunks"), [("0.5", (32, 32)), ("0.4", (32, 32)), ("0.5", (50, 70))]
)
def test_everything_in_one_go(tmp_path: Path, version: str, chunks: tuple[int, int]) -> None:
    labels = cells((170, 150))
    image = labelled(tmp_path / "a.zarr", {"cells": labels}, version=version, chunks=chunks)
    plan = plan_refinement(str(image), ALL, labels="cells", name="clean")
    assert len(plan.blocks) > 4
    assert len(plan.groups) > 2
    report = refine_here(plan)
    wanted = at_once(labels, ALL, (1, 1))
    np.testing.assert_array_equal(labels_of(image, "clean"), wanted)
    assert report.n_before == len(np.unique(labels)) - 1
    assert report.n_objects == wanted.max() > 3
    assert [d.operation for d in report.operations] == [
        *("fill holes", "remove small 40 px", "remove large 900 px", "clear border"),
        *("expand 3 px", "relabel"),
    ]
    holes = int((filled(labels) > 0).sum() - (labels > 0).sum())
    assert (report.operations[0].changed, report.operations[0].unit) == (holes, "pixels gained")
    removed = sum(d.changed for d in report.operations[1:4])
    assert removed == report.n_before - report.n_objects
    # The labels themselves are as they were, and the new ones are as good as any.
    np.testing.assert_array_equal(
        np.asarray(open_image(image / "labels" / "cells").array[...]), labels
    )
    assert stores.listed(image) == ["cells", "clean"]
    validate_zarr_store(str(image / "labels" / "clean"))
    made = provenance(image, "clean")
    assert made["refined"]["labels"] == f"{image}/labels/cells"
    assert [o["kind"] for o in made["refined"]["operations"]] == [o.kind for o in ALL]
    attributes = open_labels(image, "clean").attributes
    label = attributes["ome"]["image-label"] if version == "0.5" else attributes["image-label"]
    assert label["source"] == {"image": "../../"}


@pytest.mark.parametrize(
    "operations",
    [
        [Expand(distance=4), RemoveSmall(size=150), FillHoles()],
        [Relabel(), ClearBorder(), Relabel()],
        [Expand(distance=2), FillHoles(), Expand(distance=2)],
        [RemoveSmall(size=60)],
    ],
    ids=lambda ops: ", ".join(o.kind for o in ops),
)
def test_operations_follow_each_other_in_the_order_given(
    tmp_path: Path, operations: list[Any]
) -> None:
    labels = cells((100, 90), seed=1)
    image = labelled(tmp_path / "a.zarr", {"cells": labels}, chunks=(32, 32))
    report = refined(image, operations, labels="cells")
    wanted = at_once(labels, operations, (1, 1))
    np.testing.assert_array_equal(labels_of(image, "cells-refined"), wanted)
    assert report.n_objects == len(np.unique(wanted)) - 1


@pytest.mark.parametrize("planewise", [False, True])
def test_a_stack_whose_planes_lie_further_apart(tmp_path: Path, planewise: bool) -> None:
    labels = balls((26, 60, 50))
    image = labelled(
        tmp_path / "a.zarr", {"cells": labels}, chunks=(3, 32, 32), scale=(2.0, 0.5, 0.5)
    )
    operations: list[Any] = [
        FillHoles(planewise=planewise),
        RemoveSmall(size="20um3"),  # 40 voxels
        ClearBorder(planewise=planewise),
        Expand(distance="2um"),
    ]
    plan = plan_refinement(str(image), operations, labels="cells", name="clean")
    assert len(plan.blocks) > 6
    refine_here(plan)
    wanted = at_once(
        labels,
        [operations[0], RemoveSmall(size=40), operations[2], Expand(distance=2)],
        (2, 0.5, 0.5),
    )
    assert len(np.unique(wanted)) > 9
    np.testing.assert_array_equal(labels_of(image, "clean"), wanted)


def test_time_points_one_by_one(tmp_path: Path) -> None:
    frames = np.stack([cells((70, 60), seed=s) for s in range(3)])
    image = labelled(tmp_path / "a.zarr", {"cells": frames}, axes="tyx", chunks=(1, 32, 32))
    report = refined(image, ALL[:-1], labels="cells", name="clean")
    wanted = np.stack([at_once(frame, ALL[:-1], (1, 1)) for frame in frames])
    np.testing.assert_array_equal(labels_of(image, "clean"), wanted)
    assert report.n_before == sum(len(np.unique(f)) - 1 for f in frames)
    assert report.n_objects == sum(len(np.unique(f)) - 1 for f in wanted)


@pytest.mark.parametrize("dtype", ["uint8", "int16", ">i4", "int64"])
def test_plain_arrays_of_any_integer_type(tmp_path: Path, dtype: str) -> None:
    labels = (cells((64, 60)) % 120).astype(dtype)
    stores.plain_array(tmp_path / "mine.zarr", labels, chunks=(32, 32))
    report = refined(tmp_path / "mine.zarr", [RemoveSmall(size=40)])
    store = tmp_path / "mine.labels.zarr"
    assert report.labels_path == f"{store}/labels/mine-refined"
    found = labels_of(store, "mine-refined")
    assert found.dtype == ("uint64" if dtype == "int64" else "uint32")
    wanted = at_once(labels.astype(np.int64), [RemoveSmall(size=40)], (1, 1))
    np.testing.assert_array_equal(found, wanted)


def test_large_ids_stay_or_become_small(tmp_path: Path) -> None:
    labels = cells((64, 60)).astype(np.uint64) << np.uint64(34)
    image = labelled(tmp_path / "a.zarr", {"cells": labels}, chunks=(32, 32))
    refined(image, [Expand(distance=1)], labels="cells", name="large")
    assert labels_of(image, "large").max() == labels.max()
    refined(image, [Relabel()], labels="cells", name="small")
    assert labels_of(image, "small").dtype == np.uint32


def test_in_place_only_when_asked_and_the_table_is_stale_then(tmp_path: Path) -> None:
    labels = cells((70, 60))
    image = labelled(tmp_path / "a.zarr", {"cells": labels}, chunks=(32, 32))
    measured(image, "cells")
    request: dict[str, Any] = {"labels": "cells", "name": "cells"}
    with pytest.raises(OutputError, match="'cells' is already in"):
        refined(image, [RemoveSmall(size=40)], **request)
    refined(image, [RemoveSmall(size=40)], overwrite=True, **request)
    wanted = at_once(labels, [RemoveSmall(size=40)], (1, 1))
    np.testing.assert_array_equal(labels_of(image, "cells"), wanted)
    with pytest.raises(StaleTableError, match="have changed since"):
        open_table(image, "cells")
    # Refining again refines what is there now.
    refined(image, [Relabel()], overwrite=True, **request)
    assert labels_of(image, "cells").max() == len(np.unique(wanted)) - 1


def test_killed_right_after_labels_were_replaced(tmp_path: Path) -> None:
    """The same command completes that run, and does not refine what it made once more."""
    labels = cells((70, 60))
    image = labelled(tmp_path / "a.zarr", {"cells": labels}, chunks=(32, 32))
    request: dict[str, Any] = {"labels": "cells", "name": "cells", "overwrite": True}
    plan = plan_refinement(str(image), [Expand(distance=2)], **request)
    first = refine_here(plan)
    wanted = at_once(labels, [Expand(distance=2)], (1, 1))
    plan.ended.unlink()
    again = plan_refinement(str(image), [Expand(distance=2)], **request)
    assert again == plan
    assert refine_here(again) == first
    np.testing.assert_array_equal(labels_of(image, "cells"), wanted)
    # Of a run that ended, the result is what is refined next.
    other = plan_refinement(str(image), [Expand(distance=2)], **request)
    assert other.digest != plan.digest
    refine_here(other)
    np.testing.assert_array_equal(
        labels_of(image, "cells"), at_once(wanted, [Expand(distance=2)], (1, 1))
    )


def test_made_once_more_when_asked(tmp_path: Path) -> None:
    labels = cells((70, 60))
    image = labelled(tmp_path / "a.zarr", {"cells": labels}, chunks=(32, 32))
    plan = plan_refinement(str(image), [Relabel()], labels="cells", name="clean")
    first = refine_here(plan)
    shutil.rmtree(plan.root)
    again = plan_refinement(str(image), [Relabel()], labels="cells", name="clean", overwrite=True)
    assert refine_here(again) == first


def test_what_is_finished_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after any stage, the same plan reads only what is missing."""
    labels = cells((100, 90))
    image = labelled(tmp_path / "a.zarr", {"cells": labels}, chunks=(32, 32))
    plan = plan_refinement(str(image), ALL, labels="cells", name="clean")
    wanted = at_once(labels, ALL, (1, 1))
    reads: Counter[str] = Counter()
    read_block = Image.read_block

    def counted(self: Image, box: Any) -> np.ndarray:
        reads[self.url] += 1
        return read_block(self, box)

    monkeypatch.setattr(Image, "read_block", counted)
    everything = list(stages.phases(plan))
    assert [p.step for p in everything if p.act == "paint"] == [0, 2, 4]
    for phase in everything[:-1]:
        for group in range(len(plan.groups)) if phase.mapped else ():
            getattr(stages, phase.act)(plan, phase.step, group)
            reads.clear()
            getattr(stages, phase.act)(plan, phase.step, group)
            assert not reads, phase
        if not phase.mapped:
            stages.decide(plan, phase.step)
    reads.clear()
    report = refine_here(plan)
    np.testing.assert_array_equal(labels_of(image, "clean"), wanted)
    assert report.n_objects == wanted.max()
    # The result itself is written again, from what the last step but one left.
    assert list(reads) == [str(plan.folder(2) / "labels")]


def test_labels_that_change_meanwhile_are_noticed(tmp_path: Path) -> None:
    image = labelled(tmp_path / "a.zarr", {"cells": cells((64, 60))}, chunks=(32, 32))
    plan = plan_refinement(str(image), [Relabel()], labels="cells", name="clean")
    for phase in stages.phases(plan):
        if phase.mapped:
            getattr(stages, phase.act)(plan, phase.step, 0)
        else:
            stages.decide(plan, phase.step)
    stores.ome_image(image / "labels" / "cells", cells((64, 60), seed=3), chunks=(32, 32))
    with pytest.raises(OutputError, match="were changed while they were refined"):
        stages.publish(plan, {})
    assert stores.listed(image) == ["cells"]


def test_negative_ids_are_refused(tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "mine.zarr", np.full((9, 9), -3, np.int32))
    with pytest.raises(LabelError, match="hold the id -3"):
        refined(tmp_path / "mine.zarr", [Relabel()])


def test_each_look_reads_the_labels_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = cells((128, 128)) + 1  # no chunk of zeros, which is not stored
    image = labelled(tmp_path / "a.zarr", {"cells": labels}, chunks=(32, 32))
    plan = plan_refinement(str(image), [RemoveSmall(size=9), ClearBorder()], labels="cells")
    traffic = stores.Traffic(monkeypatch)
    refine_here(plan)
    source = f"{image}/labels/cells/s0/"
    reads = {k: n for k, n in traffic.chunks(traffic.reads).items() if k.startswith(source)}
    assert len(reads) == 16
    assert set(reads.values()) == {2}  # one look, one to write
    made = f"{image}/labels/.cells-refined."
    writes = {k: n for k, n in traffic.chunks(traffic.writes).items() if k.startswith(made)}
    assert set(writes.values()) == {1}
    shutil.rmtree(plan.root)
