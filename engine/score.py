"""How well predicted objects match true ones: average precision at an IoU threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cytopave.engine.errors import LabelError


@dataclass(frozen=True, slots=True)
class Matches:
    """Counts of matched and unmatched objects; add those of several images to pool them.

    Attributes:
        matched: Pairs of a true and a predicted object (true positives).
        spurious: Predicted objects without a partner (false positives).
        missed: True objects without a partner (false negatives).
    """

    matched: int
    spurious: int
    missed: int

    def __add__(self, other: Matches) -> Matches:
        return Matches(
            self.matched + other.matched,
            self.spurious + other.spurious,
            self.missed + other.missed,
        )

    @property
    def average_precision(self) -> float:
        """Matched over all objects of either side; 1 where there are none at all.

        The measure of the 2018 Data Science Bowl, StarDist and Cellpose.
        """
        total = self.matched + self.spurious + self.missed
        return self.matched / total if total else 1.0


def match(truth: np.ndarray, prediction: np.ndarray, threshold: float = 0.5) -> Matches:
    """Pair objects one to one where their intersection over union reaches a threshold.

    As many pairs as possible are formed. At 0.5 and above an object has one candidate, unless two
    share it exactly in halves; below, the largest set of pairs is found.

    Args:
        truth: True labels, any integers, 0 being the background.
        prediction: Predicted labels of the same shape.
        threshold: Smallest intersection over union of a pair, above 0 and at most 1.

    Raises:
        LabelError: The shapes differ.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    if truth.shape != prediction.shape:
        raise LabelError(
            f"truth of shape {truth.shape} cannot be compared with a prediction of "
            f"{prediction.shape}: give label images of the same region"
        )
    rows, cols, shared, true_sizes, sizes = _overlaps(truth, prediction)
    union = true_sizes[rows] + sizes[cols] - shared
    good = shared >= threshold * union
    pairs = coo_array(
        (np.ones(good.sum(), np.int8), (rows[good], cols[good])), (len(true_sizes), len(sizes))
    ).tocsr()
    matched = int((maximum_bipartite_matching(pairs, perm_type="column") >= 0).sum())
    return Matches(matched, len(sizes) - matched, len(true_sizes) - matched)


def average_precision(
    truth: np.ndarray | Sequence[np.ndarray],
    prediction: np.ndarray | Sequence[np.ndarray],
    threshold: float = 0.5,
) -> float:
    """Average precision of one image, or of several with their counts pooled.

    Args:
        truth: True labels of one image, or a sequence of such.
        prediction: Predicted labels, alike.
        threshold: Smallest intersection over union of a pair.

    Raises:
        LabelError: The shapes differ.
    """
    if isinstance(truth, np.ndarray) and isinstance(prediction, np.ndarray):
        return match(truth, prediction, threshold).average_precision
    total = Matches(0, 0, 0)
    for one, other in zip(truth, prediction, strict=True):
        total += match(one, other, threshold)
    return total.average_precision


def _overlaps(truth: np.ndarray, prediction: np.ndarray) -> tuple[np.ndarray, ...]:
    """Overlapping pairs (index, index, pixels) and the pixels of every object of either side."""
    _, rows, true_sizes = np.unique(truth, return_inverse=True, return_counts=True)
    _, cols, sizes = np.unique(prediction, return_inverse=True, return_counts=True)
    keys, shared = np.unique(rows.ravel() * len(sizes) + cols.ravel(), return_counts=True)
    rows, cols = np.divmod(keys, len(sizes))
    first, second = int((truth == 0).any()), int((prediction == 0).any())
    inside = (rows >= first) & (cols >= second)
    return (
        rows[inside] - first,
        cols[inside] - second,
        shared[inside],
        true_sizes[first:],
        sizes[second:],
    )
