"""Arguments of local clusters, checked before anything starts.

dask-cuda hands what it does not know to its worker processes, where it ends them one by one: the
cluster then waits with no worker and no error. So names and values are checked here.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, Final

PROTOCOLS: Final = ("tcp", "tls", "ucx", "ucxx", "ws", "wss")
LIBRARIES: Final = ("torch", "cupy")

LOCAL_ARGUMENTS: Final = frozenset(
    {
        *("dashboard_address", "env", "host", "interface", "lifetime", "lifetime_restart"),
        *("lifetime_stagger", "local_directory", "name", "preload", "preload_argv", "protocol"),
        *("resources", "scheduler_kwargs", "scheduler_port", "security", "silence_logs"),
        *("threads_per_worker", "worker_dashboard_address", "death_timeout", "processes"),
    }
)
"""What JSON can say to `distributed.LocalCluster` and its workers."""

GPU_ARGUMENTS: Final = frozenset(
    {
        *("cudf_spill_stats", "device_memory_limit", "enable_cudf_spill", "enable_infiniband"),
        *("enable_nvlink", "enable_rdmacm", "enable_tcp_over_ucx", "log_spilling", "pre_import"),
        *("rmm_allocator_external_lib_list", "rmm_async", "rmm_log_directory"),
        *("rmm_managed_memory", "rmm_maximum_pool_size", "rmm_release_threshold"),
        "rmm_track_allocations",
    }
)
"""What `dask_cuda.LocalCUDACluster` (26.10) takes besides."""

_FIELDS: Final = {
    "n_workers": "workers",
    "memory_limit": "memory_limit",
    "CUDA_VISIBLE_DEVICES": "gpus",
    "rmm_pool_size": "rmm_pool_size",
}
_SWITCHES: Final = frozenset(
    {
        *("enable_cudf_spill", "enable_infiniband", "enable_nvlink", "enable_rdmacm"),
        *("enable_tcp_over_ucx", "log_spilling", "rmm_async", "rmm_managed_memory"),
        *("rmm_track_allocations", "lifetime_restart"),
    }
)
_SIZES: Final = frozenset({"rmm_maximum_pool_size", "rmm_release_threshold", "device_memory_limit"})
_SIZE = re.compile(r"\d+(\.\d+)?\s*([kMGT]i?)?B")


def check_names(options: dict[str, Any]) -> None:
    """Refuse what a local cluster would not understand, or would silently die of.

    Raises:
        ValueError: A name is misspelt, or has a field of its own.
    """
    for name in options:
        if field := _FIELDS.get(name):
            raise ValueError(f"set the field {field} of the cluster, not cluster_kwargs[{name!r}]")
        if name not in LOCAL_ARGUMENTS | GPU_ARGUMENTS:
            raise ValueError(
                f"local clusters have no argument {name!r}{_similar(name)}: correct or remove it "
                "in cluster_kwargs"
            )


def check_values(options: dict[str, Any]) -> None:
    """Refuse values that no local cluster takes.

    Raises:
        ValueError: A value cannot be; the message says what can.
    """
    protocol = options.get("protocol")
    if protocol is not None and str(protocol).removesuffix("://") not in PROTOCOLS:
        raise ValueError(
            f"protocol={protocol!r} is none that Dask speaks: use one of {', '.join(PROTOCOLS)}"
        )
    for name in _SWITCHES & options.keys():
        if not isinstance(options[name], bool | None):
            raise ValueError(f"{name}={options[name]!r} must be true or false")
    for name in _SIZES & options.keys():
        if (name, options[name]) not in {
            ("device_memory_limit", "auto"),
            ("device_memory_limit", "default"),
        }:
            check_size(name, options[name], "the GPU's memory")
    libraries = options.get("rmm_allocator_external_lib_list") or []
    names = libraries.split(",") if isinstance(libraries, str) else libraries
    if unknown := [n for n in names if str(n).strip() not in LIBRARIES]:
        raise ValueError(
            f"rmm_allocator_external_lib_list names {unknown[0]!r}: RMM can serve "
            f"{' and '.join(LIBRARIES)}"
        )


def check_units(options: dict[str, Any]) -> None:
    """Refuse the spellings that documentation elsewhere shows and the libraries do not take.

    Raises:
        ValueError: A share is given in percent, or an argument has an outdated name.
    """
    for name, value in options.items():
        if isinstance(value, str) and (share := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)):
            raise ValueError(
                f"{name}={value!r} is not understood by Dask or RMM: write the fraction "
                f"{float(share[1]) / 100:g} (a number), or a size such as '10GiB'"
            )
    if "rmm_allocator_external_lib" in options:
        raise ValueError(
            "dask-cuda has no argument rmm_allocator_external_lib: write "
            "rmm_allocator_external_lib_list=['cupy']"
        )


def check_size(name: str, value: object, of: str, *, also: tuple[str, ...] = ()) -> None:
    """Refuse what is neither a size nor a share.

    Args:
        name: What it is called.
        value: Bytes, a text with a unit, a fraction, or None.
        of: What a fraction is a share of.
        also: Words that are allowed besides.

    Raises:
        ValueError: It is none of them.
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return
    if isinstance(value, float) and 0 < value <= 1:
        return
    if isinstance(value, float) and value > 1:
        raise ValueError(
            f"{name}={value} is neither a fraction (at most 1.0) nor whole bytes: write "
            f"'{value:g}GiB' for gibibytes"
        )
    if isinstance(value, str) and (value in also or _SIZE.fullmatch(value)):
        return
    words = "".join(f", or '{word}'" for word in also)
    raise ValueError(
        f"{name}={value!r} is no size: write a number with a unit such as '8GiB', a fraction of "
        f"{of} such as 0.25{words}"
    )


def _similar(name: str) -> str:
    known = LOCAL_ARGUMENTS | GPU_ARGUMENTS | _FIELDS.keys()
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
