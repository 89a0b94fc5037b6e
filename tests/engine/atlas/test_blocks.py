from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.atlas import blocks
from cytopave.engine.atlas.store import MAX_NNZ
from cytopave.engine.errors import AtlasError, PlanError


def ends_of(*lengths: int) -> np.ndarray:
    return np.cumsum([0, *lengths], dtype=np.int64)


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=80), st.integers(1, 100), st.integers(50, 200)
)
def test_no_block_is_heavier_than_allowed(lengths: list[int], rows: int, nnz: int) -> None:
    ends = ends_of(*lengths)
    found = blocks.plan_rows(ends, None, rows=rows, nnz=nnz)
    pieces = [sum(lengths[a:b]) for a, b in blocks.bounds(len(lengths), found)]
    assert max(pieces) <= nnz
    assert max(pieces) == blocks.heaviest(ends, found)
    assert found <= rows
    assert sum(pieces) == sum(lengths)


def test_a_block_over_the_limit_of_32_bits_is_refused_with_one_that_fits() -> None:
    ends = np.arange(11, dtype=np.int64) * 400_000_000
    with pytest.raises(PlanError, match=r"10 rows holds up to 4000000000 .* at most 5"):
        blocks.plan_rows(ends, 10)
    assert blocks.plan_rows(ends, 5) == 5
    assert blocks.heaviest(ends, 5) <= MAX_NNZ


def test_a_row_over_the_limit_cannot_be_helped() -> None:
    with pytest.raises(AtlasError, match="a row of X"):
        blocks.plan_rows(ends_of(2**31), None)


def test_dense_matrices_that_do_not_fit_are_refused_with_what_else_can_be_done() -> None:
    gib = 2**30
    with pytest.raises(PlanError) as error:
        blocks.check_dense(rows=25_000, n_cells=10**6, genes=5000, itemsize=8, have=2 * gib)
    message = str(error.value)
    assert "37.3 GiB in all" in message
    assert "3.7 GiB on a worker" in message
    assert "scale.zero_center=false" in message
    fits = int(message.split("blocks of ")[1].split()[0])
    blocks.check_dense(rows=fits, n_cells=10**6, genes=5000, itemsize=8, have=2 * gib)
    with pytest.raises(PlanError):
        blocks.check_dense(rows=fits + 1, n_cells=10**6, genes=5000, itemsize=8, have=2 * gib)


def test_a_graph_that_does_not_fit_one_process_is_refused() -> None:
    blocks.check_graph(n_cells=100_000, n_neighbors=15, n_comps=50, have=2**30)
    with pytest.raises(PlanError, match=r"15 neighbours of 11000000 cells needs about 18\.\d GiB"):
        blocks.check_graph(n_cells=11_000_000, n_neighbors=15, n_comps=50, have=2**33)


@pytest.mark.parametrize(
    ("n_cells", "nnz", "workers", "rows"),
    [
        (1000, 10_000, 1, 1000),
        (1000, 10_000, 3, 334),
        (1_000_000, 10**8, 1, 250_000),  # four blocks of fewer than 262,144 rows
        (1_000_000, 10**8, 8, 125_000),
        (1 << 18, 1, 1, 1 << 18),
        ((1 << 18) + 1, 1, 1, (1 << 17) + 1),
        (100_000, 5 * 10**9, 1, 20_000),  # five blocks of 10^9 values
        (2, 2, 8, 1),
    ],
)
def test_shares_are_equal_and_bounded(n_cells: int, nnz: int, workers: int, rows: int) -> None:
    assert blocks.share_rows(n_cells, nnz, workers) == rows
