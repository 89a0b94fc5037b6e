"""Where tiles are worked on: the ``Cluster`` block.

Dask is imported when a cluster starts, never before: Prefect imports this package in every
process that it starts.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import uuid
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from prefect.blocks.core import Block
from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError, model_validator

from cytopave.blocks import arguments, slurm
from cytopave.blocks.cluster_checks import GPU_OPTIONS, check_cluster
from cytopave.blocks.kubernetes import Kubernetes, give_up
from cytopave.blocks.saved import load_saved
from cytopave.blocks.slurm import Slurm
from cytopave.engine.errors import ClusterError, MissingExtraError
from cytopave.engine.gpu.vram import count_gpus

if TYPE_CHECKING:
    from collections.abc import Callable

Preset = Literal["auto", "cpu", "nvlink", "capacity"]
PRESETS: Final[tuple[str, ...]] = get_args(Preset)
Library = Literal["torch", "cupy"]
"""What computes on the GPUs, and so takes their memory: segmentation is torch's."""
_LOCAL, _CUDA = "distributed.LocalCluster", "dask_cuda.LocalCUDACluster"

_POOL: Final = 0.5
"""Share of a card that the preset nvlink gives to RMM, for work that takes its memory there."""

_WORKER_BYTES = 2 * 2**30
"""Host memory a CPU worker should have: torch, a model and a tile."""


class Cluster(Block):
    """Dask workers for cytopave: started for one run, or an existing scheduler's.

    Every worker is a process of its own with one thread, so that it works on one tile at a time.
    """

    _block_type_name = "cytopave cluster"
    _block_type_slug = "cytopave-cluster"
    _description = "Where tiles are worked on: this machine, a scheduler, SLURM or Kubernetes."

    model_config = ConfigDict(extra="forbid")

    preset: Preset = Field(
        default="auto",
        description="Workers on this machine. auto: one a GPU where there is one, else one a CPU "
        "core. cpu: CPU cores only. nvlink: UCX, fast between GPUs, with an RMM pool for work on "
        "arrays. capacity: managed memory, for data larger than the GPUs.",
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
    gpus: str | None = Field(
        default=None,
        pattern=r"^\s*(\d+|(GPU|MIG)-[\w-]+)(\s*,\s*(\d+|(GPU|MIG)-[\w-]+))*\s*$",
        description="GPUs of this machine to use, by number or UUID, such as 0,1; all that are "
        "granted where not set.",
    )
    rmm_pool_size: PositiveInt | PositiveFloat | str | None = Field(
        default=None,
        description="RMM's pool on each GPU: '40GiB', bytes, or a fraction such as 0.5. For work "
        "on arrays; refused for segmentation, whose memory is PyTorch's.",
    )
    address: str | None = Field(
        default=None, description="An existing scheduler, such as tcp://10.0.0.5:8786."
    )
    slurm: Slurm | None = Field(default=None, description="Workers that are jobs of SLURM.")
    kubernetes: Kubernetes | None = Field(
        default=None, description="Workers that are pods of Kubernetes."
    )
    cluster_class: str | None = Field(
        default=None,
        description="Another cluster to start, such as dask_jobqueue.PBSCluster.",
    )
    gpu_workers: bool = Field(
        default=False,
        description="Workers elsewhere have one GPU each. Jobs and pods then ask for one, and "
        "plans that are made without seeing the workers assume one.",
    )
    cluster_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Further arguments for the cluster that is started."
    )
    wait_seconds: PositiveFloat | None = Field(
        default=None,
        description="Longest wait for the first worker: as long as jobs may queue. "
        "CYTOPAVE_WORKER_TIMEOUT_SECONDS where not set.",
    )

    @model_validator(mode="after")
    def _can_serve(self) -> Cluster:
        check_cluster(self)
        return self

    @property
    def elsewhere(self) -> bool:
        """Whether the workers are on other hosts, as far as anybody knows."""
        return bool(self.address or self.slurm or self.kubernetes or self.cluster_class)

    @property
    def has_gpus(self) -> bool | None:
        """Whether the workers have GPUs; None where that is seen when they are there."""
        if self.gpu_workers or self.preset in ("nvlink", "capacity"):
            return True
        return False if self.slurm or self.kubernetes or self.preset == "cpu" else None

    def recipe(self, *, gpu: bool, library: Library = "torch") -> tuple[str, dict[str, Any]]:
        """What ``start`` calls: the cluster's class by name, and its arguments.

        Args:
            gpu: Whether a GPU is visible where the cluster starts, and wanted.
            library: What will compute on the GPUs.

        Raises:
            ClusterError: The cluster asked for cannot be had here, or not for this library.
            MissingExtraError: A package is needed to say what is started.
        """
        if self.slurm is not None or self.kubernetes is not None:
            return self._scheduled()
        options: dict[str, Any] = {}
        if self.workers is not None:
            options["n_workers"] = self.workers
        if self.memory_limit is not None:
            options["memory_limit"] = self.memory_limit
        if self.cluster_class is not None:
            return self.cluster_class, options | self.cluster_kwargs
        options |= {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
        if self.preset == "cpu" or not gpu:
            self._check_cpu()
            options = {"n_workers": cpu_workers(), "processes": True} | options
            # Not even a method that looks for a GPU by itself shall find one.
            hidden = {"CUDA_VISIBLE_DEVICES": ""} if self.preset == "cpu" else {}
            env = {"env": {**hidden, **self.cluster_kwargs.get("env", {})}} if hidden else {}
            return _LOCAL, options | self.cluster_kwargs | env
        if self.gpus is not None:
            options["CUDA_VISIBLE_DEVICES"] = self.gpus.replace(" ", "")
        options |= GPU_OPTIONS[self.preset] | self._pool(library)
        if self.preset == "nvlink" and self._cards() == 1:
            options["protocol"] = "tcp"  # nothing to talk to, and no need for UCX to be there
        return _CUDA, options | self.cluster_kwargs

    def _cards(self) -> int:
        """How many GPUs of this machine the workers will have."""
        return self.workers or (len(self.gpus.split(",")) if self.gpus else count_gpus())

    def _scheduled(self) -> tuple[str, dict[str, Any]]:
        """The recipe of workers that SLURM or Kubernetes starts."""
        assert self.workers is not None
        if self.slurm is not None:
            name, options = self.slurm.recipe(gpu=self.gpu_workers)
            options["n_workers"] = self.workers
        else:
            assert self.kubernetes is not None
            resource = f"cytopave-{uuid.uuid4().hex[:8]}"
            name, options = self.kubernetes.recipe(
                name=resource, workers=self.workers, gpu=self.gpu_workers
            )
        return name, options | self.cluster_kwargs

    def _pool(self, library: Library) -> dict[str, Any]:
        if library == "torch":
            if self.rmm_pool_size is not None:
                raise ClusterError(
                    f"an RMM pool (rmm_pool_size={self.rmm_pool_size!r}) takes memory of the GPU "
                    "that PyTorch, which segments, then cannot have: leave rmm_pool_size out of "
                    "clusters that segment"
                )
            return {}
        size = self.rmm_pool_size or (_POOL if self.preset == "nvlink" else None)
        served = size is not None or self.preset == "capacity"
        pool = {"rmm_pool_size": size} if size is not None else {}
        return pool | ({"rmm_allocator_external_lib_list": ["cupy"]} if served else {})

    def _check_cpu(self) -> None:
        if self.preset in ("nvlink", "capacity"):
            raise ClusterError(
                f"the cluster preset '{self.preset}' needs an NVIDIA GPU and none is visible "
                "here: use 'cpu', or the address of a scheduler whose workers have GPUs"
            )
        asked = [
            *(["gpus"] if self.gpus else []),
            *(["rmm_pool_size"] if self.rmm_pool_size else []),
        ]
        asked += sorted(self.cluster_kwargs.keys() & arguments.GPU_ARGUMENTS)
        if asked:
            raise ClusterError(
                f"{asked[0]} is for workers with GPUs, and this cluster gets workers on CPU cores: "
                f"leave {asked[0]} out, or run where a GPU is visible"
            )

    def start(self, *, gpu: bool, library: Library = "torch") -> Any:
        """Start the cluster; the caller closes it (it is a context manager).

        Args:
            gpu: Whether a GPU is visible here, and wanted.
            library: What will compute on the GPUs.

        Raises:
            ClusterError: It did not start.
            MissingExtraError: The package of its class is not installed.
        """
        name, options = self.recipe(gpu=gpu, library=library)
        factory = _import(name)
        if str(options.get("protocol")).startswith("ucx"):
            _check_ucx()
        try:
            return factory(**options) if self.slurm is None else slurm.start(factory, options)
        except ClusterError:
            raise
        except Exception as error:
            if self.kubernetes is not None:
                give_up(factory)
            cause = _root(error)
            what = "" if self.slurm or self.kubernetes else f" with {options}"
            raise ClusterError(
                f"{name} did not start{what} ({_line(cause)}): {self._remedy(cause)}"
            ) from error

    def _remedy(self, cause: BaseException) -> str:
        if "Nanny failed" in str(cause):
            # Whatever a worker process died of was told on stderr, not to us.
            return (
                "its worker processes end at once; if this is a script, call the flow under "
                '`if __name__ == "__main__":`, because they import it too'
            )
        if self.slurm is not None:
            return "correct what the block asks SLURM for"
        if self.kubernetes is not None:
            return (
                "check that kubectl works here, and that the Dask operator is installed in the "
                "cluster"
            )
        return "change workers or cluster_kwargs, or use 'auto'"


def names_saved(text: str) -> bool:
    """Whether a text can only be the name of a saved block, for which the API is asked."""
    return "://" not in text and text.strip() not in PRESETS


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
        saved = load_saved(Cluster, text)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ClusterError(f"cluster {text!r}: {message}") from None
    if saved is None:
        raise ClusterError(
            f"there is no cluster {text!r}{_similar(text)}: use one of {', '.join(PRESETS)}, a "
            "scheduler's address such as tcp://host:8786, or the name of a saved cytopave cluster "
            "block"
        )
    return saved


def _similar(text: str) -> str:
    close = difflib.get_close_matches(text, PRESETS, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _check_ucx() -> None:
    if importlib.util.find_spec("distributed_ucxx") is None:
        raise MissingExtraError(
            "the protocol ucx needs the package distributed-ucxx: install cytopave[cuda13] (or "
            "cytopave[cuda12]), or choose the cluster 'auto'"
        )


def cpu_workers() -> int:
    """One a core that this process may use (affinity and cgroups counted), if memory allows."""
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    return max(1, min(int(CPU_COUNT), int(MEMORY_LIMIT) // _WORKER_BYTES))


def _root(error: BaseException) -> BaseException:
    while True:
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None:
            return error
        error = cause


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()).rstrip(".")
    return text or type(error).__name__


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
