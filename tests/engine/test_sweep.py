"""What a sweep finds in a folder or bucket, and what it holds of each image."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import stores
import zarr
from runs import run_here

from cytopave.engine.errors import ImageError, OutputError
from cytopave.engine.search import places
from cytopave.engine.segmenters import Threshold
from cytopave.engine.sweep import candidates
from cytopave.engine.tiling import Tiling

REQUEST: dict[str, Any] = {"segmenter": Threshold(threshold=100), "tiling": Tiling()}
PIXELS = np.zeros((40, 50), np.uint8)
PIXELS[10:20, 10:20] = 200


def image(path: Path, **kwargs: Any) -> Path:
    return stores.ome_image(path, PIXELS, chunks=(20, 25), **kwargs)


def states(folder: Path | str, **kwargs: Any) -> dict[str, str]:
    options: dict[str, Any] = {"name": "cells", "settled_seconds": 0} | kwargs
    return {c.path: c.state for c in candidates(str(folder), **options)}


def test_images_wherever_they_are(tmp_path: Path) -> None:
    """In folders, in a plate, as plain arrays; not the labels, tables and levels of images."""
    a = image(tmp_path / "a.zarr")
    image(a / "labels" / "cells")
    stores.group(a / "labels", {"ome": {"version": "0.5", "labels": ["nuclei"]}})
    image(tmp_path / "day 2" / "b.zarr", version="0.4")
    stores.group(tmp_path / "plate.zarr", {"ome": {"version": "0.5", "plate": {}}})
    for well in ("A/1", "B/3"):
        image(tmp_path / "plate.zarr" / well / "0")
    stores.group(tmp_path / "plate.zarr" / "tables", {})
    stores.plain_array(tmp_path / "plate.zarr" / "tables" / "x", PIXELS)
    stores.plain_array(tmp_path / "plain.zarr", PIXELS)
    stores.group(tmp_path / "plain.labels.zarr" / "labels", {"ome": {"labels": []}})
    image(tmp_path / ".hidden" / "c.zarr")
    (tmp_path / "notes.txt").touch()
    (tmp_path / "day 2" / "back").symlink_to(tmp_path)
    (tmp_path / "linked.zarr").symlink_to(a)
    found = ["a.zarr", "day 2/b.zarr", "linked.zarr", "plain.zarr", "plate.zarr/A/1/0"]
    assert list(states(tmp_path)) == [*found, "plate.zarr/B/3/0"]
    assert list(states(tmp_path, match="plate*")) == ["plate.zarr/A/1/0", "plate.zarr/B/3/0"]
    assert list(states(a)) == ["a.zarr"]
    kinds = {p.path: p.kind for p in places(str(tmp_path))}
    assert kinds["plate.zarr"] == "group"
    assert kinds["day 2"] == "folder"


def test_labels_that_are_missing_and_those_of_other_pixels(tmp_path: Path) -> None:
    path = image(tmp_path / "a.zarr")
    assert states(tmp_path) == {"a.zarr": "new"}
    run_here(path, **REQUEST)
    assert states(tmp_path) == {"a.zarr": "labelled"}
    assert states(tmp_path, name="others") == {"a.zarr": "new"}
    assert states(tmp_path, output=str(tmp_path.parent / "elsewhere")) == {"a.zarr": "new"}
    zarr.open_array(str(path / "s0"))[0, 0] = 7
    assert states(tmp_path) == {"a.zarr": "changed"}
    (found,) = candidates(str(tmp_path), name="cells", settled_seconds=0)
    assert found.url == str(path)
    assert found.wanted
    assert len(found.fingerprint) == 64


def test_labels_elsewhere(tmp_path: Path) -> None:
    path = image(tmp_path / "in" / "day" / "a.zarr")
    out = str(tmp_path / "out")
    (found,) = candidates(str(tmp_path / "in"), name="cells", settled_seconds=0, output=out)
    assert found.output == f"{tmp_path}/out/day/a.zarr"
    run_here(path, **REQUEST, output=found.output)
    assert states(tmp_path / "in", output=out) == {"day/a.zarr": "labelled"}


def test_what_is_left_alone(tmp_path: Path) -> None:
    """Labels of other programs, images that cannot be read, and those that are still arriving."""
    theirs = image(tmp_path / "theirs.zarr")
    stores.group(theirs / "labels", {"ome": {"version": "0.5", "labels": ["cells"]}})
    image(theirs / "labels" / "cells")
    stores.plain_array(tmp_path / "line.zarr", np.zeros(5, np.uint8))
    arriving = image(tmp_path / "arriving.zarr")
    (image(tmp_path / "half.zarr") / "zarr.json").write_text('{"zarr_format": 3, "node_')
    odd = {"ome": {"version": "0.5", "multiscales": {"a": 1}}}
    stores.group(tmp_path / "odd.zarr", odd)
    for file in arriving.rglob("*"):  # as a copy that keeps the times of the original
        os.utime(file, (0, 0))
    damaged = dict.fromkeys(("half.zarr", "line.zarr", "odd.zarr"), "unreadable")
    assert states(tmp_path) == {"arriving.zarr": "new", **damaged, "theirs.zarr": "foreign"}
    assert states(tmp_path, settled_seconds=3600)["arriving.zarr"] == "arriving"
    notes = {c.path: c.note for c in candidates(str(tmp_path), name="cells")}
    assert "only arrays of 2 to 5 axes" in notes["line.zarr"]


def test_bad_requests(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"there is no folder .*absent"):
        states(tmp_path / "absent")
    (tmp_path / "file").touch()
    with pytest.raises(ImageError, match=r"there is no folder .*file"):
        states(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot name a label image"):
        states(tmp_path, name="a/b")


def test_a_bucket(tmp_path: Path) -> None:
    """Files in memory stand for an object store: they have no times before they are written."""
    bucket = f"memory://{uuid.uuid4().hex}"
    path = image(tmp_path / "a.zarr")
    fsspec.filesystem("memory").put(str(path), f"{bucket}/day/a.zarr", recursive=True)
    now = time.time()
    (found,) = candidates(bucket, name="cells", settled_seconds=0)
    assert (found.url, found.path, found.state) == (f"{bucket}/day/a.zarr", "day/a.zarr", "new")
    assert states(bucket, settled_seconds=3600 + time.time() - now) == {"day/a.zarr": "arriving"}
