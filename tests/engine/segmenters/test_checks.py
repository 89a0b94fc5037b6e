from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cytopave.engine.errors import LabelError
from cytopave.engine.segmenters.checks import checked

ZEROS = np.zeros((2, 3), np.int32)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "nothing"),
        ((ZEROS, ZEROS), "a tuple of 2"),
        ([[0, 1, 2], [0, 0, 0]], "a list of 2"),
        (7, "a builtins.int"),
        (ZEROS.astype(bool), "bool.*label its connected components"),
        (ZEROS.astype(np.float32), "float32.*must be integers"),
        (ZEROS.astype(complex), "must be integers"),
        (ZEROS.astype(object), "object.*must be integers"),
        (ZEROS.T, r"\(3, 2\) for a tile of spatial shape \(2, 3\)"),
        (ZEROS[np.newaxis], r"\(1, 2, 3\).*no channel axis"),
        (ZEROS - 5, r"negative ids \(down to -5\)"),
        (ZEROS.astype(np.uint64) + np.uint64(2**63), "9223372036854775808.*64 bits"),
    ],
)
def test_what_is_not_a_label_image_is_refused(labels: Any, message: str) -> None:
    with pytest.raises(LabelError, match=f"^my:function returned .*{message}"):
        checked(labels, (2, 3), "my:function")


@given(
    hnp.arrays(
        st.sampled_from(["u1", "i2", ">i4", "<u4", ">i8", "u8"]),
        hnp.array_shapes(min_dims=2, max_dims=3, max_side=5),
        elements=st.integers(0, 6),
    ),
    st.booleans(),
)
def test_ids_are_dense_in_raster_order(labels: np.ndarray, fortran: bool) -> None:
    if fortran:
        labels = np.asfortranarray(labels)
    before = labels.copy()
    dense, count = checked(labels, labels.shape, "f")
    numbers: dict[int, int] = {0: 0}
    expected = [numbers.setdefault(int(v), len(numbers)) for v in labels.ravel(order="C")]
    assert dense.ravel().tolist() == expected
    assert count == len(numbers) - 1
    assert dense.dtype == np.uint32
    assert dense.flags.c_contiguous
    np.testing.assert_array_equal(labels, before)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_the_largest_ids_fit(dtype: str) -> None:
    labels = np.array([[2**63 - 1, 0, 5]], dtype)
    dense, count = checked(labels, (1, 3), "f")
    assert dense.tolist() == [[1, 0, 2]]
    assert count == 2


def test_an_empty_window() -> None:
    dense, count = checked(np.zeros((0, 4), int), (0, 4), "f")
    assert dense.shape == (0, 4)
    assert count == 0


def test_masked_arrays_are_refused() -> None:
    labels = np.ma.masked_array([[-5, 0], [2, 2]], mask=[[True, False], [False, False]])
    with pytest.raises(LabelError, match=r"return labels\.filled\(0\)"):
        checked(labels, (2, 2), "the function")
