"""Tasks and flows of the tests of runner, window and retry: importable in worker processes."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.context import FlowRunContext
from prefect.events.worker import EventsWorker

from cytopave.blocks import Cluster
from cytopave.blocks.cluster import resolve_cluster
from cytopave.engine.errors import OutOfMemoryError
from cytopave.engine.planning.budget import Budget
from cytopave.engine.segmenters import Custom
from cytopave.engine.settings import Settings
from cytopave.tasks.probe import check_gpu, worker_budget
from cytopave.tasks.retry import retrying
from cytopave.tasks.runner import (
    ClusterTaskRunner,
    check_no_default_client,
    make_runner,
    neighbours,
    slots,
)
from cytopave.tasks.window import run_window

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from prefect.client.schemas import TaskRun


def api_servers() -> list[int]:
    """Process ids of the temporary API servers below this process."""
    below = psutil.Process().children(recursive=True)
    return [p.pid for p in below if "prefect.server.api.server:create_app" in p.cmdline()]


def task_runs(flow_run_id: UUID | None, expected: dict[str, int]) -> list[TaskRun]:
    """A flow run's tasks as the API knows them, once it has heard of so many in each state.

    They are recorded from events, a while after the run has ended; what never comes is not there.
    """
    assert flow_run_id is not None
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    deadline = time.monotonic() + 120
    with get_client(sync_client=True) as client:
        while True:
            found = client.read_task_runs(flow_run_filter=of_run)
            if Counter(expected) <= states_of(found) or time.monotonic() > deadline:
                return found
            time.sleep(0.1)


def states_of(runs: list[TaskRun]) -> Counter[str]:
    """How many are in each state."""
    return Counter(str(run.state_name) for run in runs)


def is_deaf_to_ctrl_c(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], base=16)
    return bool(blocked & 1 << (signal.SIGINT - 1))


@task
def where(_item: int) -> int:
    return os.getpid()


@task
def lost_heartbeat() -> str:
    """What a worker writes of a heartbeat that nobody answered."""
    logger, said = logging.getLogger("distributed.worker"), io.StringIO()
    handler = logging.StreamHandler(said)
    logger.addHandler(handler)
    try:
        raise OSError("the scheduler is gone")
    except OSError:
        logger.exception("Failed to communicate with scheduler during heartbeat.")
    finally:
        logger.removeHandler(handler)
    return said.getvalue()


@flow(task_runner=make_runner())
def heartbeat_flow(cluster: str = "auto", workers: int | None = None) -> str:
    return lost_heartbeat.submit().result()


@task
def act(item: str, *, folder: Path) -> str:
    """Do what the item says, and leave one mark an execution."""
    with (folder / item).open("a") as marks:
        marks.write(f"{os.getpid()}\n")
    if item.startswith("fail"):
        raise ValueError(f"{item} is bad")
    if item.startswith("kill"):
        EventsWorker.drain_all()  # what this process has to tell of tasks before dies with it else
        wait_for_own_results(item, folder)  # as does a result that was not fetched yet
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return item.upper()


def wait_for_own_results(item: str, folder: Path) -> None:
    """Until the flow has received all that this process made before."""
    marks = {mark.name: mark.read_text().split() for mark in folder.iterdir() if mark.is_file()}
    own = {name for name, pids in marks.items() if str(os.getpid()) in pids} - {item}
    while not all((folder / "received" / name).exists() for name in own):
        time.sleep(0.01)


@task
def exhaust(item: str, *, folder: Path) -> int:
    """Fail as the item says in the first two attempts; return the number of attempts."""
    with (folder / item).open("a") as marks:
        marks.write(f"{time.time()}\n")
    attempts = len((folder / item).read_text().splitlines())
    if attempts < 3:
        raise OutOfMemoryError("full") if item == "oom" else MemoryError("the host is full")
    return attempts


@flow(task_runner=make_runner())
def where_flow(
    n: int = 4, cluster: Cluster | str = "auto", workers: int | None = None
) -> dict[str, Any]:
    check_no_default_client(cluster)
    pids = [future.result() for future in where.map(range(n))]
    servers = api_servers()
    return {
        "pids": pids,
        "slots": slots(),
        "neighbours": neighbours(),
        "servers": servers,
        "deaf_to_ctrl_c": all(is_deaf_to_ctrl_c(pid) for pid in {*pids, *servers}),
    }


@flow(task_runner=make_runner())
def unchecked_flow(cluster: str = "auto", workers: int | None = None) -> list[int]:
    return [future.result() for future in where.map(range(2))]


class Ended(NamedTuple):
    outcomes: dict[str, tuple[str | None, str | None]]
    most_at_once: int
    most_kept: int


@flow(task_runner=make_runner(), validate_parameters=False)
def window_flow(
    items: list[str],
    folder: Path,
    *,
    window: int,
    cluster: str = "cpu",
    workers: int = 2,
    stop_after: int | None = None,
) -> Ended:
    (folder / "received").mkdir()
    taken = 0
    most_at_once = most_kept = 0
    outcomes: dict[str, tuple[str | None, str | None]] = {}

    def feed() -> Iterator[str]:
        nonlocal taken, most_at_once
        for item in items:
            taken += 1
            most_at_once = max(most_at_once, taken - len(outcomes))
            yield item

    for item, result, error in run_window(lambda _: act, feed(), window=window, folder=folder):
        outcomes[item] = (result, describe(error))
        (folder / "received" / item).touch()
        most_kept = max(most_kept, kept_futures())
        if len(outcomes) == stop_after:
            break
    return Ended(outcomes, most_at_once, most_kept)


def describe(error: Exception | None) -> str | None:
    return None if error is None else f"{type(error).__name__}: {error}"


def kept_futures() -> int:
    """Number of results that the cluster keeps for this flow."""
    context = FlowRunContext.get()
    assert context is not None
    runner = context.task_runner
    assert isinstance(runner, ClusterTaskRunner)
    runner.client.sync(asyncio.sleep, 0)  # the client lets go in its own thread, in order
    return len(runner.client.futures)


@flow(task_runner=make_runner())
def retry_flow(
    folder: Path, cluster: str = "cpu", workers: int = 2
) -> dict[str, tuple[int | None, str | None]]:
    patient = retrying(exhaust, Settings(retries=3, backoff_seconds=0.2))
    outcomes = run_window(lambda _: patient, ["oom", "host"], window=2, folder=folder)
    return {item: (result, describe(error)) for item, result, error in outcomes}


class Sees(Custom):
    """A method that finds a GPU on workers whose environment says so, and nowhere else."""

    @property
    def uses_gpu(self) -> bool:
        return "SEES_A_GPU" in os.environ

    @property
    def wants_gpu(self) -> bool:
        return True

    @property
    def needs_gpu(self) -> bool:
        return False


@flow(task_runner=make_runner(), validate_parameters=False)
def budget_flow(
    segmenter: Any, cluster: Any, workers: int | None = None, assumed_gb: float | None = None
) -> Budget:
    spec = resolve_cluster(cluster)
    check_gpu(segmenter, spec)
    return worker_budget(segmenter, spec, assumed_gb=assumed_gb)[0]
