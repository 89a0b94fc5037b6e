"""Runs on workers that cytopave did not start itself, from the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import distributed
import numpy as np
import pytest
import stores
import tile_functions
from runs import blobs, components, labels_of
from slurm import Slurm

from cytopave.blocks import CellposeModel, Cluster, ImageStore
from cytopave.engine.tiling import Grid

if TYPE_CHECKING:
    from collections.abc import Iterator

BIN = Path(sys.executable).parent
SHAPE, N_TILES = (256, 256), 16


class World:
    """An image, and a function that leaves a line a tile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.image = folder / "image.zarr"
        self.calls = folder / "calls-of-tiles"
        self.calls.mkdir()
        mask = np.asarray(blobs(SHAPE))
        self.pixels = mask.astype(np.uint8)
        stores.ome_image(self.image, self.pixels, chunks=(64, 64))
        self.truth = components(mask)

    def command(self, *tokens: str, seconds: float = 0.0) -> list[str]:
        function = f"kwargs.folder={self.calls}"
        return [
            *(str(BIN / "cytopave"), "segment", str(self.image), "--tile", "64", "--halo", "16"),
            *("--function", "tile_functions:recorded", "--set", function),
            *("--set", f"kwargs.seconds={seconds}", *tokens),
        ]

    def kept(self) -> set[str]:
        """The tiles that are in the scratch folder, by their names in the record of calls."""
        windows = [tile.window.slices for tile in Grid(SHAPE, (64, 64), (16, 16))]
        files = self.folder.glob(".cytopave/*/tiles/*/*.zip")
        return {tile_functions.key_of(self.pixels[windows[int(p.stem)]]) for p in files}

    def is_right(self) -> bool:
        return bool(np.array_equal(labels_of(self.image), self.truth))


@pytest.fixture
def world(folder: Path) -> World:
    return World(folder)


@pytest.fixture
def environ(prefect_api: str) -> dict[str, str]:
    return {**os.environ, "PREFECT_API_URL": prefect_api}


@contextmanager
def started(*command: str | Path, environ: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A program in a group of its own, which is ended at the end."""
    with subprocess.Popen(
        [str(part) for part in command],
        env=environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def address_of(scheduler: subprocess.Popen[str]) -> str:
    """Where a scheduler that was started by hand says that it listens."""
    assert scheduler.stderr is not None
    for line in scheduler.stderr:
        if "Scheduler at:" in line:
            # Nobody reads on, and a full pipe would stop it.
            threading.Thread(target=scheduler.stderr.read, daemon=True).start()
            return line.split()[-1]
    raise AssertionError("the scheduler ended")


def test_a_scheduler_and_workers_that_were_started_by_hand(
    world: World, environ: dict[str, str]
) -> None:
    """One worker is killed in the middle, with all it had; the other completes the run."""
    with ExitStack() as stack:
        options = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", ":0")
        scheduler = stack.enter_context(
            started(BIN / "dask", "scheduler", *options, environ=environ)
        )
        address = address_of(scheduler)
        workers = []
        for _ in range(2):
            one = ("--nthreads", "1", "--no-dashboard", "--local-directory", world.folder)
            worker = started(BIN / "dask", "worker", address, *one, environ=environ)
            workers.append(stack.enter_context(worker))
            assert workers[-1].stderr is not None
            threading.Thread(target=workers[-1].stderr.read, daemon=True).start()
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=300)
        run = stack.enter_context(
            started(*world.command("--cluster", address, seconds=0.5), environ=environ)
        )
        while len(world.kept()) < 3:
            assert run.poll() is None, run.communicate()[1]
            time.sleep(0.02)
        os.killpg(workers[0].pid, signal.SIGKILL)
        workers[0].wait()
        kept, begun = world.kept(), set(tile_functions.calls(world.calls))
        errors = run.communicate(timeout=300)[1]
        assert run.returncode == 0, errors
        calls = tile_functions.calls(world.calls)
        assert len(calls) == N_TILES
        # Only what the killed worker was at, and had not finished, was done again.
        again = {key for key, n in calls.items() if n > 1}
        assert again <= begun - kept
        assert world.is_right()
        assert all(process.poll() is None for process in (scheduler, workers[1]))


def test_workers_that_are_jobs_of_slurm(
    world: World,
    environ: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the name of a saved block; the jobs are there for the run, and are cancelled after it."""
    pytest.importorskip(
        "dask_jobqueue", reason="needs cytopave[slurm]; requirements/dev.txt has it"
    )
    slurm = Slurm(tmp_path / "slurm", monkeypatch, takes=True)
    Cluster(workers=2, slurm={"memory": "1GiB"}).save("slurm-of-tests")
    run = subprocess.run(
        world.command("--cluster", "slurm-of-tests"),
        env={**environ, **{name: os.environ[name] for name in ("PATH", "SLURM_AT")}},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert world.is_right()
    assert len(slurm.jobs()) == len(slurm.cancelled()) == 2


def test_everything_by_name(
    world: World, environ: dict[str, str], dask_address: str, tmp_path: Path
) -> None:
    """Image, output, model and cluster from saved blocks: no address, file or secret is given."""
    ImageStore(url=str(world.folder)).save("images-of-tests")
    remote = {"auto_mkdir": True}  # as object stores do
    ImageStore(url=f"local://{tmp_path}", storage_options=remote).save("labels-of-tests")
    CellposeModel(model="nuclei-tiny", diameter=12).save("model-of-tests")
    Cluster(address=dask_address).save("cluster-of-tests")
    command: list[Any] = [
        *(BIN / "cytopave", "segment", "store://images-of-tests/image.zarr"),
        *("--output", "store://labels-of-tests/out.zarr", "--scratch", tmp_path / "scratch"),
        *("--model", "model://model-of-tests", "--cluster", "cluster-of-tests", "--name", "n"),
    ]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "store://labels-of-tests/out.zarr/labels/n" in run.stdout
    report: list[Any] = [
        BIN / "cytopave",
        "report",
        "store://labels-of-tests/out.zarr",
        "--name",
        "n",
    ]
    shown = subprocess.run(
        [*report, "--out", tmp_path / "report", "--json"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    assert '"diameter": 12.0' in shown.stdout
    assert '"model": "nuclei-tiny"' in shown.stdout
    assert labels_of(tmp_path / "out.zarr", "n").shape == SHAPE
