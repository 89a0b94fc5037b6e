"""Import cytopave from a checkout that is not installed: on machines with a GPU.

Importing this module, before any of cytopave, is all it takes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import tomllib
import types
from pathlib import Path


def provide(root: Path | None = None) -> None:
    """Make ``import cytopave.engine`` work, by the folders of this checkout if need be.

    Args:
        root: Folder that holds ``engine``; by default the one above this file's.
    """
    if importlib.util.find_spec("cytopave") is None:
        root = root or Path(__file__).resolve().parents[1]
        package = types.ModuleType("cytopave")
        package.__path__ = [str(root)]
        sys.modules["cytopave"] = package
        _describe(root)


def _describe(root: Path) -> None:
    """Metadata as an installation has them: what is written says which version wrote it."""
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    site = Path(tempfile.gettempdir()) / f"cytopave-unpacked-{os.getuid()}"
    target = site / f"cytopave-{version}.dist-info" / "METADATA"
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"METADATA.{os.getpid()}")
    part.write_text(f"Metadata-Version: 2.1\nName: cytopave\nVersion: {version}\n")
    part.replace(target)  # workers may read it while another begins
    sys.path.append(str(site))


provide()
