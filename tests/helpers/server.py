"""A Prefect server with a work pool and a worker, started as an operator starts them."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterId,
    LogFilter,
    LogFilterFlowRunId,
)
from prefect.settings import PREFECT_API_URL, temporary_settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas import FlowRun, TaskRun
    from prefect.client.schemas.objects import Log

HELPERS = Path(__file__).resolve().parent
ROOT = HELPERS.parents[1]
POOL = "cytopave"


class Shown(NamedTuple):
    """An artifact."""

    type: str
    data: Any
    description: str


class Server:
    """Its address, its commands, and what its API tells."""

    def __init__(self, home: Path, images: Path, **environ: str) -> None:
        self.home = home
        self.images = images
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
        self.environ = {
            **kept,
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": self.url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_CLI_PROMPT": "false",
            "IMAGES_FOLDER": str(images),
            # Worker processes import the tests' functions.
            "PYTHONPATH": os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")]),
            **environ,
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """Processes that were started: the server, then the worker."""
        return [process.pid for process in self._processes]

    def start_api(self) -> None:
        """The server alone."""
        self._start("server", "start", "--host", "127.0.0.1", "--port", str(self.port))
        wait_until(self._answers, 300, self.log)

    def start(self) -> None:
        """Server, work pool, deployments, worker."""
        self.start_api()
        # The worker makes the pool, and gets ready while the deployments are registered.
        self._start("worker", "start", "--pool", POOL, "--type", "process", "--name", "tests")
        wait_until(self._has_pool, 300, self.log)
        self.prefect("--no-prompt", "deploy", "--all", cwd=ROOT)

    def stop(self) -> None:
        """End both with all that they started."""
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def prefect(self, *tokens: str, cwd: Path | None = None, status: int = 0) -> str:
        """Run a command of Prefect's; returns what it printed."""
        done = subprocess.run(
            [_PREFECT, *tokens],
            cwd=cwd or self.home,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stdout + self.log()
        return done.stdout

    def log(self) -> str:
        """What server and worker said last."""
        return "\n".join(p.read_text()[-8000:] for p in sorted(self.home.glob("*.log")))

    @contextmanager
    def client(self) -> Iterator[SyncPrefectClient]:
        """A client of the API."""
        with (
            temporary_settings({PREFECT_API_URL: self.url}),
            get_client(sync_client=True) as client,
        ):
            yield client

    def runs(self, flow: str) -> list[FlowRun]:
        """All runs of a flow, the first one first."""
        with self.client() as client:
            found = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])))
        return sorted(found, key=lambda run: str(run.created))

    def run(self, flow_run_id: UUID) -> FlowRun:
        """A run as it is now."""
        with self.client() as client:
            return client.read_flow_run(flow_run_id)

    def ended(self, flow_run_id: UUID, state: str, *, within: float = 300) -> FlowRun:
        """A run, once it has ended in a state."""
        wait_until(lambda: self.run(flow_run_id).state_name == state, within, self.log)
        return self.run(flow_run_id)

    def task_runs(self, flow_run_id: UUID) -> list[TaskRun]:
        """Task runs of a flow run."""
        with self.client() as client:
            return client.read_task_runs(
                flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
            )

    def artifacts(self, flow_run_id: UUID) -> dict[str, list[Shown]]:
        """Artifacts of a run by key, the first one first."""
        by_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
        with self.client() as client:
            found = client.read_artifacts(artifact_filter=by_run)
        keyed: dict[str, list[Shown]] = {}
        for artifact in sorted(found, key=lambda a: str(a.created)):
            shown = Shown(str(artifact.type), artifact.data, artifact.description or "")
            keyed.setdefault(str(artifact.key), []).append(shown)
        return keyed

    def logs(self, flow_run_id: UUID) -> list[Log]:
        """Messages of a run, of its tasks as well."""
        by_run = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run_id]))
        found: list[Log] = []
        with self.client() as client:
            while page := client.read_logs(by_run, limit=200, offset=len(found)):
                found += page
        return found

    def _start(self, *tokens: str) -> None:
        with (self.home / f"{tokens[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [_PREFECT, *tokens],
                cwd=self.home,
                env=self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes.append(process)

    def _has_pool(self) -> bool:
        with self.client() as client:
            return POOL in {pool.name for pool in client.read_work_pools()}

    def _answers(self) -> bool:
        assert self._processes[0].poll() is None, self.log()
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def free_port() -> int:
    """A port that nobody listens on, and that no connection gets before the server starts.

    Those that the kernel chooses itself may be another process's seconds later.
    """
    chosen, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.randrange(int(chosen) // 2, int(chosen))
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port


_PREFECT = str(Path(sys.executable).parent / "prefect")


def wait_until(
    condition: Callable[[], Any], within: float, log: Callable[[], str] = lambda: ""
) -> None:
    """Wait for something to become true.

    Raises:
        AssertionError: It did not in time.
    """
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, log()
        time.sleep(0.2)
