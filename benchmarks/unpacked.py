"""Import cytopave from a checkout that is not installed: machines with a GPU are lent bare.

Importing this module, before any of cytopave, is all it takes.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path


def provide(root: Path | None = None) -> None:
    """Make ``import cytopave.engine`` work, by the folders of this checkout if need be.

    Args:
        root: Folder that holds ``engine``; by default the one above this file's.
    """
    if importlib.util.find_spec("cytopave") is None:
        package = types.ModuleType("cytopave")
        package.__path__ = [str(root or Path(__file__).resolve().parents[1])]
        sys.modules["cytopave"] = package


provide()
