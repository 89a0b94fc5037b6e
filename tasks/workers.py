"""The workers of a cluster: waited for, looked at, and refused where they cannot serve."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import psutil
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect_dask.client import PrefectDaskClient

from cytopave.blocks.cluster_checks import GIL_REASON
from cytopave.engine.errors import ClusterError
from cytopave.engine.planning.budget import Room
from cytopave.engine.settings import load_settings

if TYPE_CHECKING:
    import distributed

    from cytopave.blocks.cluster import Cluster

_log = logging.getLogger(__name__)

_SECONDS_TO_ANSWER = 30
"""A scheduler that runs answers in less, however busy it is; workers may be waited for longer."""


def connect(address: str) -> PrefectDaskClient:
    """A connection to a scheduler.

    Raises:
        ClusterError: None answers there.
    """
    timeout = min(load_settings().worker_timeout_seconds, _SECONDS_TO_ANSWER)
    try:
        return PrefectDaskClient(address, set_as_default=False, timeout=timeout)
    except OSError as error:  # covers distributed's timeouts and refused connections
        raise ClusterError(
            f"no Dask scheduler answers at {address} within {timeout:g} s: start one there, or "
            "let cytopave start workers with cluster='auto'"
        ) from error


def wait_for_workers(client: PrefectDaskClient, cluster: Cluster) -> None:
    """Wait for as many workers as a cluster has; fewer will do, none will not.

    Raises:
        ClusterError: None came in time.
    """
    wanted = cluster.workers or 1
    timeout = cluster.wait_seconds or load_settings().worker_timeout_seconds
    with suppress(TimeoutError):
        client.wait_for_workers(wanted, timeout=timeout)
    present = len(client.nthreads())
    if not present:
        raise ClusterError(
            f"the scheduler at {client.scheduler.address} had no worker after {timeout:g} s: "
            + _why_none(cluster)
        )
    if present < wanted:
        _log.warning("Only %d of %d workers came within %g s", present, wanted, timeout)


def _why_none(cluster: Cluster) -> str:
    longer = "raise wait_seconds of the cluster (or CYTOPAVE_WORKER_TIMEOUT_SECONDS)"
    if cluster.address is not None:
        return f"start workers that connect to it, or {longer} if they wait in a queue"
    if cluster.slurm is not None:
        return f"look at the jobs (squeue, and their output in log_directory), or {longer}"
    if cluster.kubernetes is not None:
        return f"look at the pods (kubectl get pods, kubectl describe pod), or {longer}"
    return f"look for what their processes wrote to the terminal, or {longer}"


def look_at_memory(dask_worker: distributed.Worker) -> Room:
    """On a worker: its host's free memory, and how much of it Dask lets the worker have."""
    from distributed.system import MEMORY_LIMIT

    free = min(psutil.virtual_memory().available, MEMORY_LIMIT)  # the latter: of a container
    return Room(socket.gethostname(), free, dask_worker.memory_manager.memory_limit)


def check_workers(client: PrefectDaskClient, url: str | None) -> None:
    """Refuse workers that share this process, or that cannot reach its API.

    Args:
        client: The connection to their scheduler.
        url: The temporary API of this process; None where one for all hosts is set.

    Raises:
        ClusterError: They cannot serve.
    """
    sights = client.run(_look_around, url)
    scheduler = client.scheduler.address
    if any(sight.process == _process() for sight in sights.values()):
        raise ClusterError(
            f"the workers of {scheduler} are threads of this process: {GIL_REASON}. Start the "
            "cluster with processes=True"
        )
    if away := [worker for worker, sight in sights.items() if not sight.api]:
        raise ClusterError(
            f"the worker {away[0]} cannot reach the temporary Prefect API of this process ({url}): "
            "start one for all hosts (prefect server start --host 0.0.0.0) and set "
            "PREFECT_API_URL to its address, here and on the workers"
        )
    if (threads := max(client.nthreads().values())) > 1:
        _log.warning(
            "Workers of %s run up to %d tasks at once; on a GPU these share its memory, and "
            "plans count on one a worker (start workers with --nthreads 1)",
            scheduler,
            threads,
        )


class _Sight(NamedTuple):
    """What a worker sees from where it runs."""

    process: tuple[str, int]
    api: bool


def _process() -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _look_around(url: str | None) -> _Sight:
    """On a worker: which process it is, and whether the API answers there."""
    if url is None:
        return _Sight(_process(), api=True)
    with temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as client:
        return _Sight(_process(), api=client.api_healthcheck() is None)
