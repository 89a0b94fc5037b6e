"""What a ``Cluster`` block may say: checked when it is made, before anything starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from cytopave.blocks import arguments

if TYPE_CHECKING:
    from cytopave.blocks.cluster import Cluster

# The two presets of the design seeds. UCX cannot move managed memory between cards, so it is one
# or the other.
GPU_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "auto": {},
    "nvlink": {"protocol": "ucx"},
    "capacity": {"protocol": "tcp", "rmm_managed_memory": True},
}
_ADDRESS = re.compile(r"(tcp|tls|ucxx?)://[^\s/]+:\d+/?|wss?://[^\s/]+\S*")
GIL_REASON: Final = (
    "a task that holds Python's global lock (as every segmentation does) then keeps the worker "
    "from answering the scheduler, which gives it up for dead and loses its results"
)


def check_cluster(cluster: Cluster) -> None:
    """Refuse a block that no cluster can be made of.

    Raises:
        ValueError: Its fields contradict each other, or one has a value that it cannot have.
    """
    _check_one_source(cluster)
    arguments.check_units({**cluster.cluster_kwargs, **_units(cluster)})
    host = "the host's memory"
    arguments.check_size("memory_limit", cluster.memory_limit, host, also=("auto",))
    arguments.check_size("rmm_pool_size", cluster.rmm_pool_size, "the GPU's memory")
    _check_processes(cluster.cluster_kwargs)
    if not cluster.elsewhere:
        _check_local(cluster)


def _units(cluster: Cluster) -> dict[str, Any]:
    fields = {"memory_limit": cluster.memory_limit, "rmm_pool_size": cluster.rmm_pool_size}
    return {name: value for name, value in fields.items() if value is not None}


def _check_one_source(cluster: Cluster) -> None:
    sources = [
        name
        for name in ("address", "slurm", "kubernetes", "cluster_class")
        if getattr(cluster, name) is not None
    ]
    if len(sources) > 1:
        raise ValueError(
            f"{sources[0]} and {sources[1]} name two clusters: give one of them"
            + (" (an address is of a cluster that runs already)" if "address" in sources else "")
        )
    if not sources:
        if cluster.gpu_workers:
            raise ValueError(
                "gpu_workers is for workers elsewhere: here, the presets say whether GPUs are used"
            )
        return
    if cluster.preset != "auto":
        raise ValueError(
            f"preset={cluster.preset!r} is for workers on this machine: leave it out beside "
            f"{sources[0]}"
        )
    local = [n for n in ("gpus", "rmm_pool_size") if getattr(cluster, n) is not None]
    if local:
        raise ValueError(
            f"{local[0]} is for workers on this machine: leave it out beside {sources[0]}"
        )
    if sources == ["address"]:
        _check_address(cluster, str(cluster.address))
    elif sources != ["cluster_class"]:
        _check_scheduled(cluster, sources[0])


def _check_address(cluster: Cluster, address: str) -> None:
    if cluster.cluster_kwargs or cluster.memory_limit is not None:
        raise ValueError(
            "an address names a cluster that runs already: give either the address or what is "
            "to be started (cluster_kwargs, memory_limit)"
        )
    if address.startswith("inproc://"):
        raise ValueError(
            f"{address} is a scheduler inside one process: {GIL_REASON}. Start it with "
            "processes=True and give its tcp:// address, or use 'auto'"
        )
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"{address!r} is no scheduler's address: write tcp://host:port")


def _check_scheduled(cluster: Cluster, source: str) -> None:
    if cluster.workers is None:
        raise ValueError(f"say how many workers {source} shall start: set workers")
    if cluster.memory_limit is not None:
        raise ValueError(f"set memory of {source}, not memory_limit")


def _check_local(cluster: Cluster) -> None:
    arguments.check_names(cluster.cluster_kwargs)
    options = {**GPU_OPTIONS.get(cluster.preset, {}), **cluster.cluster_kwargs}
    arguments.check_values(options)
    if options.get("threads_per_worker", 1) != 1:
        raise ValueError(
            "a worker works on one tile at a time: leave threads_per_worker out and raise "
            "workers instead"
        )
    managed = options.get("rmm_managed_memory")
    if managed and str(options.get("protocol") or "").startswith("ucx"):
        raise ValueError(
            "UCX cannot move managed memory between GPUs: use the preset 'capacity' (TCP with "
            "managed memory) or the preset 'nvlink' (UCX without it)"
        )
    if options.get("rmm_async") and (managed or cluster.rmm_pool_size is not None):
        raise ValueError(
            "rmm_async goes with neither a pool nor managed memory: choose one of the three"
        )


def _check_processes(options: dict[str, Any]) -> None:
    if options.get("processes") is False:
        raise ValueError(f"workers inside this process (processes=False) are refused: {GIL_REASON}")
    if "asynchronous" in options:
        raise ValueError("asynchronous is managed by cytopave: leave it out of cluster_kwargs")
