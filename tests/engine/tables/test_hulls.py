"""Convex areas against scikit-image on the whole array: the same number, pixel for pixel."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from skimage.measure import regionprops_table

from cytopave.engine.boxes import Box
from cytopave.engine.errors import LabelError
from cytopave.engine.tables import hulls
from cytopave.engine.tables.hulls import POINT, convex_pixels, join_rows
from cytopave.engine.tables.moments import measure_block

if TYPE_CHECKING:
    from collections.abc import Sequence


def parts(
    labels: np.ndarray, step: Sequence[int], start: tuple[int, int] = (0, 0), time: int = 0
) -> list[np.ndarray]:
    """The rows of each block, the last block first."""
    boxes = Box.of(labels.shape).blocks(tuple(step))
    found = [
        measure_block(
            labels[b.slices],
            np.zeros((1, *b.shape), np.uint8),
            start=(start[0] + b.start[0], start[1] + b.start[1]),
            time=time,
        ).points
        for b in boxes
    ]
    return found[::-1]


def convex(labels: np.ndarray, step: Sequence[int]) -> list[int]:
    found: list[int] = convex_pixels(join_rows(np.concatenate(parts(labels, step)))).tolist()
    return found


def truth(labels: np.ndarray) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of scikit-image, about its own arguments
        found: list[int] = regionprops_table(labels, properties=("area_convex",))[
            "area_convex"
        ].tolist()
    return found


@settings(max_examples=80)
@given(data=st.data())
def test_any_labels_in_any_blocks(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12))
    labels = data.draw(hnp.arrays(np.int32, shape, elements=st.integers(0, 3), fill=st.just(0)))
    step = data.draw(st.tuples(*(st.integers(1, n) for n in shape)))
    assert convex(labels, step) == (truth(labels) if labels.any() else [])


@pytest.mark.parametrize("seed", range(4))
def test_large_ragged_objects(seed: int) -> None:
    """Scattered pixels: corners anywhere, and edges of every slope."""
    rng = np.random.default_rng(seed)
    y, x = np.indices((300, 260))
    labels = np.where(rng.random(y.shape) < 0.002, 1 + (y + 2 * x) // 200, 0)
    assert convex(labels, (64, 50)) == truth(labels)


@pytest.mark.parametrize("world", [worlds.rings((200, 200)), worlds.rods((250, 200), length=180)])
def test_objects_over_many_blocks_in_small_groups(
    world: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = convex(world, world.shape)
    monkeypatch.setattr(hulls, "_AT_ONCE", 50)
    assert convex(world, (16, 16)) == whole == truth(world)


def test_of_a_convex_object_only_corners_are_kept() -> None:
    """So that the files of a run grow slower than its objects."""
    y, x = np.indices((2001, 2001)) - 1000
    points = join_rows(np.concatenate(parts((y**2 + x**2 < 990**2).astype(np.uint8), (500, 500))))
    assert len(points) < 400
    square = np.ones((1000, 1000), np.uint8)
    assert len(join_rows(np.concatenate(parts(square, (100, 100))))) == 2


def test_far_from_the_origin_and_apart_in_time() -> None:
    labels = worlds.rods((120, 100), length=70)
    near = convex(labels, labels.shape)
    far = parts(labels, (50, 40), start=(2 * 10**9, 2 * 10**9), time=3)
    points = join_rows(np.concatenate([*far, *parts(labels, (120, 100), time=1)]))
    assert convex_pixels(points).tolist() == near + near
    with pytest.raises(LabelError, match="up to 2147483647 pixels along an axis"):
        parts(labels, (120, 100), start=(0, 2**31))


def test_nothing() -> None:
    assert convex_pixels(join_rows(np.empty(0, POINT))).tolist() == []
    stack = measure_block(np.ones((2, 3, 4), int), np.ones((1, 2, 3, 4)), start=(0, 0, 0))
    assert len(stack.points) == 0
