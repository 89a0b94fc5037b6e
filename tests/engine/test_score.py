from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cytopave.engine.errors import LabelError
from cytopave.engine.score import Matches, average_precision, match

LABELS = hnp.arrays(np.uint8, (4, 5), elements=st.integers(0, 4))


def test_counts_of_a_worked_example() -> None:
    truth = np.array([[1, 1, 1, 0, 2, 2, 0, 3]])
    prediction = np.array([[5, 5, 0, 0, 7, 8, 9, 3]])
    # 5 covers two thirds of 1, 7 and 8 halve 2, 9 is nothing, 3 is exact
    assert match(truth, prediction, 0.5) == Matches(matched=3, spurious=2, missed=0)
    assert match(truth, prediction, 0.6) == Matches(matched=2, spurious=3, missed=1)
    assert match(truth, prediction, 1.0) == Matches(matched=1, spurious=4, missed=2)
    assert average_precision(truth, prediction, 0.6) == 2 / 6


def test_counts_of_several_images_are_pooled() -> None:
    one, empty = np.array([[1, 1]]), np.array([[0, 0]])
    assert average_precision([one, one, one], [one, empty, one]) == 2 / 3
    assert average_precision(empty, empty) == 1


def test_background_is_no_object_and_need_not_be_there() -> None:
    whole = np.ones((3, 3), int)
    assert match(whole, whole * 9) == Matches(1, 0, 0)
    assert match(whole, whole * 0) == Matches(0, 0, 1)
    assert match(whole * 0, whole) == Matches(0, 1, 0)


@given(LABELS, LABELS, st.sampled_from([0.2, 0.5, 0.75]))
def test_as_many_pairs_as_there_can_be(
    truth: np.ndarray, prediction: np.ndarray, threshold: float
) -> None:
    true_ids = [i for i in np.unique(truth) if i]
    ids = [i for i in np.unique(prediction) if i]

    def good(a: int, b: int) -> bool:
        both = ((truth == a) & (prediction == b)).sum()
        return bool(both >= threshold * ((truth == a) | (prediction == b)).sum())

    small, large = sorted((true_ids, ids), key=len)
    swap = small is not true_ids
    best = max(
        sum(good(b, a) if swap else good(a, b) for a, b in zip(small, chosen, strict=True))
        for chosen in itertools.permutations(large, len(small))
    )
    assert match(truth, prediction, threshold) == Matches(
        best, len(ids) - best, len(true_ids) - best
    )


def test_other_shapes_are_refused() -> None:
    with pytest.raises(LabelError, match="same region"):
        match(np.zeros((2, 2), int), np.zeros((2, 3), int))
