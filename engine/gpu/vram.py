"""How much memory the GPU that a process was granted has, and what a plan may use of it.

The driver is asked through NVML, which sees every card of the machine whatever was granted; the
grant is ``CUDA_VISIBLE_DEVICES``. Asking needs no CUDA context, so a flow process that plans keeps
nothing on the card.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from cytopave.engine.errors import ClusterError, PlanError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

GIB = 2**30
DEFAULT_GB = 8.0
"""GiB assumed where no GPU can be seen and nothing was said (design seeds: conservative)."""
KEPT_BACK = 0.2
"""Share of the free memory left to others: it is a reading of one moment of a shared device."""


class Gpu(BaseModel):
    """The GPU of one process, or what is assumed in its place. Sizes are bytes.

    Attributes:
        visible: Whether a card was found and granted.
        name: The card's name, empty where none is visible.
        uuid: NVML's identifier (``GPU-...`` or ``MIG-...``), empty where none is visible.
        index: Number of the card among the machine's, in the driver's order; None where none
            is visible.
        total_bytes: Memory of the card or of the MIG instance.
        free_bytes: What of it was free when asked.
        budget_bytes: What a plan may use: the free memory less the share kept back.
        source: Where the sizes come from: the driver, ``gpu_memory_gb``, or the default.
        note: One sentence for people.
    """

    model_config = ConfigDict(frozen=True)

    visible: bool
    name: str = ""
    uuid: str = ""
    index: int | None = None
    total_bytes: NonNegativeInt
    free_bytes: NonNegativeInt
    budget_bytes: NonNegativeInt
    source: Literal["nvml", "assumed", "default"]
    note: str


def probe_gpu(
    *,
    environ: Mapping[str, str] = os.environ,
    nvml: Any = None,
    assumed_gb: float | None = None,
) -> Gpu:
    """The GPU that ``CUDA_VISIBLE_DEVICES`` grants this process, and its free memory.

    The first entry of the list counts: dask-cuda rotates it so that it is the worker's own.

    Args:
        environ: Where the variable is looked up.
        nvml: A module like ``pynvml``; None takes that one.
        assumed_gb: GiB to assume where no GPU is visible (the setting ``gpu_memory_gb``).
    """
    import pynvml

    grant = environ.get("CUDA_VISIBLE_DEVICES")
    try:
        with _session(nvml or pynvml) as driver:
            handle = _granted(driver, grant)
            if handle is None:
                return _assume(_why(grant), assumed_gb)
            return _read(driver, handle, assumed_gb)
    except pynvml.NVMLError as error:
        return _assume(f"no GPU is visible here: NVML says {str(error)!r}", assumed_gb)


def count_gpus(
    wanted: str | None = None, *, environ: Mapping[str, str] = os.environ, nvml: Any = None
) -> int:
    """How many GPUs this process may use.

    Args:
        wanted: Of these alone (numbers or UUIDs, separated by commas), where given.
        environ: Where ``CUDA_VISIBLE_DEVICES`` is looked up.
        nvml: A module like ``pynvml``; None takes that one.

    Raises:
        ClusterError: One that is wanted is not there.
    """
    import pynvml

    grant = wanted if wanted is not None else environ.get("CUDA_VISIBLE_DEVICES")
    try:
        with _session(nvml or pynvml) as driver:
            if grant is None:
                return int(driver.nvmlDeviceGetCount())
            names = [name.strip() for name in grant.split(",")]
            found = list(itertools.takewhile(lambda name: _granted(driver, name), names))
    except pynvml.NVMLError:
        names, found = (wanted or "").split(","), []
    if wanted is not None and len(found) < len(names):
        raise ClusterError(
            f"the cluster is to use the GPU {names[len(found)]} (gpus={wanted!r}), and no such GPU "
            "is visible here: correct gpus, or leave it out to use all that are granted"
        )
    return len(found)


def plan_budget(gpus: Sequence[Gpu], *, assumed_gb: float | None = None) -> int:
    """Bytes that a tile may take on any of the workers.

    Workers that share a card share its budget. A stated ``assumed_gb`` decides alone, so that a
    plan does not depend on the moment; then every worker's card must hold what it promises.

    Args:
        gpus: One entry a worker; none where planning happens before there are workers.
        assumed_gb: GiB of the cards, where the user said so.

    Raises:
        PlanError: A worker's card has less free than a plan for ``assumed_gb`` would use.
    """
    sharing = Counter(gpu.uuid for gpu in gpus if gpu.visible)
    budgets = [gpu.budget_bytes // max(1, sharing[gpu.uuid]) for gpu in gpus]
    if assumed_gb is None:
        return min(budgets, default=_budget(int(DEFAULT_GB * GIB)))
    budget = _budget(int(assumed_gb * GIB))
    for gpu in gpus:
        free = gpu.free_bytes // max(1, sharing[gpu.uuid])
        if gpu.visible and free < budget:
            raise PlanError(
                f"gpu_memory_gb={assumed_gb:g} plans tiles of up to {budget / GIB:.1f} GiB, but a "
                f"worker's {gpu.name} has {free / GIB:.1f} GiB free of "
                f"{gpu.total_bytes / GIB:.1f} GiB: set gpu_memory_gb to "
                f"{free / GIB:.1f} or less, or leave it out to use what the card reports"
            )
    return budget


class _Handle(NamedTuple):
    card: int
    device: Any


@contextmanager
def _session(nvml: Any) -> Iterator[Any]:
    nvml.nvmlInit()
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


def _granted(nvml: Any, grant: str | None) -> _Handle | None:
    """The device that CUDA would call number 0; None where it would see none."""
    if grant is None:
        return _by_index(nvml, 0)
    first = grant.split(",")[0].strip()
    if first.isdecimal():
        return _by_index(nvml, int(first))
    # Empty, -1 and names such as NoDevFiles (Slurm without GPUs) grant nothing.
    return _by_uuid(nvml, first) if first.startswith(("GPU-", "MIG-")) else None


def _by_index(nvml: Any, index: int) -> _Handle | None:
    if index >= nvml.nvmlDeviceGetCount():
        return None
    card = nvml.nvmlDeviceGetHandleByIndex(index)
    # A card cut into MIG instances cannot be used whole: CUDA then takes the first instance.
    return next(_instances(nvml, index, card), _Handle(index, card))


def _by_uuid(nvml: Any, prefix: str) -> _Handle | None:
    """The one device whose UUID begins so: CUDA takes prefixes as long as one device fits."""
    found = [h for h in _devices(nvml) if nvml.nvmlDeviceGetUUID(h.device).startswith(prefix)]
    return found[0] if len(found) == 1 else None


def _devices(nvml: Any) -> Iterator[_Handle]:
    """All cards and all their MIG instances, but for cards that do not answer."""
    from pynvml import NVMLError

    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(NVMLError):  # lost, or granted to others: the one that we look for is not
            card = nvml.nvmlDeviceGetHandleByIndex(index)
            yield _Handle(index, card)
            yield from _instances(nvml, index, card)


def _instances(nvml: Any, index: int, card: Any) -> Iterator[_Handle]:
    """The MIG instances of a card; none where it is not cut or cannot be."""
    from pynvml import NVMLError_NotFound, NVMLError_NotSupported

    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(card)
        slots = nvml.nvmlDeviceGetMaxMigDeviceCount(card) if current else 0
    except NVMLError_NotSupported:
        return
    for slot in range(slots):
        try:
            yield _Handle(index, nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, slot))
        except NVMLError_NotFound:  # instances need not fill the slots in order
            continue


def _read(nvml: Any, handle: _Handle, assumed_gb: float | None) -> Gpu:
    from pynvml import NVMLError_NotSupported

    name = nvml.nvmlDeviceGetName(handle.device)
    card = {
        "visible": True,
        "name": name,
        "uuid": nvml.nvmlDeviceGetUUID(handle.device),
        "index": handle.card,
    }
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle.device)
    except NVMLError_NotSupported:  # a system on a chip: the host's memory is the card's
        return _assume(f"{name} does not say how much memory it has", assumed_gb, **card)
    total, free = int(memory.total), int(memory.free)
    return Gpu(
        **card,
        total_bytes=total,
        free_bytes=free,
        budget_bytes=_budget(free),
        source="nvml",
        note=f"{name} (card {handle.card}): {free / GIB:.1f} of {total / GIB:.1f} GiB free, "
        f"{_budget(free) / GIB:.1f} GiB of them to plan with.",
    )


def _why(grant: str | None) -> str:
    if grant is None:
        return "no GPU is visible here: the driver reports none"
    return f"no GPU is visible here: CUDA_VISIBLE_DEVICES={grant!r} grants none of this machine"


def _assume(reason: str, assumed_gb: float | None, **card: Any) -> Gpu:
    size = int((DEFAULT_GB if assumed_gb is None else assumed_gb) * GIB)
    basis = (
        f"{DEFAULT_GB:g} GiB are assumed; set gpu_memory_gb if the workers' GPUs differ"
        if assumed_gb is None
        else f"{assumed_gb:g} GiB are assumed, as gpu_memory_gb says"
    )
    return Gpu(
        **{"visible": False, **card},
        total_bytes=size,
        free_bytes=size,
        budget_bytes=_budget(size),
        source="default" if assumed_gb is None else "assumed",
        note=f"{reason[0].upper()}{reason[1:]}. For planning, {basis}.",
    )


def _budget(free: int) -> int:
    return int(free * (1 - KEPT_BACK))
