"""What of the provider rapids can be tested without a GPU."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

from cytopave.engine.atlas.providers import rapids

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


def test_chosen_columns_ascend_in_every_row() -> None:
    """As the covariance there takes for granted; cupy's own choice leaves them in any order."""
    dense = np.random.default_rng(0).poisson(0.5, (30, 12)).astype(np.float32)
    matrix = sparse.csr_matrix(dense)
    for row in range(30):  # each row backwards
        part = slice(matrix.indptr[row], matrix.indptr[row + 1])
        matrix.indices[part] = matrix.indices[part][::-1].copy()
        matrix.data[part] = matrix.data[part][::-1].copy()
    matrix.has_sorted_indices = False
    x = da.from_array(np.arange(3)[:, None], chunks=(1, 1)).map_blocks(
        lambda block: matrix[10 * block[0, 0] : 10 * block[0, 0] + 10],
        chunks=((10,) * 3, (12,)),
        dtype=np.float32,
        meta=sparse.csr_matrix((0, 0), dtype=np.float32),
    )
    genes = np.arange(12) % 3 > 0
    found = rapids.Rapids().select(x, genes)
    assert found.chunks == ((10, 10, 10), (8,))
    blocks = [found.blocks[i].compute(scheduler="synchronous") for i in range(3)]
    assert [block.has_sorted_indices for block in blocks] == [True] * 3
    assert all((np.diff(block[r].indices) > 0).all() for block in blocks for r in range(10))
    np.testing.assert_array_equal(sparse.vstack(blocks).toarray(), dense[:, genes])
    assert not matrix.has_sorted_indices  # the block that was given is as it was


@pytest.mark.skipif(
    importlib.util.find_spec("rapids_singlecell") is None
    or importlib.util.find_spec("cupy") is None,
    reason="rapids-singlecell and cupy are not installed",
)
def test_calls_fit_the_library() -> None:
    """It imports without a GPU, and without cuML and the like by stand-ins."""
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
