from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hollow import filled, listed
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import ndimage

from cytopave.engine.cellpose_fast import voids

if TYPE_CHECKING:
    import pytest

# few free voxels, so that there are voids
stacks = arrays.arrays(
    np.int64,
    st.tuples(*[st.integers(1, 5)] * 3),
    elements=st.sampled_from([0, 1, 1, 1, 2, 2]),
)


@given(stacks)
def test_every_object_gets_what_it_encloses(labels: np.ndarray) -> None:
    ids = np.unique(labels[labels > 0])
    found = filled(labels)
    solid = {k: ndimage.binary_fill_holes(labels == k) for k in ids}
    for number, k in enumerate(ids, 1):
        rest = [solid[j] for j in ids if j != k]
        others = np.any([*rest, np.zeros(labels.shape, bool)], axis=0)
        np.testing.assert_array_equal((found == number) | (solid[k] & others), solid[k])
    np.testing.assert_array_equal(found > 0, np.any([*solid.values(), labels > 0], axis=0))


@given(stacks)
def test_an_object_without_gaps_has_no_void(labels: np.ndarray) -> None:
    for k, hollow in zip(
        np.unique(labels[labels > 0]), listed(labels).hollow().tolist(), strict=True
    ):
        own = labels == k
        assert hollow or (ndimage.binary_fill_holes(own) == own).all()


def test_a_ball_is_not_searched() -> None:
    z, y, x = np.indices((15, 15, 15)) - 7
    ball = (z**2 + y**2 + x**2 <= 49).astype(np.int64)
    assert listed(ball).hollow().tolist() == [False]
    ball[7, 7, 7] = 0
    assert listed(ball).hollow().tolist() == [True]
    assert filled(ball)[7, 7, 7] == 1


def shells() -> np.ndarray:
    """Boxes in each other, and others beside them, each hollow."""
    labels = np.zeros((13, 13, 40), np.int64)
    for number, margin in ((2, 0), (1, 2), (3, 4)):
        inner = slice(margin, 13 - margin)
        labels[inner, inner, inner] = number
        inner = slice(margin + 1, 12 - margin)
        labels[inner, inner, inner] = 0
    for number, left in ((4, 15), (5, 25)):
        labels[2:9, 3:9, left : left + 7] = number
        labels[4:6, 5:7, left + 2 : left + 4] = 0
    return labels


def test_of_objects_in_each_other_the_outermost_wins() -> None:
    found = filled(shells())
    assert (found[:, :, :13] == 2).all()
    assert (found[2:9, 3:9, 15:22] == 4).all()
    assert (found[2:9, 3:9, 25:32] == 5).all()


def test_how_many_are_searched_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = filled(shells())
    monkeypatch.setattr(voids, "_AT_ONCE", 1)
    np.testing.assert_array_equal(filled(shells()), before)


def test_a_tunnel_and_the_border_are_no_voids() -> None:
    labels = np.ones((5, 5, 5), np.int64)
    labels[2, 2, :] = 0
    np.testing.assert_array_equal(filled(labels), labels)
    labels = np.ones((5, 5, 5), np.int64)
    labels[0, 2, 2] = 0
    np.testing.assert_array_equal(filled(labels), labels)
