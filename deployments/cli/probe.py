"""``cytopave probe``: what this machine has for a run."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cytopave.deployments.cli.console import GIB, write_facts, write_json
from cytopave.deployments.cli.environment import prepare_prefect
from cytopave.deployments.cli.options import Common, check_positive

_PACKAGES = (
    *("cytopave", "prefect", "prefect-dask", "dask", "distributed", "dask-cuda", "zarr", "numpy"),
    *("cellpose", "torch", "cupy-cuda13x", "cupy-cuda12x"),
)


def probe(*, gpu_memory_gb: float | None = None, common: Common = Common()) -> None:  # noqa: B008
    """Show the GPU or what would be assumed in its place, free memory, workers and versions.

    Args:
        gpu_memory_gb: GiB to assume where no GPU can be seen.
        common: Options of every command.
    """
    prepare_prefect(verbose=common.verbose)
    check_positive(gpu_memory_gb=gpu_memory_gb)
    facts = machine(gpu_memory_gb)
    if common.json:
        write_json(facts)
        return
    memory, packages = facts["memory"], facts["packages"]
    write_facts(
        {
            "GPU": facts["gpu"]["note"],
            "memory": f"{memory['available'] / GIB:.1f} GiB free of {memory['total'] / GIB:.1f} "
            "GiB on this host",
            "CPU workers": f"{facts['cpu_workers']} unless --workers says otherwise",
            **{name: found or "not installed" for name, found in packages.items()},
        }
    )


def machine(assumed_gb: float | None) -> dict[str, Any]:
    """The facts as JSON values; sizes in bytes."""
    import platform

    import psutil

    from cytopave.blocks.cluster import cpu_workers
    from cytopave.engine.gpu.vram import probe_gpu
    from cytopave.engine.settings import load_settings

    host = psutil.virtual_memory()
    gpu = probe_gpu(assumed_gb=assumed_gb or load_settings().gpu_memory_gb)
    return {
        "gpu": gpu.model_dump(mode="json"),
        "memory": {"available": host.available, "total": host.total},
        "cpu_workers": cpu_workers(),
        "packages": {
            "python": platform.python_version(),
            **{name: _installed(name) for name in _PACKAGES},
        },
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
