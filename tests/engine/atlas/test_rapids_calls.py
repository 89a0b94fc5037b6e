"""Every call of the provider rapids fits the library's signatures, where that is installed.

It imports without a GPU, and without cuML and the like by the stand-ins of benchmarks/rapids_site.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cytopave.engine.atlas.providers import rapids

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("rapids_singlecell") is None
    or importlib.util.find_spec("cupy") is None,
    reason="rapids-singlecell and cupy are not installed",
)
SITE = Path(__file__).parents[3] / "benchmarks" / "rapids_site"


def calls() -> list[tuple[str, int, list[str]]]:
    """Of ``rsc.``: the function's name, how many arguments by place, and the names of the rest."""
    found = []
    for node in ast.walk(ast.parse(inspect.getsource(rapids))):
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)).startswith("rsc."):
            names = [str(k.arg) for k in node.keywords]
            found.append((name.removeprefix("rsc."), len(node.args), names))
    return found


def bind(found: list[tuple[str, int, list[str]]]) -> None:
    """Raise a TypeError for a call that the library would refuse."""
    import rapids_singlecell

    for name, places, names in found:
        function: Any = rapids_singlecell
        for part in name.split("."):
            function = getattr(function, part)
        inspect.signature(function).bind(*[None] * places, **dict.fromkeys(names))


def test_calls_fit_the_library() -> None:
    found = calls()
    assert {name for name, _, _ in found} == {
        "get.X_to_GPU",
        *(f"pp.{n}" for n in ("calculate_qc_metrics", "normalize_total", "log1p")),
        *(f"pp.{n}" for n in ("highly_variable_genes", "regress_out", "scale", "pca", "neighbors")),
        *(f"tl.{n}" for n in ("umap", "leiden", "rank_genes_groups")),
    }
    code = f"{inspect.getsource(bind)}\nimport inspect\nfrom typing import Any\nbind({found!r})"
    done = subprocess.run(
        [sys.executable, "-c", "from __future__ import annotations\n" + code],
        env={"PYTHONPATH": str(SITE), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
