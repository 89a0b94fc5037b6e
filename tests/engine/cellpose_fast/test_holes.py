from __future__ import annotations

import numpy as np
from hollow import filled, listed
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import ndimage

images = arrays.arrays(
    np.int64, st.tuples(st.integers(1, 9), st.integers(1, 9)), elements=st.integers(0, 3)
)


@given(images)
def test_every_object_gets_what_it_encloses(labels: np.ndarray) -> None:
    ids = np.unique(labels[labels > 0])
    found = filled(labels)
    solid = {k: ndimage.binary_fill_holes(labels == k) for k in ids}
    for number, k in enumerate(ids, 1):
        # what an object encloses may be lost to another that encloses it too, and no more
        rest = [solid[j] for j in ids if j != k]
        others = np.any([*rest, np.zeros(labels.shape, bool)], axis=0)
        np.testing.assert_array_equal((found == number) | (solid[k] & others), solid[k])
    np.testing.assert_array_equal(found > 0, np.any([*solid.values(), labels > 0], axis=0))


def test_of_objects_in_each_other_the_outermost_wins() -> None:
    labels = np.zeros((11, 11), np.int64)
    for number, margin in ((2, 0), (1, 2), (3, 4)):
        labels[margin : 11 - margin, margin : 11 - margin] = number
        labels[margin + 1 : 10 - margin, margin + 1 : 10 - margin] = 0
    assert (filled(labels) == 2).all()


def test_a_bay_and_the_border_are_no_holes() -> None:
    labels = np.array([[1, 0, 1, 1], [1, 0, 0, 1], [1, 1, 1, 1]])
    np.testing.assert_array_equal(filled(labels), labels)


@given(images)
def test_an_object_without_gaps_has_no_hole(labels: np.ndarray) -> None:
    objects = listed(labels)
    for k, hollow in zip(np.unique(labels[labels > 0]), objects.hollow().tolist(), strict=True):
        own = labels == k
        assert hollow or (ndimage.binary_fill_holes(own) == own).all()
