"""Where tiles are worked on: the ``Cluster`` block.

Dask is imported when a cluster starts, never before: Prefect imports this package in every
process that it starts.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from cytopave.engine.errors import ClusterError, MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

Preset = Literal["auto", "cpu", "nvlink", "capacity"]
PRESETS: Final[tuple[str, ...]] = get_args(Preset)
_ADDRESS = re.compile(r"(tcp|tls|ucx)://[^\s/]+:\d+/?|wss?://[^\s/]+\S*")

# The two presets of the design seeds. UCX cannot move managed memory between cards, so it is one
# or the other. Half of a card is left to torch, which does not take from the pool.
_GPU_OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "auto": {},
    "nvlink": {
        "protocol": "ucx",
        "rmm_pool_size": 0.5,
        "rmm_allocator_external_lib_list": ["cupy"],
    },
    "capacity": {"protocol": "tcp", "rmm_managed_memory": True},
}

GIL_REASON: Final = (
    "a task that holds Python's global lock (as every segmentation does) then keeps the worker "
    "from answering the scheduler, which gives it up for dead and loses its results"
)
_WORKER_BYTES = 2 * 2**30
"""Host memory a CPU worker should have: torch, a model and a tile."""


class Cluster(Block):
    """Dask workers for cytopave: started here for one run, or an existing scheduler's.

    Every worker is a process of its own with one thread, so that it works on one tile at a time.
    """

    _block_type_name = "cytopave cluster"
    _block_type_slug = "cytopave-cluster"

    model_config = ConfigDict(extra="forbid")

    preset: Preset = Field(
        default="auto",
        description="auto: one worker a GPU where there is one, else one a CPU core. cpu: CPU "
        "cores only. nvlink: UCX and an RMM pool, fast between GPUs. capacity: managed memory, "
        "for data larger than the GPUs.",
    )
    workers: PositiveInt | None = Field(
        default=None,
        description="Number of workers; of an existing scheduler, how many to wait for.",
    )
    memory_limit: PositiveInt | PositiveFloat | str | None = Field(
        default=None,
        description="Host memory of one worker: '8GiB', bytes, or a fraction such as 0.25. "
        "Shared out evenly where not set.",
    )
    address: str | None = Field(
        default=None, description="An existing scheduler, such as tcp://10.0.0.5:8786."
    )
    cluster_class: str | None = Field(
        default=None,
        description="Another cluster to start, such as dask_jobqueue.SLURMCluster.",
    )
    cluster_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments for the cluster that is started."
    )

    @model_validator(mode="after")
    def _can_serve(self) -> Cluster:
        _check_one_source(self)
        _check_units({"memory_limit": self.memory_limit, **self.cluster_kwargs})
        _check_processes(self.cluster_kwargs, own=self.cluster_class is None)
        options = {**_GPU_OPTIONS.get(self.preset, {}), **self.cluster_kwargs}
        if str(options.get("protocol") or "").startswith("ucx") and options.get(
            "rmm_managed_memory"
        ):
            raise ValueError(
                "UCX cannot move managed memory between GPUs: use the preset 'capacity' (TCP with "
                "managed memory) or the preset 'nvlink' (UCX without it)"
            )
        return self

    def recipe(self, *, gpu: bool) -> tuple[str, dict[str, Any]]:
        """What ``start`` calls: the cluster's class by name, and its arguments.

        Args:
            gpu: Whether a GPU is visible where the cluster starts, and wanted.

        Raises:
            ClusterError: The preset needs a GPU and there is none.
        """
        options: dict[str, Any] = {}
        if self.workers is not None:
            options["n_workers"] = self.workers
        if self.memory_limit is not None:
            options["memory_limit"] = self.memory_limit
        if self.cluster_class is not None:
            return self.cluster_class, options | self.cluster_kwargs
        options |= {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        if self.preset in ("nvlink", "capacity") and not gpu:
            raise ClusterError(
                f"the cluster preset '{self.preset}' needs an NVIDIA GPU and none is visible "
                "here: use 'cpu', or the address of a scheduler whose workers have GPUs"
            )
        if self.preset == "cpu" or not gpu:
            options = {"n_workers": cpu_workers(), "processes": True} | options
            return "distributed.LocalCluster", options | self.cluster_kwargs
        options |= _GPU_OPTIONS[self.preset]
        return "dask_cuda.LocalCUDACluster", options | self.cluster_kwargs

    def start(self, *, gpu: bool) -> Any:
        """Start the cluster; the caller closes it (it is a context manager).

        Args:
            gpu: Whether a GPU is visible here, and wanted.

        Raises:
            ClusterError: It did not start.
            MissingExtraError: The package of its class is not installed.
        """
        name, options = self.recipe(gpu=gpu)
        factory = _import(name)
        try:
            return factory(**options)
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            cause = _root(error)
            remedy = (
                # Whatever a worker process died of was told on stderr, not to us.
                "its worker processes end at once; if this is a script, call the flow under "
                '`if __name__ == "__main__":`, because they import it too'
                if "Nanny failed" in str(cause)
                else "change workers or cluster_kwargs, or use 'auto'"
            )
            raise ClusterError(
                f"{name} did not start with {options} ({str(cause).rstrip('.')}): {remedy}"
            ) from error


def resolve_cluster(spec: Cluster | str) -> Cluster:
    """The cluster that a parameter names.

    Args:
        spec: A block; or a preset (``auto``, ``cpu``, ``nvlink``, ``capacity``), a scheduler's
            address (``tcp://...``, ``tls://...``), or the name of a saved block.

    Raises:
        ClusterError: It names nothing that can serve a run.
    """
    if isinstance(spec, Cluster):
        return spec
    text = spec.strip()
    try:
        if text in PRESETS:
            return Cluster(preset=text)
        if "://" in text:
            return Cluster(address=text)
    except ValidationError as error:
        raise ClusterError(f"cluster {text!r}: {error.errors()[0]['msg']}") from None
    try:
        return Cluster.load(text, _sync=True)  # type: ignore[return-value, call-arg]
    except (ValueError, RuntimeError) as error:  # the latter: no API answers, so no saved blocks
        raise ClusterError(
            f"there is no cluster {text!r}: use one of {', '.join(PRESETS)}, a scheduler's "
            f"address such as tcp://host:8786, or the name of a saved cytopave cluster block"
        ) from error


def _check_one_source(cluster: Cluster) -> None:
    address = cluster.address
    if address is None:
        return
    if cluster.cluster_class or cluster.cluster_kwargs or cluster.memory_limit is not None:
        raise ValueError(
            "an address names a cluster that runs already: give either the address or what is "
            "to be started (cluster_class, cluster_kwargs, memory_limit)"
        )
    if address.startswith("inproc://"):
        raise ValueError(
            f"{address} is a scheduler inside one process: {GIL_REASON}. Start it with "
            "processes=True and give its tcp:// address, or use 'auto'"
        )
    if not _ADDRESS.fullmatch(address):
        raise ValueError(f"{address!r} is no scheduler's address: write tcp://host:port")


def _check_units(options: dict[str, Any]) -> None:
    """Refuse the spellings that documentation elsewhere shows and the libraries do not take."""
    for name, value in options.items():
        if not isinstance(value, str):
            continue
        if share := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value):
            raise ValueError(
                f"{name}={value!r} is not understood by Dask or RMM: write the fraction "
                f"{float(share[1]) / 100:g} (a number), or a size such as '10GiB'"
            )
    limit = options["memory_limit"]
    if isinstance(limit, str) and not re.fullmatch(r"auto|\d+(\.\d+)?\s*[kMGT]?i?B", limit):
        raise ValueError(
            f"memory_limit={limit!r} is no size: write a number with a unit such as '8GiB', a "
            "fraction of the host's memory such as 0.25, or 'auto'"
        )
    if isinstance(limit, float) and limit > 1:
        raise ValueError(
            f"memory_limit={limit} is neither a fraction (at most 1.0) nor whole bytes: write "
            f"'{limit:g}GiB' for gibibytes"
        )
    if "rmm_allocator_external_lib" in options:
        raise ValueError(
            "dask-cuda has no argument rmm_allocator_external_lib: write "
            "rmm_allocator_external_lib_list=['cupy']"
        )


def _check_processes(options: dict[str, Any], *, own: bool) -> None:
    if options.get("processes") is False:
        raise ValueError(f"workers inside this process (processes=False) are refused: {GIL_REASON}")
    if "asynchronous" in options:
        raise ValueError("asynchronous is managed by cytopave: leave it out of cluster_kwargs")
    if not own:
        return  # others have arguments of the same names with other meanings
    if options.get("threads_per_worker", 1) != 1:
        raise ValueError(
            "a worker works on one tile at a time: leave threads_per_worker out and raise "
            "workers instead"
        )
    for name, field in (("n_workers", "workers"), ("memory_limit", "memory_limit")):
        if name in options:
            raise ValueError(f"set the field {field} of the cluster, not cluster_kwargs[{name!r}]")


def cpu_workers() -> int:
    """One a core that this process may use (affinity and cgroups counted), if memory allows."""
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    return max(1, min(int(CPU_COUNT), int(MEMORY_LIMIT) // _WORKER_BYTES))


def _root(error: BaseException) -> BaseException:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def _import(name: str) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        extra = {
            "dask_cuda": "cuda13",
            "dask_jobqueue": "slurm",
            "dask_kubernetes": "kubernetes",
        }.get(module.partition(".")[0])
        remedy = f"install cytopave[{extra}]" if extra else f"install the package of {module}"
        if extra == "cuda13":
            remedy += " (or cytopave[cuda12]), or choose the cluster 'cpu'"
        raise MissingExtraError(f"the cluster {name} needs {error.name}: {remedy}") from error
    except (AttributeError, ValueError):
        raise ClusterError(
            f"there is no cluster class {name!r}: write package.Class, such as "
            "dask_jobqueue.SLURMCluster"
        ) from None
