"""The one factory of task runners: every flow's tasks run where its own parameters say.

The runner is a Dask runner that builds its cluster when the first task is submitted, from the
parameters ``cluster`` and ``workers`` of the flow run. A flow is decorated once and runs the same
from a script, the command line and a deployment.
"""

from __future__ import annotations

import logging
import signal
from collections import Counter
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, cast

import distributed
from distributed.comm.addressing import get_address_host, resolve_address
from prefect.context import FlowRunContext, SettingsContext, get_settings_context
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_SERVER_ANALYTICS_ENABLED,
    temporary_settings,
)
from prefect_dask.task_runners import DaskTaskRunner

from cytopave.blocks.cluster import Cluster, resolve_cluster
from cytopave.blocks.cluster_checks import GIL_REASON
from cytopave.engine.errors import ClusterError
from cytopave.engine.gpu.vram import count_gpus
from cytopave.tasks.dask_settings import dask_prepared
from cytopave.tasks.guard import end_with_us
from cytopave.tasks.reachable import check_api, check_home
from cytopave.tasks.workers import check_workers, connect, look_at_memory, wait_for_workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prefect.futures import PrefectFuture
    from prefect.task_runners import TaskRunner
    from prefect_dask.client import PrefectDaskClient

    from cytopave.blocks.cluster import Library
    from cytopave.engine.planning.budget import Room

_SECONDS_TO_CLOSE = 60

_log = logging.getLogger(__name__)


def make_runner(
    cluster: Cluster | str = "auto", workers: int | None = None, *, library: Library = "torch"
) -> TaskRunner[PrefectFuture[Any]]:
    """A task runner for ``@flow(task_runner=...)``.

    Args:
        cluster: Used where the flow run has no parameter ``cluster``.
        workers: Used where the flow run has no parameter ``workers``.
        library: What computes on GPUs, and gets their memory: ``torch`` for segmentation, which
            has no RMM pool, ``cupy`` for work on arrays.
    """
    runner = ClusterTaskRunner(cluster, workers, library=library)
    return cast("TaskRunner[PrefectFuture[Any]]", runner)


class ClusterTaskRunner(DaskTaskRunner):
    """Runs tasks on the cluster that the flow run's parameters name.

    Prefect's own Dask runner takes over any default client that it finds in the process, whatever
    cluster it was given; this one refuses (``check_no_default_client``).
    """

    def __init__(
        self,
        cluster: Cluster | str = "auto",
        workers: int | None = None,
        *,
        library: Library = "torch",
    ) -> None:
        super().__init__()
        self.cluster = cluster
        self.workers = workers
        self.library: Library = library
        self._sent: SettingsContext | None = None

    def duplicate(self) -> ClusterTaskRunner:
        """A runner of the same settings that has not started: Prefect uses one a flow run."""
        return type(self)(self.cluster, self.workers, library=self.library)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterTaskRunner) and self._recipe == other._recipe

    @property
    def _recipe(self) -> tuple[Any, ...]:
        return self.cluster, self.workers, self.library

    __hash__ = None  # type: ignore[assignment]

    @property
    def client(self) -> PrefectDaskClient:
        """The connection to the cluster, which starts on first use.

        Raises:
            ClusterError: No cluster, or none whose workers can serve.
        """
        if self._client is None:
            self._client = self._connect()
        return self._client

    @property
    def slots(self) -> int:
        """Number of tasks that the cluster works on at once: its workers' threads."""
        return sum(self.client.nthreads().values())

    @property
    def neighbours(self) -> int:
        """The most tasks that one host works on at once."""
        hosts: Counter[str] = Counter()
        for address, threads in self.client.nthreads().items():
            hosts[get_address_host(address)] += threads
        return max(hosts.values())

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Submit a task, with the address of the API that serves this flow run."""
        self.client  # noqa: B018  starts the cluster, outside the settings meant for workers
        sent = self._sent or _settings_for_workers()
        self._sent = sent  # made once: it takes Prefect a tenth of a second
        with SettingsContext(profile=sent.profile, settings=sent.settings):
            return super().submit(*args, **kwargs)

    def rooms(self) -> list[Room]:
        """What host memory each worker has.

        Raises:
            ClusterError: There is no worker any more.
        """
        threads = self.client.nthreads()
        found = self.client.run(look_at_memory, on_error="ignore")  # one may just have died
        if not found:
            raise ClusterError("all workers of the cluster are gone: start it anew")
        return [room._replace(threads=threads.get(w, 1)) for w, room in sorted(found.items())]

    def _connect(self) -> PrefectDaskClient:
        cluster, gpu = self._asked_for()
        check_no_default_client(cluster)
        _refuse_import_of_main()
        enter = self._exit_stack.enter_context
        if cluster.address is None:
            enter(dask_prepared())
            with _shielded():
                started = cluster.start(gpu=gpu, library=self.library)
            enter(_closing(started))
            address = started.scheduler_address
        else:
            address = cluster.address
        client: PrefectDaskClient = enter(connect(address))
        wait_for_workers(client, cluster)
        check_workers(client, None if PREFECT_API_URL.value() else embedded_api())
        return client

    def _asked_for(self) -> tuple[Cluster, bool]:
        """The cluster that the flow run's parameters name, and whether it may use GPUs here."""
        context = FlowRunContext.get()
        parameters = (context.parameters if context else None) or {}
        cluster = resolve_cluster(parameters.get("cluster") or self.cluster)
        if (workers := parameters.get("workers") or self.workers) is not None:
            cluster = cluster.model_copy(update={"workers": workers})
        gpu = not cluster.elsewhere and count_gpus(cluster.gpus) > 0
        if gpu and cluster.preset == "auto":
            # Work that needs no GPU gets a worker a core instead of a worker a card.
            gpu = getattr(parameters.get("segmenter"), "uses_gpu", True)
            gpu &= parameters.get("provider") != "scanpy"
        return cluster, gpu


def slots() -> int:
    """Number of tasks that the running flow's cluster works on at once; starts it if need be.

    Raises:
        ClusterError: The cluster cannot serve.
    """
    return _running().slots


def neighbours() -> int:
    """The most tasks that one host of the running flow's cluster works on at once.

    Raises:
        ClusterError: The cluster cannot serve.
    """
    return _running().neighbours


def worker_addresses() -> list[str]:
    """Addresses of the running flow's workers; starts its cluster if need be.

    Raises:
        ClusterError: The cluster cannot serve.
    """
    return sorted(_running().client.nthreads())


def worker_rooms() -> list[Room]:
    """What host memory each worker of the running flow has; starts its cluster if need be.

    Raises:
        ClusterError: The cluster cannot serve.
    """
    return _running().rooms()


def worker_hosts() -> list[str]:
    """Names of the hosts of the running flow's workers; starts its cluster if need be.

    Raises:
        ClusterError: The cluster cannot serve.
    """
    return sorted({room.host for room in worker_rooms()})


def datasets() -> list[str]:
    """Names of the collections that the running flow's workers keep."""
    return [str(name) for name in _running().client.list_datasets()]


def forget_datasets(names: Iterable[str]) -> None:
    """Have the running flow's workers let collections go; those that are not there are gone."""
    client = _running().client
    with suppress(OSError):  # the scheduler is gone, and they with it
        for name in set(names) & set(client.list_datasets()):
            client.unpublish_dataset(name)


def _running() -> ClusterTaskRunner:
    context = FlowRunContext.get()
    runner = context.task_runner if context else None
    if not isinstance(runner, ClusterTaskRunner):
        raise ClusterError(
            "this needs a flow that runs on make_runner(): decorate it with "
            "@flow(task_runner=make_runner())"
        )
    return runner


def check_no_default_client(cluster: Cluster | str) -> None:
    """Refuse to run beside somebody else's default Dask client in this process.

    Such a client makes its owner believe that tasks run on its cluster. Either they do, because
    the address is asked for, or the client goes first.

    Raises:
        ClusterError: There is a default client of another cluster than the one asked for.
    """
    try:
        client = distributed.default_client()
    except ValueError:
        return
    address = client.scheduler.address if client.scheduler else str(client._start_arg)
    wanted = resolve_cluster(cluster).address
    if wanted is not None and _resolved(wanted) == _resolved(address):
        return
    if address.startswith("inproc://"):
        raise ClusterError(
            f"this process has a Dask client whose workers are threads of it ({address}): "
            f"{GIL_REASON}. Close it (client.close()) and let cytopave start worker processes, or "
            "start it with processes=True and pass its scheduler's tcp:// address as cluster"
        )
    raise ClusterError(
        f"this process has a default Dask client of {address}, but the cluster asked for is "
        f"{wanted or 'another one'}: close the client (client.close()) first, or pass "
        f"cluster={address!r} to run there"
    )


def embedded_api(*, timeout_seconds: int = 120) -> str:
    """Start the temporary API of this process, if no PREFECT_API_URL is set.

    A flow starts it by itself; starting it before allows for a slow machine (Prefect waits 20 s)
    and it serves all flow runs of the process. It ends with the process, also when that is killed.

    Args:
        timeout_seconds: Longest wait.

    Returns:
        The URL of the API that flows of this process use.

    Raises:
        UserError: The API that is set does not answer, or a temporary one cannot be had.
    """
    if url := PREFECT_API_URL.value():
        check_api(url)
        return str(url)
    check_home()
    from prefect.server.api.server import SubprocessASGIServer

    server = SubprocessASGIServer()
    # Its telemetry would report a deployment that is none, and can lock a fresh database.
    with temporary_settings({PREFECT_SERVER_ANALYTICS_ENABLED: False}), _shielded():
        server.start(timeout=timeout_seconds)
    if server.server_process is not None:
        end_with_us(server.server_process.pid)
    return server.api_url


def _settings_for_workers() -> SettingsContext:
    """Settings as the workers shall see them: with the address of the flow's own API.

    Prefect sends the settings of the moment along with each task. Without an address in them each
    worker process starts a temporary server of its own, and its task runs land there.
    """
    if PREFECT_API_URL.value():
        return get_settings_context()
    with temporary_settings({PREFECT_API_URL: embedded_api()}):
        return get_settings_context()


@contextmanager
def _closing(cluster: Any) -> Iterator[None]:
    """Close a cluster at the end; a run that is done does not fail of a worker slow to end."""
    try:
        yield
    finally:
        try:
            # Without a limit, Dask was once seen to wait for ever.
            cluster.close(timeout=_SECONDS_TO_CLOSE)
        except TimeoutError:
            _log.warning("The cluster's workers did not end in time and were killed")


@contextmanager
def _shielded() -> Iterator[None]:
    """Start processes that Ctrl-C does not reach.

    A terminal sends it to all processes at once. Only this one shall act on it: it closes its
    cluster and tells the API how the run ended, which takes both being alive. (A blocked signal
    stays blocked in what is started meanwhile; here it is only delayed.)
    """
    resource_tracker.ensure_running()  # which it would do later, unblocking the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _resolved(address: str) -> str:
    with suppress(OSError, ValueError):
        return str(resolve_address(address))
    return address


def _refuse_import_of_main() -> None:
    """Refuse to start workers from a script that a worker is importing just now."""
    import multiprocessing

    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ClusterError(
            'call the flow under `if __name__ == "__main__":`: worker processes import the '
            "script that started them, and would start it anew"
        )
