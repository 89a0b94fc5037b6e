"""What runs leave behind is found and deleted; what is in use, or nobody's leftover, never."""

from __future__ import annotations

import os
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import stores
import tifffile
from converted import conversions
from runs import labels_of, plan_of, run_here

from cytopave.engine.convert import write
from cytopave.engine.housekeeping import leftovers
from cytopave.engine.omezarr.folders import PART
from cytopave.engine.scratch.tenancy import is_occupied, occupied, remove_unoccupied
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Threshold
from cytopave.engine.tiling import Tiling

REQUEST: dict[str, Any] = {
    "segmenter": Threshold(threshold=100),
    "tiling": Tiling(tile=(32, 32), halo=4),
}


@pytest.fixture
def image(folder: Path) -> Path:
    pixels = np.zeros((64, 64), np.uint8)
    pixels[10:40, 10:40] = 200
    return stores.ome_image(folder / "a.zarr", pixels, chunks=(32, 32))


def found(folder: Path, **kwargs: Any) -> dict[str, tuple[str, bool]]:
    there = leftovers([str(folder)], **kwargs)
    return {str(x.folder).removeprefix(f"{folder}/"): (x.kind, x.in_use) for x in there}


def remove_all(folder: Path) -> list[bool]:
    return [x.remove() for x in leftovers([str(folder)])]


def test_of_a_run_that_was_given_up(folder: Path, image: Path) -> None:
    plan = plan_of(image, **REQUEST)
    segment_tiles(plan, (0, 1))
    plan.target.create(np.uint32)
    part = image / "labels" / f".zarr.json.{uuid.uuid4().hex}{PART}"
    part.write_bytes(b"half")
    scratch, staging = f".cytopave/{plan.digest[:16]}", f"a.zarr/labels/{plan.target.staging.name}"
    assert found(folder) == {
        scratch: ("scratch", False),
        staging: ("unpublished", False),
        str(part.relative_to(folder)): ("partial file", False),
    }
    sizes = {x.kind: x.size for x in leftovers([str(folder)])}
    assert sizes["scratch"] == sum(p.stat().st_size for p in plan.root.rglob("*") if p.is_file())
    assert sizes["partial file"] == 4
    assert all(0 <= x.age < 60 for x in leftovers([str(folder)]))
    # While a run uses the tiles, the labels that it makes are in use as well.
    with occupied(plan.root, remove=False):
        assert found(folder)[scratch] == ("scratch", True)
        assert found(folder)[staging] == ("unpublished", True)
        assert remove_all(folder) == [False, False, True]
        assert plan.scratch.finished() == {0, 1}
        assert not remove_unoccupied(plan.root)
    assert remove_all(folder) == [True, True]
    assert [p.name for p in folder.rglob("*") if p.name.startswith(".")] == []
    assert run_here(image, **REQUEST).digest == plan.digest


def test_a_run_that_begins_after_the_look(folder: Path, image: Path) -> None:
    plan = plan_of(image, **REQUEST)
    (seen,) = leftovers([str(folder)])
    with occupied(plan.root, remove=True):
        assert is_occupied(plan.root)
        assert not seen.remove()
        assert list(plan.root.glob("plans/*.json"))
    assert not plan.root.exists()


def test_labels_that_were_moved_aside(folder: Path, image: Path) -> None:
    """Deleted where the new ones are in place; where a kill came before, they are the only ones."""
    run_here(image, **REQUEST)
    aside = image / "labels" / ".cells.replaced"
    shutil.copytree(image / "labels" / "cells", aside)
    shutil.move(image / "labels" / "cells", folder / "away")
    shutil.rmtree(folder / ".cytopave")
    assert found(folder) == {"a.zarr/labels/.cells.replaced": ("replaced", True)}
    assert remove_all(folder) == [False]
    shutil.move(folder / "away", image / "labels" / "cells")
    assert remove_all(folder) == [True]
    assert not aside.exists()
    assert labels_of(image).any()


def test_what_is_not_ours_is_no_leftover(folder: Path, image: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    plan = plan_of(image, scratch=scratch, **REQUEST)
    shutil.copytree(plan.root, scratch / ("0" * 16))
    (scratch / ("0" * 16) / "thesis.txt").touch()
    (scratch / "0123").mkdir()
    (image / "labels" / ".hidden").mkdir(parents=True)
    assert found(folder) == {}
    assert list(found(scratch, scratch=[scratch])) == [plan.root.name]


def test_a_bucket(folder: Path, image: Path) -> None:
    plan = plan_of(image, **REQUEST)
    plan.target.create(np.uint32)
    bucket = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").put(str(image), f"{bucket}/a.zarr", recursive=True)
    (seen,) = leftovers([bucket])
    assert seen.kind == "unpublished"
    assert seen.size > 0
    assert seen.remove()
    assert list(leftovers([bucket])) == []


def test_conversions_that_were_given_up(folder: Path) -> None:
    tifffile.imwrite(folder / "a.tif", np.zeros((40, 50), np.uint8))
    (conversion,) = conversions(folder / "a.tif")
    name = conversion.work.name
    with suppress(ZeroDivisionError), write.working(conversion):
        assert found(folder) == {name: ("unpublished", True)}
        assert remove_all(folder) == [False]
        write.write_group_of_parts(conversion, 0)
        raise ZeroDivisionError  # the folder stays where parts are written
    assert found(folder) == {name: ("unpublished", False)}
    # The store that was to be replaced, if the run was killed between two renames.
    (conversion.work / "replaced").mkdir()
    assert found(folder) == {name: ("unpublished", True)}
    (conversion.work / "replaced").rmdir()
    assert remove_all(folder) == [True]
    assert os.listdir(folder) == ["a.tif"]
