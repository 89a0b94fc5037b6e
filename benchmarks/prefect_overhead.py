"""What Prefect and Dask cost: for a run, for a batch of tiles, in memory over many batches.

    PYTHONPATH=tests/helpers python benchmarks/prefect_overhead.py --folder FOLDER [--batches 2000]

`segment_image` runs as it does for users, on a Prefect server with SQLite and two worker processes,
with one tile of 32 x 32 pixels a batch and a threshold: next to no work, so that the stage's time
is overhead. The same tiles by the engine's own functions, in one process, say how much work there
was. Memory is sampled while the run goes on. Several runs at once show what the machine takes. Then
the server is told of task runs as fast as they can be told, by the events that Prefect's own tasks
send: how many a second it records, and whether SQLite ever gave up. 500 batches, the default, take
under 5 minutes on two cores, 2,000 some 12.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import psutil
import stores
from prefect.client.schemas import State, TaskRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Pending, Running
from prefect.utilities.engine import emit_task_run_state_change_event
from runs import plan_of
from server import Server, wait_until
from tables import machine, print_table

from cytopave.engine.segment import segment_tiles
from cytopave.engine.segmenters import Threshold
from cytopave.engine.settings import Settings
from cytopave.engine.tiling import Tiling

TILE, HALO, WORKERS = 32, 4, 2
PARTS = ("flow", "both workers", "server")
METHOD, TILING = Threshold(threshold=100), Tiling(tile=(TILE, TILE), halo=HALO)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for images and the database")
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--together", type=int, default=3, help="runs at once")
    parser.add_argument("--database", default="", help="SQLAlchemy URL; SQLite where not given")
    args = parser.parse_args()
    (args.folder / "home").mkdir(parents=True, exist_ok=True)
    print(machine())
    environ = {"CYTOPAVE_BATCH_SECONDS": "0.000001"}
    if args.database:
        environ["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = args.database
    server = Server(args.folder / "home", args.folder, **environ)
    try:
        server.start_api()
        measure(server, args)
    finally:
        server.stop()
    locked = (args.folder / "home" / "server.log").read_text().count("database is locked")
    print(f"\nThe server said 'database is locked' {locked} times.")


def measure(server: Server, args: argparse.Namespace) -> None:
    few, many = 4, args.batches
    flow(server, image(args.folder, few, "warm"), name="warm")
    small = flow(server, image(args.folder, few, "few"), name="few")
    large = flow(server, image(args.folder, many, "many"), name="many")
    work = alone(image(args.folder, many, "alone"), "alone")
    batches = large.stages["segment"]["tasks"]
    overhead = (large.stages["segment"]["seconds"] - work / WORKERS) / batches
    print_table(
        "One run, trivial tiles",
        [
            {
                "run": f"{r.stages['segment']['tasks']} batches",
                "wall s": round(r.wall, 1),
                **{n: round(s["seconds"], 1) for n, s in r.stages.items()},
                "CPU s, flow / workers / server": " / ".join(f"{c:.0f}" for c in r.cpu),
            }
            for r in (small, large)
        ],
    )
    print(
        f"\nA run costs {small.wall:.0f} s and {sum(small.cpu):.0f} CPU s, whatever it computes: "
        "imports, workers, plan, publication."
    )
    settings = Settings()
    share = 100 * overhead * WORKERS / settings.batch_seconds
    print(
        f"\nA batch costs {1000 * overhead:.0f} ms of the run's time on {WORKERS} workers, that is "
        f"{1000 * overhead * WORKERS:.0f} ms of a worker's: {share:.1f} % of the "
        f"{settings.batch_seconds:g} s that a batch is planned to take. "
        f"({1000 * work / batches:.1f} ms of its time are work.) "
        f"{batches / large.stages['segment']['seconds']:.1f} task runs a second."
    )
    print_table("Resident memory, MB, as batches finish", large.memory(many))
    together(server, args)
    recorded(server, max(1000, many // 2))


class Run(NamedTuple):
    """How a run went."""

    wall: float
    stages: dict[str, dict[str, Any]]
    cpu: tuple[float, float, float]
    samples: list[tuple[int, float, float, float]]

    def memory(self, batches: int) -> list[dict[str, object]]:
        """What the processes held as batches finished, and the growth a 1,000 batches."""
        found = np.array(self.samples)
        found = found[(found[:, 0] > 0.05 * batches) & (found[:, 0] < 0.98 * batches)]
        marks = [n for n in (50, 100, 250, 500, 1000, 1500, 2000) if n < batches]
        rows: list[dict[str, object]] = []
        for mark in (*marks, batches):
            done, *sizes = found[np.abs(found[:, 0] - mark).argmin()]
            rows.append({"batches": int(done), **_named(sizes)})
        # The lower half of the run warms up: imports, pools, caches.
        late = found[found[:, 0] >= batches / 2]
        slopes = 1000 * np.polyfit(late[:, 0], late[:, 1:], 1)[0]
        rows.append({"batches": "more a 1,000, over the second half", **_named(slopes)})
        return rows


def _named(sizes: Any) -> dict[str, object]:
    return {n: round(float(v)) for n, v in zip(PARTS, sizes, strict=True)}


def flow(server: Server, path: Path, *, name: str) -> Run:
    """One run in a process of its own, watched from outside."""
    start = time.monotonic()
    process = run_flow(server, path, name)
    watched = Watch(process.pid, server.pids[0], path.parent / ".cytopave")
    out, _ = process.communicate()
    watched.end()
    assert process.returncode == 0, out
    made = json.loads(out.splitlines()[-1])
    stages = {s["name"]: s for s in made["stages"]}
    return Run(time.monotonic() - start, stages, watched.cpu, watched.samples)


def run_flow(server: Server, path: Path, name: str) -> subprocess.Popen[str]:
    parameters = {
        "image": str(path),
        "name": name,
        "segmenter": METHOD.model_dump(),
        "tiling": TILING.model_dump(),
        "cluster": "cpu",
        "workers": WORKERS,
        "keep_scratch": True,
    }
    code = (
        "import json, sys\n"
        "from cytopave.flows import segment_image\n"
        "if __name__ == '__main__':\n"
        "    print(segment_image(**json.loads(sys.argv[1])).model_dump_json())\n"
    )
    script = path.parent / "run.py"
    script.write_text(code)
    return subprocess.Popen(
        [sys.executable, str(script), json.dumps(parameters)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=server.environ,
    )


class Watch(threading.Thread):
    """Samples the memory of the flow's process, its workers, and the server."""

    def __init__(self, flow_pid: int, server_pid: int, scratch: Path) -> None:
        super().__init__(daemon=True)
        self._flow, self._server = psutil.Process(flow_pid), psutil.Process(server_pid)
        self._scratch = scratch
        self._done = threading.Event()
        self._cpu_before = tree_cpu(self._server)
        self.samples: list[tuple[int, float, float, float]] = []
        self._used: dict[int, float] = {}
        self.cpu = (0.0, 0.0, 0.0)
        self.start()

    def run(self) -> None:
        """Sample until it ends."""
        while not self._done.wait(1.0):
            try:
                self._sample()
            except psutil.Error:
                return  # it has ended

    def _sample(self) -> None:
        finished = sum(1 for _ in self._scratch.glob("*/tiles/*/*.zip"))
        below = self._flow.children(recursive=True)
        own, workers, server = (
            sum(p.memory_info().rss for p in processes) / 1e6
            for processes in ([self._flow], below, tree(self._server))
        )
        self.samples.append((finished, own, workers, server))
        self._used |= {p.pid: cpu(p) for p in below}  # also of those that end meanwhile
        self.cpu = (
            cpu(self._flow),
            sum(self._used.values()),
            tree_cpu(self._server) - self._cpu_before,
        )

    def end(self) -> None:
        """Stop sampling."""
        self._done.set()
        self.join()


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def tree_cpu(process: psutil.Process) -> float:
    return sum(cpu(p) for p in tree(process))


def together(server: Server, args: argparse.Namespace) -> None:
    """Several runs at once on one server."""
    n = max(100, args.batches // 10)
    paths = [image(args.folder, n, f"together-{i}") for i in range(args.together)]
    processes = [run_flow(server, path, "together") for path in paths]
    outputs = [process.communicate()[0] for process in processes]
    assert all(process.returncode == 0 for process in processes)
    stages = [json.loads(out.splitlines()[-1])["stages"] for out in outputs]
    segment = [next(s for s in run if s["name"] == "segment") for run in stages]
    rate = sum(s["tasks"] / s["seconds"] for s in segment)
    print(
        f"\n{args.together} runs at once, {segment[0]['tasks']} batches each: {rate:.1f} task runs "
        "a second in all."
    )


def recorded(server: Server, n: int) -> None:
    """Tell the server of task runs faster than it records them."""
    said = {"name": {"like_": "limit-"}, "state": {"type": {"any_": ["COMPLETED"]}}}
    before, start = tree_cpu(psutil.Process(server.pids[0])), time.monotonic()
    with temporary_settings({PREFECT_API_URL: server.url}), server.client() as client:
        for i in range(n):
            tell(f"limit-{i}")
        told = time.monotonic() - start

        def count() -> int:
            return int(client.request("POST", "/task_runs/count", json={"task_runs": said}).json())

        wait_until(lambda: count() == n, 600, server.log)
    seconds = time.monotonic() - start
    used = tree_cpu(psutil.Process(server.pids[0])) - before
    print(
        f"\nThe server, told of {n} task runs (three states each) within {told:.0f} s, had "
        f"recorded them after {seconds:.0f} s: {n / seconds:.0f} a second, "
        f"{1000 * used / n:.0f} ms of CPU each."
    )


def tell(name: str) -> None:
    """Send the events of a task run that is done."""
    task_run = TaskRun(id=uuid4(), name=name, task_key="limit", dynamic_key=name)
    before, event = None, None
    states: list[State[Any]] = [Pending(), Running(), Completed()]
    for state in states:
        task_run = task_run.model_copy(update={"state": state, "state_id": state.id})
        event = emit_task_run_state_change_event(task_run, before, state, follows=event)
        before = state


def image(folder: Path, batches: int, name: str) -> Path:
    """An image of about so many tiles."""
    rows = round(batches**0.5)
    pixels = np.zeros((rows * TILE, -(-batches // rows) * TILE), np.uint8)
    pixels[5::TILE, 5::TILE] = 200
    path = folder / name
    path.mkdir(exist_ok=True)
    return stores.ome_image(path / "image.zarr", pixels, chunks=(16 * TILE, 16 * TILE))


def alone(path: Path, name: str) -> float:
    """Seconds of the same tiles by the engine, in this process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    plan = plan_of(path, segmenter=METHOD, tiling=TILING, name=name, batch_seconds=1e-6)
    start = time.perf_counter()
    for batch in plan.batches:
        segment_tiles(plan, batch)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
