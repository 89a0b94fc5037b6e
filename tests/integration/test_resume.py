"""What is finished stays finished, and nothing is seen before it is complete."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dying
import numpy as np
import pytest
import run_flow
import stores
import tile_functions
from runs import blobs, components, labels_of, plan_of, provenance, run_here

from cytopave.engine.errors import OutputError
from cytopave.engine.merge import Merge
from cytopave.engine.omezarr.folders import Folder
from cytopave.engine.omezarr.publish import locked
from cytopave.engine.segmenters import Custom, Threshold
from cytopave.engine.tiling import Grid, Tiling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runs import Flows

SHAPE, TILING = (256, 256), Tiling(tile=(64, 64), halo=16)
GRID = Grid(SHAPE, (64, 64), (16, 16))


@pytest.fixture
def mask(folder: Path) -> np.ndarray:
    """Foreground of the image ``image.zarr`` in the test's folder."""
    mask = np.asarray(blobs(SHAPE))
    stores.ome_image(folder / "image.zarr", mask.astype(np.uint8), chunks=(64, 64))
    return mask


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def recorded(notes: Path, **kwargs: Any) -> Custom:
    return Custom(
        function="tile_functions:recorded", kwargs={"folder": str(notes)} | kwargs, gpu=False
    )


def keys(mask: np.ndarray) -> list[str]:
    """Each tile's name in the record of calls."""
    return [tile_functions.key_of(mask[t.window.slices].astype(np.uint8)) for t in GRID]


def finished(folder: Path) -> set[int]:
    return {int(p.stem) for p in folder.glob(".cytopave/*/tiles/*/*.zip")}


class Reader(threading.Thread):
    """Looks at the labels all the time, as a viewer would, and keeps what it saw."""

    def __init__(self, image: Path, truth: np.ndarray) -> None:
        super().__init__(daemon=True)
        self.image, self.truth = image, truth
        self.done = threading.Event()
        self.looks = 0
        self.seen: list[str] = []

    def run(self) -> None:
        while not self.done.wait(0.01):
            self.look()

    def look(self) -> None:
        self.looks += 1
        listed = stores.listed(self.image) == ["cells"]
        state = "nothing"
        if listed or (self.image / "labels" / "cells").exists():
            state = "all" if self._is_complete() else "a part"
        if state not in self.seen:
            self.seen.append(state)

    def _is_complete(self) -> bool:
        import zarr

        try:
            labels = zarr.open_array(str(self.image / "labels" / "cells" / "0"), mode="r")
        except FileNotFoundError:
            return False
        return bool(np.array_equal(labels[...], self.truth))


@contextmanager
def watched(image: Path, truth: np.ndarray) -> Iterator[Reader]:
    reader = Reader(image, truth)
    reader.start()
    yield reader
    reader.done.set()
    reader.join()
    reader.look()


def test_killed_and_started_again(
    folder: Path, notes: Path, mask: np.ndarray, prefect_api: str, tmp_path: Path
) -> None:
    """Killed after a third of the tiles, killed again while it writes, and then let be."""
    image, truth = folder / "image.zarr", components(mask)
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    parameters = {
        "image": str(image),
        "segmenter": recorded(notes).model_dump(),
        "tiling": TILING.model_dump(),
        "cluster": "auto",
        "workers": 2,
    }
    # Each in a batch of its own: the two workers come to them, and wait there to be killed.
    last = {keys(mask)[3], keys(mask)[8]}
    for key in last:
        (notes / key).write_text("wait")

    def kept() -> set[str]:
        return {keys(mask)[tile] for tile in finished(folder)}

    def waiting() -> bool:
        return last <= (begun := set(tile_functions.calls(notes))) and begun - last == kept()

    start = partial(run_flow.Process, cwd, parameters, PREFECT_API_URL=prefect_api)
    with watched(image, truth) as reader:
        first = start()
        first.kill_when(waiting)
        assert len(kept()) >= len(GRID) // 3
        for key in last:
            (notes / key).unlink()
        second = start()
        with locked(Folder(str(image))):  # without which nothing is published
            second.kill_when(lambda: any((image / "labels").glob(".cells.*.staging")))
        third = start()
        third.wait()
    assert reader.looks > 100
    assert reader.seen == ["nothing", "all"]
    np.testing.assert_array_equal(labels_of(image), truth)
    calls = tile_functions.calls(notes)
    assert set(calls) == set(keys(mask))
    # Only what was under way on the two workers was begun twice.
    assert calls == dict.fromkeys(keys(mask), 1) | dict.fromkeys(last, 2)
    assert provenance(image)["n_reused"] == len(GRID)
    for process in (first, second, third):
        assert process.left() == []
    assert [p.name for p in folder.iterdir()] == ["image.zarr"]
    assert [p.name for p in (image / "labels").iterdir() if p.is_dir()] == ["cells"]
    assert [p.name for p in cwd.iterdir()] == ["log"]


def test_an_api_of_its_own_goes_with_the_run(
    folder: Path, notes: Path, mask: np.ndarray, tmp_path: Path
) -> None:
    """Without an API the run starts one. Only the flow's process is killed: the others follow."""
    (notes / keys(mask)[15]).write_text("wait")
    parameters = {
        "image": str(folder / "image.zarr"),
        "segmenter": recorded(notes).model_dump(),
        "tiling": TILING.model_dump(),
        "cluster": "cpu",
        "workers": 1,
    }
    process = run_flow.Process(tmp_path, parameters)
    process.kill_when(lambda: len(finished(folder)) > 0, group=False)
    assert process.left() == []


def test_only_what_matters_is_computed_again(
    folder: Path, notes: Path, mask: np.ndarray, flows: Flows
) -> None:
    image, n = folder / "image.zarr", len(GRID)

    def calls_of(name: str, **changes: Any) -> tuple[int, int]:
        """New calls of the function, and the tiles that the report says were there."""
        before = tile_functions.calls(notes).total()
        parameters = {"segmenter": recorded(notes), "tiling": TILING, "keep_scratch": True}
        report = flows.segment(image, name=name, **parameters | changes)
        assert report.n_tiles == n
        return tile_functions.calls(notes).total() - before, report.n_reused

    assert calls_of("first") == (n, 0)
    assert calls_of("another-name", merge=Merge(rule="touch", iou=0.7)) == (0, n)
    lost = next(folder.glob(".cytopave/*/tiles/*/000000005.zip"))
    lost.unlink()
    assert calls_of("a-lost-tile") == (1, n - 1)
    assert tile_functions.calls(notes)[keys(mask)[5]] == 2
    assert calls_of("other-arguments", segmenter=recorded(notes, above=0.5)) == (n, 0)
    for name in ("first", "another-name", "a-lost-tile", "other-arguments"):
        np.testing.assert_array_equal(labels_of(image, name), components(mask))
    assert stores.listed(image) == ["first", "another-name", "a-lost-tile", "other-arguments"]


def test_the_digest_holds_all_that_matters(folder: Path, mask: np.ndarray, notes: Path) -> None:
    """Another digest is another folder of tiles: nothing of the old one is used."""
    image = folder / "image.zarr"
    module = notes / "method_under_change.py"
    module.write_text("def f(tile, n=1): return tile\n")

    def digest(segmenter: Any = None, **changes: Any) -> str:
        segmenter = segmenter or Threshold(threshold=0.5)
        return plan_of(image, segmenter=segmenter, **{"tiling": TILING} | changes).digest

    first = digest()
    same = {digest(name="other"), digest(merge=Merge(rule="touch")), digest(batch_seconds=0.1)}
    same |= {digest(workers=7), digest(output=folder / "elsewhere.zarr")}
    assert same == {first}
    others = [
        digest(Threshold(threshold=0.6)),
        digest(Threshold(threshold=0.5, min_size=3)),
        digest(tiling=Tiling(tile=(64, 64), halo=15)),
        digest(tiling=Tiling(tile=(64, 65), halo=16)),
    ]
    method = Custom(function="method_under_change:f", kwargs={})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(notes))
        others.append(digest(method))
        others.append(digest(method.model_copy(update={"kwargs": {"n": 2}})))
        others.append(digest(method.model_copy(update={"version": "2"})))
        module.write_text("def f(tile, n=1): return 1 * tile\n")
        others.append(digest(method))
    stores.plain_array(image / "s0", ~mask, chunks=(64, 64))
    others.append(digest())
    assert len({first, *others}) == len(others) + 1


def test_killed_at_every_step_of_writing_and_publishing(folder: Path) -> None:
    """Whatever has a name is whole: a run dies after each renaming in turn, the next completes."""
    mask = blobs((96, 90))
    image = stores.ome_image(
        folder / "image.zarr", mask.astype(np.uint8), chunks=(48, 48), n_levels=2
    )
    plan = run_here(image, **dying.REQUEST)
    truth = labels_of(image)
    np.testing.assert_array_equal(truth, components(mask))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dying"])

    def run(reader: Reader, dies_after: int | None) -> int | None:
        child = context.Process(target=dying.make_labels, args=(str(image), dies_after))
        child.start()
        while child.is_alive():
            reader.look()
        reader.look()
        return child.exitcode

    died, step = True, 0
    while died:
        shutil.rmtree(image / "labels")
        shutil.rmtree(plan.merge_folder)
        step += 1
        reader = Reader(image, truth)
        died = run(reader, step) == -signal.SIGKILL
        if died and not stores.listed(image):
            assert run(reader, None) == 0
        assert set(reader.seen) <= {"nothing", "all"}
        assert reader.seen[-1] == "all"
        assert [p.name for p in (image / "labels").iterdir() if p.is_dir()] == ["cells"]
    assert step > 15


class Both(threading.Thread):
    """A flow run beside the test's own."""

    def __init__(self, flows: Flows, image: Path, **parameters: Any) -> None:
        super().__init__(daemon=True)
        self._run = partial(flows.segment, image, **parameters)
        self.error: OutputError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._run()
        except OutputError as error:
            self.error = error


def test_two_runs_at_once(folder: Path, notes: Path, mask: np.ndarray, flows: Flows) -> None:
    """Of the same tiles, of the same name, and of the same name from other tiles."""
    image, truth, others = folder / "image.zarr", components(mask), notes / "of-others"
    others.mkdir()
    (notes / keys(mask)[15]).write_text("wait")
    own = {"segmenter": recorded(notes), "tiling": TILING}
    run = Both(flows, image, name="cells", **own)
    while run.is_alive() and keys(mask)[15] not in tile_functions.calls(notes):
        time.sleep(0.01)
    with pytest.raises(OutputError, match=r"another run is making the labels .*cells.* just now"):
        flows.segment(image, name="cells", **own)
    flows.segment(image, name="cells", segmenter=recorded(others, above=-1), tiling=TILING)
    other_name = Both(flows, image, name="others", **own)
    while other_name.is_alive() and tile_functions.calls(notes)[keys(mask)[15]] < 2:
        time.sleep(0.01)
    assert run.is_alive()
    (notes / keys(mask)[15]).unlink()
    for thread in (run, other_name):
        thread.join()
    assert other_name.error is None
    assert "appeared" in str(run.error)
    assert stores.listed(image) == ["cells", "others"]
    assert (labels_of(image) == 1).all()
    np.testing.assert_array_equal(labels_of(image, "others"), truth)
    # Of the one that lost there may be tiles, for another name, and no hidden label image.
    assert {p.name for p in folder.iterdir()} <= {"image.zarr", ".cytopave"}
    assert sorted(p.name for p in (image / "labels").iterdir() if p.is_dir()) == [
        "cells",
        "others",
    ]
