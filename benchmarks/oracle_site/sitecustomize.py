"""Makes every Cellpose 4 network of this process an oracle: Python imports this when it starts.

With this folder on ``PYTHONPATH``, the flow, its workers and the rivals all run the same thing:
the forward pass of `cellpose.vit.CPSAM` computes what it always does, at its real cost, and then
answers with what it was shown. Nothing else is touched: all other code is what users run.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.abc import MetaPathFinder
from typing import Any

_MODULE = "cellpose.vit"


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = spec and spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _ask(module.CPSAM)

        loader.exec_module = exec_module
        return spec


def _ask(network: Any) -> None:
    forward = network.forward

    def answer(self: Any, x: Any) -> tuple[Any, Any]:
        y, style = forward(self, x)
        return x + 0 * y, style

    network.forward = answer


sys.meta_path.insert(0, _Finder())
