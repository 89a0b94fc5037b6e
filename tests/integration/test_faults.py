"""Faults, provoked for real: the message, what is kept, and that a rerun completes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import distributed
import numpy as np
import psutil
import pytest
import stores
import tile_functions
import worlds
from runs import blobs, components, labels_of, plan_of, provenance
from server import wait_until

from cytopave.engine.errors import ClusterError, LabelError, OutputError, TileError, UserError
from cytopave.engine.report import Report
from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Cellpose, Custom, Threshold
from cytopave.engine.split import ever_smaller
from cytopave.engine.tiling import Grid, Tiling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runs import Flows

SHAPE, TILING = (256, 256), Tiling(tile=(64, 64), halo=16)
GRID = Grid(SHAPE, (64, 64), (16, 16))


class World:
    """An image, and notes that make the function fail on chosen tiles."""

    def __init__(self, folder: Path) -> None:
        self.image = folder / "data" / "image.zarr"
        self.notes = folder / "notes"
        self.notes.mkdir()
        self.mask = np.asarray(blobs(SHAPE))
        stores.ome_image(self.image, self.mask.astype(np.uint8), chunks=(64, 64))
        self.truth = components(self.mask)

    @property
    def request(self) -> dict[str, Any]:
        function = "tile_functions:recorded"
        segmenter = Custom(function=function, kwargs={"folder": str(self.notes)})
        return {"segmenter": segmenter, "tiling": TILING}

    def key(self, tile: int) -> str:
        return tile_functions.key_of(self.mask[GRID[tile].window.slices].astype(np.uint8))

    def note(self, tile: int, what: str) -> None:
        (self.notes / self.key(tile)).write_text(what)

    def fill_memory(self, tile: int, what: str) -> None:
        """What memory does not suffice for: the tile, and the first part of each way to cut it."""
        self.note(tile, what)
        window = GRID[tile].window
        pixels = self.mask[window.slices].astype(np.uint8)
        for parts in ever_smaller(window.shape, GRID.halo):
            key = tile_functions.key_of(pixels[parts[0].window.slices])
            (self.notes / key).write_text(what)

    def forgive(self) -> None:
        """All tiles work from now on; the record of calls starts anew."""
        for path in self.notes.iterdir():
            path.unlink()

    def calls(self) -> dict[int, int]:
        """How often each tile was begun."""
        found = tile_functions.calls(self.notes)
        return {tile: found[self.key(tile)] for tile in range(len(GRID)) if self.key(tile) in found}

    def finished(self) -> set[int]:
        return {int(p.stem) for p in self.image.parent.glob(".cytopave/*/tiles/*/*.zip")}

    def at_work(self) -> bool:
        """Whether a batch is being computed: each has a file for its time limit meanwhile."""
        return any(self.image.parent.glob(".cytopave/*/overtime/*.txt"))

    def is_right(self) -> bool:
        return bool(np.array_equal(labels_of(self.image), self.truth)) and [
            p.name for p in self.image.parent.iterdir()
        ] == ["image.zarr"]


@pytest.fixture
def world(folder: Path) -> World:
    return World(folder.parent)


ALL = frozenset(range(len(GRID)))


def test_errors_of_a_tile(world: World, flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory is tried again until it passes; another error never, and it stops nobody."""
    monkeypatch.setenv("CYTOPAVE_BACKOFF_SECONDS", "0.05")
    world.fill_memory(2, "torch 2")
    world.fill_memory(9, "cupy 1")
    world.note(12, "error")
    with pytest.raises(TileError) as caught:
        flows.segment(world.image, **world.request)
    message = str(caught.value)
    assert "1 of 8 batches failed" in message
    assert f"{GRID[12]}: ValueError: these pixels are not to my taste" in message
    assert world.calls() == dict.fromkeys(ALL, 1) | {2: 3, 9: 2}
    assert world.finished() == ALL - {12}
    assert stores.listed(world.image) == []
    world.forgive()
    report = flows.segment(world.image, **world.request)
    assert world.calls() == {12: 1}
    assert report.n_reused == len(GRID) - 1
    assert world.is_right()


def test_a_batch_that_keeps_failing_is_left_out_on_request(world: World, flows: Flows) -> None:
    """Two batches of one: of the third row of tiles, the second and the third tile are missing."""
    world.note(9, "error")
    world.note(10, "error")
    with pytest.raises(TileError, match="2 of 8 batches failed"):
        flows.segment(world.image, **world.request, allow_failed=1)
    assert stores.listed(world.image) == []
    report = flows.segment(world.image, **world.request, allow_failed=2)
    assert world.calls() == dict.fromkeys(ALL, 1) | {9: 2, 10: 2}
    assert [str(m) for m in report.missing] == [str(GRID[9]), str(GRID[10])]
    assert report.missing[0].why == "ValueError: these pixels are not to my taste"
    assert report.missing_note().startswith("2 of 16 tiles failed and are left out: tile 9 (")
    made = provenance(world.image)
    assert made["missing"] == report.model_dump(mode="json")["missing"]
    assert Report.from_provenance(made, report.labels_path).missing == report.missing
    # The rest is what a whole run makes, up to where an object reaches into the missing area.
    found, hole = labels_of(world.image), (slice(128, 192), slice(64, 192))
    touching = np.unique(world.truth[hole])
    elsewhere = ~np.isin(world.truth, touching)
    assert elsewhere.any()
    assert worlds.same_partition(found[elsewhere][None], world.truth[elsewhere][None])
    outside = np.ones(SHAPE, bool)
    outside[hole] = False
    assert np.array_equal((found > 0)[outside], world.mask[outside])
    assert not (found > 0)[hole][16:-16, 16:-16].any(), "further in than the neighbours see"
    # The tiles are kept: a later run adds what was missing, if it may replace the labels.
    world.forgive()
    with pytest.raises(OutputError, match="already in"):
        flows.segment(world.image, **world.request)
    whole = flows.segment(world.image, **world.request, overwrite=True)
    assert world.calls() == {9: 1, 10: 1}
    assert whole.missing == []
    assert world.is_right()
    # What ended at the missing area was not counted as cut at seams.
    for without, of_all in zip(report.seams.axes, whole.seams.axes, strict=True):
        assert without.seams.met < of_all.seams.met
        assert without.seams.cut <= of_all.seams.cut


def test_a_label_image_without_any_tile_is_none(world: World, flows: Flows) -> None:
    for tile in ALL:
        world.note(tile, "error")
    with pytest.raises(TileError, match="8 of 8 batches failed"):
        flows.segment(world.image, **world.request, allow_failed=8)
    assert stores.listed(world.image) == []


def test_memory_that_never_suffices(
    world: World, flows: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CYTOPAVE_BACKOFF_SECONDS", "0.05")
    monkeypatch.setenv("CYTOPAVE_RETRIES", "1")
    world.fill_memory(0, "torch")
    with pytest.raises(TileError) as caught:
        flows.segment(world.image, **world.request)
    message = str(caught.value)
    assert f"OutOfMemoryError: {GRID[0]}: CUDA out of memory. Tried to allocate 2.00" in message
    assert plan_of(world.image, **world.request).batches[0] == (0, 4)
    assert world.calls() == dict.fromkeys(ALL, 1) | {0: 2}
    assert world.finished() == ALL - {0}
    world.forgive()
    flows.segment(world.image, **world.request)
    assert world.calls() == {0: 1}
    assert world.is_right()


def test_a_tile_that_fits_in_parts_is_not_waited_for(world: World, flows: Flows) -> None:
    world.note(0, "torch")
    flows.segment(world.image, **world.request)
    assert world.calls() == dict.fromkeys(ALL, 1)
    assert world.is_right()


WRONG = {
    "floats": r"float64 values: labels must be integers",
    "negatives": r"negative ids",
    "shape": r"labels of shape \(79, 80\) for a tile of spatial shape \(80, 80\)",
    "too-large": r"does not fit into 64 bits",
    "nothing": r"returned nothing",
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_label_image(world: World, what: str) -> None:
    world.note(0, what)
    plan = plan_of(world.image, **world.request)
    with pytest.raises(LabelError, match=WRONG[what]) as caught:
        segment_tiles(plan, plan.batches[0])
    assert "tile_functions:recorded" in str(caught.value)
    assert str(GRID[0]) in str(caught.value)
    assert 0 not in world.finished()  # the other tile of the batch may be there


def test_what_is_no_label_image_ends_the_run(world: World, flows: Flows) -> None:
    """No further batch is begun, and the one that is under way beside it is not waited for."""
    first, second = plan_of(world.image, **world.request).batches[:2]
    for tile in ALL:
        world.note(tile, "floats")
    world.note(second[0], "wait")
    with pytest.raises(LabelError, match=WRONG["floats"]):
        flows.segment(world.image, **world.request)
    assert {first[0]} <= set(world.calls()) <= {*first, second[0]}
    world.forgive()
    wait_until(lambda: not world.at_work(), 300)
    flows.segment(world.image, **world.request)
    assert world.is_right()


def test_a_worker_dies_once(world: World, flows: Flows) -> None:
    """In the second tile of a batch: the run completes, and no other batch is computed again."""
    world.note(4, "kill 1")
    with distributed.Client(flows.address, set_as_default=False) as client:
        before = set(client.run(os.getpid).values())
        flows.segment(world.image, **world.request)
        client.wait_for_workers(2, timeout=300)
        after = set(client.run(os.getpid).values())
    assert plan_of(world.image, **world.request, name="x").batches[0] == (0, 4)
    calls = world.calls()
    assert calls.pop(0) in (1, 2), "it was being committed when the worker died, or was"
    assert calls == dict.fromkeys(ALL - {0}, 1) | {4: 2}
    assert len(before - after) == 1
    assert np.array_equal(labels_of(world.image), world.truth)


def test_a_tile_that_kills_every_worker(world: World, flows: Flows) -> None:
    """On workers that the run starts itself, and that are back later than Dask would wait."""
    world.note(2, "kill")
    hasty = dask.config.set({"distributed.deploy.lost-worker-timeout": "1ms"})
    with hasty, pytest.raises(TileError) as caught:
        flows.segment(world.image, **world.request, cluster="cpu", workers=2)
    message = str(caught.value)
    assert "1 of 8 batches failed" in message
    assert "batch 2 (tiles 2, 6): its worker died, 2 times in a row" in message
    assert world.finished() == ALL - {2, 6}
    assert world.calls() == dict.fromkeys(ALL - {6}, 1) | {2: 2}
    world.forgive()
    flows.segment(world.image, **world.request)
    assert world.calls() == {2: 1, 6: 1}
    assert world.is_right()


def test_a_function_that_hangs(world: World, flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a library that holds Python's lock, so that nothing else in the worker runs any more."""
    monkeypatch.setenv("CYTOPAVE_TILE_TIMEOUT_SECONDS", "10")
    world.note(4, "hang")
    (world.notes / "before").write_text(f"{world.image.parent}/.cytopave/*/tiles/*/{0:09d}.zip")
    with distributed.Client(flows.address, set_as_default=False) as client:
        before = set(client.run(os.getpid).values())
        with pytest.raises(TileError) as caught:
            flows.segment(world.image, **world.request)
        client.wait_for_workers(2, timeout=300)
        after = set(client.run(os.getpid).values())
    message = str(caught.value)
    assert "1 of 8 batches failed" in message
    assert f"{GRID[4]}: it was not done in time (CYTOPAVE_TILE_TIMEOUT_SECONDS)" in message
    assert re.search(r"its worker was ended in tile_functions\.py, line \d+, in hang", message)
    # The next worker knows, and finishes the other tile of the batch.
    assert world.finished() == ALL - {4}
    assert world.calls() == dict.fromkeys(ALL, 1)
    assert len(before - after) == 1
    world.forgive()
    flows.segment(world.image, **world.request)
    assert world.calls() == {4: 1}
    assert world.is_right()


def test_a_truncated_chunk(world: World, flows: Flows) -> None:
    """Its tiles fail and are named, the others are finished."""
    chunk = world.image / "s0" / "c" / "1" / "2"
    whole = chunk.read_bytes()
    times = chunk.stat()
    chunk.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TileError) as caught:
        flows.segment(world.image, **world.request)
    message = str(caught.value)
    near = {t.index for t in GRID if t.window.intersect(GRID[6].core).size}
    assert near == {1, 2, 3, 5, 6, 7, 9, 10, 11}
    assert str(GRID[6]) in message
    assert "file s0/c/1/2, region" in message
    assert "truncated or damaged" in message
    assert world.finished() == ALL - near
    # The file is repaired to what it was, its time included.
    chunk.write_bytes(whole)
    os.utime(chunk, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_nothing_is_computed_that_cannot_be_written(world: World, flows: Flows) -> None:
    flows.segment(world.image, **world.request)
    world.forgive()
    with pytest.raises(OutputError, match=r"already in .*another name"):
        flows.segment(world.image, **world.request)
    (world.notes / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"scratch folder .*file.* cannot be used"):
        flows.segment(world.image, name="b", scratch=str(world.notes / "file"), **world.request)
    assert world.calls() == {}
    assert stores.listed(world.image) == ["cells"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"image": "nowhere.zarr"}, "nowhere.zarr"),
    "level": ({"level": 3}, "has no level 3"),
    "channel": ({"channels": ["dapi"]}, "no channel axis"),
    "axes": ({"axes": "yxz"}, "axes"),
    "halo": ({"tiling": Tiling(tile=(64, 64), halo=65)}, "a halo of 65 pixels does not fit"),
    "tile": ({"tiling": Tiling(tile=(8, 64, 64))}, "3 lengths"),
    "function": ({"segmenter": Custom(function="nosuch:f", kwargs={})}, "nosuch"),
    "model": ({"segmenter": Cellpose(model="no-such-model")}, "no-such-model"),
    "name": ({"name": "a/b"}, "cannot name a label image"),
    "output": ({"output": "image.zarr/s0"}, "is a zarr array"),
    "address": ({"cluster": "tcp://localhost"}, "write tcp://host:port"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_request_starts_no_worker(
    world: World, flows: Flows, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends with one sentence, and nothing is left."""
    monkeypatch.chdir(world.image.parent)
    before = psutil.Process().children()
    changes, message = REFUSED[what]
    request = world.request | {"image": world.image, "cluster": "cpu", "workers": 1} | changes
    with pytest.raises(UserError, match=message) as caught:
        flows.segment(request.pop("image"), **request)
    assert "\n" not in str(caught.value)
    assert psutil.Process().children() == before
    assert [p.name for p in world.image.parent.iterdir()] == ["image.zarr"]
    assert not (world.image / "labels").exists()


def test_a_read_only_output(world: World, flows: Flows, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", kilobytes=64) as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OutputError, match=r"cannot be written to .*[Rr]ead-only"):
            flows.segment(world.image, output=str(disk / "o.zarr"), **world.request)
    assert world.calls() == {}


@contextmanager
def small_disk(path: Path, *, kilobytes: int) -> Iterator[Path]:
    """A disk that is soon full; skips the test where none can be mounted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def enlarge(path: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=64m", str(path)], check=True)


def test_the_scratch_disk_is_full(world: World, flows: Flows, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, kilobytes=100):
        request = world.request | {"scratch": str(disk)}
        with pytest.raises(TileError, match="No space left on device"):
            flows.segment(world.image, **request)
        kept = {int(p.stem) for p in disk.glob("*/tiles/*/*.zip")}
        assert 0 < len(kept) < len(GRID)
        assert not [*disk.glob("**/*.partial")]
        enlarge(disk)
        world.forgive()
        flows.segment(world.image, **request)
        assert set(world.calls()) == ALL - kept
        assert world.is_right()
        assert not [*disk.iterdir()]


def test_the_output_disk_is_full(world: World, flows: Flows, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, kilobytes=12):
        request = world.request | {"scratch": str(tmp_path / "s"), "output": str(disk / "o.zarr")}
        with pytest.raises(OutputError, match=r"cannot be written to .*No space left on device"):
            flows.segment(world.image, **request)
        assert stores.listed(disk / "o.zarr") == []
        enlarge(disk)
        world.forgive()
        flows.segment(world.image, **request)
        assert world.calls() == {}
        np.testing.assert_array_equal(labels_of(disk / "o.zarr"), world.truth)
        assert [p.name for p in disk.iterdir()] == ["o.zarr"]


def test_the_scheduler_dies(world: World, flows: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with an error instead of waiting for ever, and can be repeated."""
    monkeypatch.setenv("CYTOPAVE_WORKER_TIMEOUT_SECONDS", "5")
    script = (
        "import distributed, time\n"
        "if __name__ == '__main__':\n"
        "    options = {'threads_per_worker': 1, 'dashboard_address': ':0'}\n"
        "    c = distributed.LocalCluster(n_workers=1, **options)\n"
        "    print(c.scheduler_address, flush=True); time.sleep(600)\n"
    )
    world.note(3, "wait")
    path = world.notes.parent / "scheduler.py"
    path.write_text(script)
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()

        def kill() -> None:
            # At the tile that waits, once those before it are committed.
            while not (3 in (begun := world.calls()) and world.finished() == {*begun} - {3}):
                time.sleep(0.01)
            os.killpg(process.pid, signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        with pytest.raises(ClusterError, match=r"scheduler was lost.*continues"):
            flows.segment(world.image, **world.request, cluster=address)
    kept = world.finished()
    assert len(kept) >= 3
    assert set(world.calls()) == kept | {3}
    world.forgive()
    flows.segment(world.image, **world.request)
    assert set(world.calls()) == ALL - kept
    assert world.is_right()


def test_threads_as_workers_are_refused(world: World, flows: Flows) -> None:
    """Before anything is computed, and also when their client is the process's default."""
    with distributed.LocalCluster(
        n_workers=1, processes=False, protocol="tcp", dashboard_address=":0"
    ) as cluster:
        with pytest.raises(ClusterError, match=r"threads of this process: .*processes=True"):
            flows.segment(world.image, **world.request, cluster=cluster.scheduler_address)
        with distributed.Client(cluster), pytest.raises(ClusterError, match=r"client\.close\(\)"):
            flows.segment(world.image, **world.request, cluster="cpu")
    with (
        distributed.Client(processes=False, dashboard_address=":0"),
        pytest.raises(ClusterError, match=r"threads of it .*processes=True"),
    ):
        flows.segment(world.image, segmenter=Threshold(), cluster="auto")
    assert world.calls() == {}
    assert not world.finished()
    assert stores.listed(world.image) == []
