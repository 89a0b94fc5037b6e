from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("scanpy")

import scanpy as sc
from atlases import annotated, simulate
from scipy import sparse

from cytopave.engine.atlas.qc import is_whole, marked_genes, match_names, metrics, tally


def by_blocks(x: Any, marks: dict[str, np.ndarray], rows: int) -> Any:
    groups = np.array([*marks.values()], bool).reshape(len(marks), x.shape[1])
    tallies = [tally(x[i : i + rows], groups) for i in range(0, x.shape[0], rows)]
    return metrics(tallies, list(marks))


@pytest.mark.parametrize("rows", [1, 7, 250, 1000])
@pytest.mark.parametrize("dense", [False, True])
def test_the_columns_are_those_of_scanpy_to_the_last_bit(rows: int, dense: bool) -> None:
    x, _ = simulate(250, 120)
    x[3] = 0  # a cell without counts
    x.eliminate_zeros()
    adata = annotated(x.copy())
    adata.var["mt"] = adata.var_names.str.startswith("MT-")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sc.pp.calculate_qc_metrics(adata, qc_vars=["mt"], percent_top=None, inplace=True)
    marks = {"mt": adata.var["mt"].to_numpy()}
    obs, var = by_blocks(x.toarray() if dense else x, marks, rows)
    assert set(obs) == set(adata.obs) - {"batch"}
    assert set(var) == set(adata.var) - {"mt"}
    for mine, theirs in ((obs, adata.obs), (var, adata.var)):
        for name in mine:
            np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
            assert mine[name].dtype == theirs[name].dtype


def test_zeros_that_are_stored_are_not_found_genes() -> None:
    x = sparse.csr_matrix(np.array([[1.0, 2.0, 0.0]], np.float32))
    x.data[0] = 0
    obs, var = by_blocks(x, {}, 1)
    assert obs["n_genes_by_counts"].tolist() == [1]
    assert var["n_cells_by_counts"].tolist() == [0, 1, 0]


def test_sums_stay_exact_where_float32_would_not() -> None:
    """A gene with more counts than float32 can tell apart: 2^24 and one."""
    x = sparse.csr_matrix(np.array([[2.0**24], [1.0], [1.0]], np.float32))
    _, var = by_blocks(x, {}, 1)
    assert var["total_counts"].tolist() == [2.0**24 + 2]


def test_groups_are_patterns_of_names() -> None:
    names = ["MT-CO1", "mt-Nd1", "RPS3", "AMT-1"]
    assert marked_genes(names, {"mt": ["MT-*", "mt-*"]})["mt"].tolist() == [
        True,
        True,
        False,
        False,
    ]
    assert match_names(names, ["RP[SL]*"]).tolist() == [False, False, True, False]


def test_whole_numbers_are_told_from_others() -> None:
    assert is_whole(sparse.csr_matrix(np.array([[0.0, 3.0]])))
    assert not is_whole(np.array([[0.0, 3.5]]))
