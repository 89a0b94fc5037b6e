"""Growth, as scikit-image grows the whole array, whatever the blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refined import expanded
from scipy import ndimage
from skimage.segmentation import expand_labels
from worlds import confluent, disks

from cytopave.engine.boxes import Box
from cytopave.engine.refine.expand import expand, reach

if TYPE_CHECKING:
    from collections.abc import Sequence


def by_blocks(
    labels: np.ndarray, distance: float, sizes: Sequence[float], step: tuple[int, ...]
) -> np.ndarray:
    whole, out = Box.of(labels.shape), np.empty_like(labels)
    for block in whole.blocks(step):
        window = block.grow(reach(distance, sizes)).intersect(whole)
        grown = expand(labels[window.slices], distance, sizes)
        out[block.slices] = grown[block.within(window)]
    return out


@given(st.data())
@settings(max_examples=200)
def test_any_labels_in_any_blocks(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 3))
    shape = tuple(data.draw(st.integers(1, 15 if n == 2 else 7)) for _ in range(n))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    labels = rng.integers(1, 20, shape).astype(np.uint64) << data.draw(st.sampled_from([0, 40]))
    labels[rng.random(shape) > data.draw(st.floats(0, 0.4))] = 0
    pixel = st.sampled_from([1.0, 0.5, 2.0, 0.1, 0.3, 0.1625])
    sizes = tuple(data.draw(pixel) for _ in range(n)) if data.draw(st.booleans()) else (1.0,) * n
    distance = data.draw(st.sampled_from([0.5, 0.9, 1.0, 2**0.5, 2.0, 3.0, 5.0]))
    step = tuple(data.draw(st.integers(1, s)) for s in shape)
    wanted = expanded(labels, distance, sizes)
    np.testing.assert_array_equal(expand(labels, distance, sizes), wanted)
    np.testing.assert_array_equal(by_blocks(labels, distance, sizes, step), wanted)


@pytest.mark.parametrize(
    ("labels", "sizes"),
    [
        (disks((150, 140), radius=8, pitch=24), (1.0, 1.0)),
        (disks((12, 60, 60), radius=6, pitch=16), (1.0, 1.0, 1.0)),
        (disks((12, 60, 60), radius=6, pitch=16), (2.0, 0.5, 0.5)),
        (confluent((120, 130), pitch=20, gap=1), (0.5, 0.25)),
    ],
)
@pytest.mark.parametrize("distance", [1.0, 4.0, 9.0])
def test_scikit_image_says_the_same_but_where_it_leaves_it_open(
    labels: np.ndarray, sizes: tuple[float, ...], distance: float
) -> None:
    labels = labels.astype(np.uint32)
    found = by_blocks(labels, distance, sizes, tuple(-(-n // 3) for n in labels.shape))
    wanted = expand_labels(labels, distance, spacing=sizes)
    np.testing.assert_array_equal(found > 0, wanted > 0)
    for place in np.argwhere(found != wanted):  # as near to both, and ours is the lower
        ours, theirs = found[tuple(place)], wanted[tuple(place)]
        away = [_distance(labels == i, tuple(place), sizes) for i in (ours, theirs)]
        assert away[0] == pytest.approx(away[1], rel=1e-12)
        assert ours < theirs
    assert (found != labels).any()


def _distance(own: np.ndarray, place: tuple[int, ...], sizes: Sequence[float]) -> float:
    return float(ndimage.distance_transform_edt(~own, sampling=sizes)[place])


def test_the_lowest_id_wins_a_tie() -> None:
    labels = np.array([[9, 0, 4, 0, 7], [0, 0, 0, 0, 0]], np.uint32)
    assert expand(labels, 1, (1, 1)).tolist() == [[9, 4, 4, 4, 7], [9, 0, 4, 0, 7]]
    assert expand(labels, 2**0.5, (1, 1)).tolist() == [[9, 4, 4, 4, 7], [9, 4, 4, 4, 7]]


def test_nothing_to_grow_into_or_from() -> None:
    for labels in (np.zeros((5, 6), np.uint32), np.full((5, 6), 3, np.uint32)):
        np.testing.assert_array_equal(expand(labels, 4, (1, 1)), labels)
