"""Publication: killed at any step and repeated, it ends the same; no reader sees a half."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import stores
import zarr

from cytopave.engine.errors import OutputError
from cytopave.engine.omezarr import publish
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.image import open_image
from cytopave.engine.omezarr.labels import LabelTarget, label_target, open_labels

SHAPE = (90, 70)


class Killed(BaseException):
    """Stands for SIGKILL."""


@contextmanager
def killed_at(step: int) -> Iterator[list[str]]:
    """Die instead of the given change to the disk, and change nothing after (no clean-up).

    Gives the names of the changes so far. Deletion of a folder dies half-way.
    """
    steps: list[str] = []
    opened: list[int] = []
    patch = pytest.MonkeyPatch()

    def mortal(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            steps.append(name)
            if len(steps) == step + 1 and name == "rmtree" and Path(args[0]).exists():
                next(p for p in Path(args[0]).rglob("*") if p.is_file()).open("w").close()
            if len(steps) > step:
                raise Killed
            return change(*args, **kwargs)

        return wrapped

    def recorded(*args: Any, **kwargs: Any) -> int:
        opened.append(open_file(*args, **kwargs))
        return opened[-1]

    open_file = os.open
    for owner, name in [
        (os, "rename"),
        (os, "replace"),
        (shutil, "rmtree"),
        (Path, "unlink"),
        (Path, "write_bytes"),
        (Path, "mkdir"),
    ]:
        patch.setattr(owner, name, mortal(name, getattr(owner, name)))
    patch.setattr(os, "open", recorded)
    try:
        yield steps
    except Killed:
        for handle in opened:  # the kernel does this, and so frees locks
            try:
                os.close(handle)
            except OSError:
                continue
    finally:
        patch.undo()


def labels_of(seed: int) -> np.ndarray:
    return stores.random_labels(SHAPE, seed=seed)


def digest_of(seed: int) -> str:
    return f"{seed:08d}" * 2


def staged(path: Path, name: str, *, seed: int = 0, **kwargs: Any) -> LabelTarget:
    target = target_of(path, name, seed=seed, **kwargs)
    target.create("uint32")
    for block in target.blocks():
        target.writer().write(block, labels_of(seed)[block.box.slices])
    target.writer().finish()
    return target


def target_of(path: Path, name: str, *, seed: int = 0, **kwargs: Any) -> LabelTarget:
    image = open_image(path)
    return label_target(image, name=name, tile=(64, 64), digest=digest_of(seed), **kwargs)


def content(path: Path, name: str) -> np.ndarray:
    return np.asarray(open_labels(path, name).levels[0][...])


def image_with(path: Path, version: str, *, consolidated: bool = False) -> Path:
    """An image with labels of another tool, ``nuclei``, in it."""
    stores.ome_image(path, np.zeros(SHAPE, "u1"), version=version, n_levels=2)
    target = staged(path, "nuclei", seed=9)
    target.publish({})
    if consolidated:
        zarr.consolidate_metadata(str(path))
    return path


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_killed_at_any_step_and_repeated(
    tmp_path: Path, version: str, overwrite: bool, consolidated: bool
) -> None:
    template = image_with(tmp_path / "template.zarr", version, consolidated=consolidated)
    if overwrite:
        staged(template, "cells", seed=1).publish({})
    staged(template, "cells", seed=2, overwrite=overwrite)
    seen: set[str] = set()
    for step in range(100):
        path = tmp_path / f"{step}.zarr"
        shutil.copytree(template, path)
        target = target_of(path, "cells", seed=2, overwrite=overwrite)
        with killed_at(step) as steps:
            target.publish({"try": 1})
            assert content(path, "cells").any()
            break
        seen.add(steps[step])
        check_visible(path, overwrite)

        # The same command again: planned anew, its tiles done already.
        if "cells" not in stores.listed(path) or overwrite:
            target = target_of(path, "cells", seed=2, overwrite=overwrite)
        assert target.is_published == ("cells" in stores.listed(path) and not waiting(path))
        target.publish({"try": 2})
        assert target.is_published
        check_final(path, consolidated)
        target.publish({"try": 3})  # and once more
        check_final(path, consolidated)
    assert step == len(steps) > 10
    assert {"rename", "replace", "unlink"} <= seen
    check_final(path, consolidated)


def waiting(path: Path) -> bool:
    """Whether what is in place, if anything, is not yet the new one."""
    return any((path / "labels").glob(".*.staging"))


def check_visible(path: Path, overwrite: bool) -> None:
    """What readers find at any moment is whole."""
    listed = stores.listed(path)
    assert "nuclei" in listed
    np.testing.assert_array_equal(content(path, "nuclei"), labels_of(9))
    if "cells" in listed and not (path / "labels" / "cells").exists():
        assert overwrite  # between the two renames
        assert (path / "labels" / ".cells.replaced").exists()
    elif "cells" in listed:
        found = content(path, "cells")
        allowed = [labels_of(2), labels_of(1)] if overwrite else [labels_of(2)]
        assert any(np.array_equal(found, want) for want in allowed)


def check_final(path: Path, consolidated: bool) -> None:
    assert stores.listed(path) == ["nuclei", "cells"]
    np.testing.assert_array_equal(content(path, "cells"), labels_of(2))
    np.testing.assert_array_equal(content(path, "nuclei"), labels_of(9))
    hidden = {p.name for p in (path / "labels").iterdir() if p.name.startswith(".")}
    assert hidden <= {".zgroup", ".zattrs"}
    assert not list(path.glob(".*part"))
    if consolidated:
        root: Any = zarr.open_consolidated(str(path))
        np.testing.assert_array_equal(root["labels/cells/0"][...], labels_of(2))
        assert set(root["labels"].group_keys()) == {"nuclei", "cells"}


@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_runs_at_once_keep_each_others_names(tmp_path: Path, version: str) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros(SHAPE, "u1"), version=version)
    targets = [staged(path, f"n{i}", seed=i) for i in range(12)]
    start = Barrier(len(targets))

    def work(target: LabelTarget) -> None:
        start.wait()
        target.publish({})

    with ThreadPoolExecutor(len(targets)) as pool:
        list(pool.map(work, targets))
    assert sorted(stores.listed(path)) == sorted(t.name for t in targets)
    assert not (path / ".cytopave.lock").exists()


def test_a_name_taken_during_the_run(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros(SHAPE, "u1"))
    first, second = staged(path, "cells", seed=1), staged(path, "cells", seed=2)
    first.publish({})
    with pytest.raises(OutputError, match=r"'cells' appeared in .* during the run"):
        second.publish({})
    np.testing.assert_array_equal(content(path, "cells"), labels_of(1))


def test_nothing_to_publish(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros(SHAPE, "u1"))
    with pytest.raises(OutputError, match="no finished label image 'cells' to publish"):
        target_of(path, "cells").publish({})


def test_what_else_the_labels_group_says_is_kept(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros(SHAPE, "u1"))
    stores.group(path / "labels", {"ome": {"version": "0.5", "labels": ["a"]}, "note": [1]})
    staged(path, "cells").publish({})
    attributes = json.loads((path / "labels" / "zarr.json").read_text())["attributes"]
    assert attributes == {"ome": {"version": "0.5", "labels": ["a", "cells"]}, "note": [1]}


def test_where_locks_are_not_supported_a_warning_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    path = stores.ome_image(tmp_path / "i.zarr", np.zeros(SHAPE, "u1"))
    target = staged(path, "cells")
    monkeypatch.setattr("fcntl.flock", refuse)
    target.publish({})
    assert "cannot be locked" in caplog.text
    assert stores.listed(path) == ["cells"]


def test_digest_of(tmp_path: Path) -> None:
    path = stores.ome_image(tmp_path / "i.zarr", np.zeros(SHAPE, "u1"))
    staged(path, "cells", seed=3).publish({})
    labels = Folder(str(path), path="labels")
    assert publish.digest_of(labels / "cells") == digest_of(3)
    assert publish.digest_of(labels / "nuclei") is None
    assert publish.is_taken(labels, "cells", digest_of(3))
