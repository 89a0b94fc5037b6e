"""One run at a time on the GPUs of a host, whoever started it.

Each run plans with the memory that it finds free, so two of them on one card would starve each
other. Prefect's global concurrency limits hold across runs, deployments and command lines that use
the same server. There is one a host, made on first use: an operator may raise or disable it.
"""

from __future__ import annotations

import logging
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL

from cytopave.engine.gpu.vram import probe_gpu
from cytopave.tasks.probe import may_use_gpus, probe_workers
from cytopave.tasks.runner import worker_hosts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cytopave.blocks.cluster import Cluster
    from cytopave.engine.segmenters import Segmenter

_log = logging.getLogger(__name__)

_LEASE_SECONDS = 120
"""How long the GPUs of a run whose process died stay taken."""


def limit_name(host: str) -> str:
    """Name of the limit of a host."""
    return f"cytopave-gpu-{host}"


@contextmanager
def gpu_hosts(
    cluster: Cluster, segmenter: Segmenter, *, assumed_gb: float | None
) -> Iterator[None]:
    """Wait until no other run uses the GPUs of this run's hosts; keep others from them meanwhile.

    Workers that are started here start only then, so that waiting takes no memory of a card. Where
    no GPU is, or no lasting API, by which other runs would be known, nothing is waited for.

    Args:
        cluster: Where the flow runs.
        segmenter: What will compute.
        assumed_gb: GiB that were said to be there where no GPU can be seen.
    """
    hosts = _hosts(cluster, segmenter, assumed_gb) if PREFECT_API_URL.value() else []
    if not hosts:
        yield
        return
    names = [limit_name(host) for host in hosts]
    for name in names:
        _make(name)
    _log.info("Waiting for a place in %s", ", ".join(names))
    # A renewal that fails while the server is away must not end hours of work: what is held is
    # lost then, and said in the log.
    with concurrency(
        names,
        occupy=1,
        strict=True,
        lease_duration=_LEASE_SECONDS,
        raise_on_lease_renewal_failure=False,
    ):
        yield


def _hosts(cluster: Cluster, segmenter: Segmenter, assumed_gb: float | None) -> list[str]:
    """Where the run will use GPUs; starts a cluster whose workers are elsewhere."""
    if not may_use_gpus(segmenter, cluster):
        return []
    if cluster.elsewhere:
        return worker_hosts() if probe_workers(segmenter, assumed_gb=assumed_gb) else []
    gpu = probe_gpu(assumed_gb=assumed_gb)
    used = segmenter.uses_gpu and (gpu.visible or assumed_gb is not None)
    return [socket.gethostname()] if used else []


def _make(name: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            try:
                client.create_global_concurrency_limit(
                    GlobalConcurrencyLimitCreate(name=name, limit=1, active=True)
                )
            except PrefectHTTPStatusError as error:
                if error.response.status_code != 409:  # another run was faster
                    raise
