"""Stand-ins for cuML, cuDF, cuVS, cuGraph and pylibraft, which are 1.5 GB of wheels.

rapids-singlecell imports them all when it is imported, and uses none of them from the metrics to
the principal components: those are kernels of its own. Every name of a stand-in is a class that
raises when it is used, so nothing is imitated; results say that the stand-ins were there. A
package of RAPIDS that is installed stays what it is.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ROOTS = {"cuml", "cudf", "cuvs", "cugraph", "pylibraft"}
_LOGGER = "cuml.internals.logger"  # asked for its level at import
_LIBRARIES = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13")


class Missing:
    """What a stand-in's names are."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise ModuleNotFoundError(
            f"{type(self).__qualname__} is a stand-in: RAPIDS is not installed here"
        )


class _Module(ModuleType):
    __path__: list[str] = []  # noqa: RUF012  a module's
    __version__ = "26.10.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Missing,), {})


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in ROOTS:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: Any) -> None:
        if module.__name__ == _LOGGER:
            load_cuda()
            module.set_level = lambda *_, **__: None
            module.get_level = lambda *_, **__: 2


def load_cuda() -> list[str]:
    """Load CUDA's libraries from the wheels that hold them; returns those that were found.

    The kernels of rapids-singlecell name them without saying where they are, as cuML's import
    would have loaded them by then.
    """
    found = []
    nvidia = importlib.util.find_spec("nvidia")
    folders = [Path(f) for f in (nvidia.submodule_search_locations or ())] if nvidia else []
    for name in _LIBRARIES:
        for path in (p for f in folders for p in f.glob(f"*/lib/{name}")):
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            found.append(str(path))
            break
    return found


def stubbed() -> list[str]:
    """The packages for which a stand-in is in place."""
    return sorted(ROOTS) if any(isinstance(f, _Finder) for f in sys.meta_path) else []


def install() -> None:
    """Put stand-ins in place of those packages that are not installed."""
    ROOTS.difference_update({root for root in ROOTS if PathFinder.find_spec(root)})
    sys.meta_path.append(_Finder())
