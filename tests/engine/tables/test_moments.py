"""Sums taken block by block, against scikit-image on the whole array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from skimage.measure import regionprops_table

from cytopave.engine import samples
from cytopave.engine.boxes import Box
from cytopave.engine.errors import LabelError
from cytopave.engine.tables.columns import Schema
from cytopave.engine.tables.combine import combine, whole
from cytopave.engine.tables.moments import measure_block, row_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SAME = ("label", "num_pixels", "area", "equivalent_diameter_area", "axis_major_length",
        "axis_minor_length", "eccentricity", "solidity", "centroid", "bbox", "intensity_mean",
        "intensity_min", "intensity_max", "intensity_std")  # fmt: skip
FLAT = ("eccentricity", "solidity")
OURS = {"num_pixels": "n_pixels", "equivalent_diameter_area": "equivalent_diameter"}


def schema(shape: Sequence[int], scale: Sequence[float], channels: int) -> Schema:
    axes = "zyx"[-len(shape) :]
    return Schema(
        axes=axes,
        shape=tuple(shape),
        scale=tuple(scale),
        translation=(0.0,) * len(shape),
        units=(None,) * len(shape),
        channels=tuple("abcdef"[:channels]),
        id_type="int64",
        timed=False,
    )


def in_blocks(labels: np.ndarray, pixels: np.ndarray, step: Sequence[int]) -> np.ndarray:
    """Measure block by block and join, in an order that is not the blocks'."""
    parts = [
        measure_block(labels[box.slices], pixels[(slice(None), *box.slices)], start=box.start)
        for box in Box.of(labels.shape).blocks(tuple(step))
    ]
    return whole(*map(np.concatenate, zip(*parts[::-1], strict=True)))


def truth(labels: np.ndarray, pixels: np.ndarray, scale: Sequence[float]) -> dict[str, np.ndarray]:
    """The whole array by scikit-image, under our names. Places are in its units."""
    wanted = [p for p in SAME if labels.ndim == 2 or p not in FLAT]
    last = np.moveaxis(pixels, 0, -1).astype(np.float64)  # as float32 it would round more than we
    found = regionprops_table(labels, last, properties=wanted, spacing=tuple(scale))
    out: dict[str, np.ndarray] = {}
    for name, values in found.items():
        stem, _, number = name.partition("-")
        stem = OURS.get(stem, stem)
        axes = "zyx"[-labels.ndim :]
        if stem == "centroid":
            stem = f"centroid_{axes[int(number)]}"
        elif stem == "bbox":
            axis, end = int(number) % labels.ndim, int(number) // labels.ndim
            stem = f"bbox_{axes[axis]}_{('min', 'max')[end]}_px"
        elif stem.startswith("intensity"):
            stem = f"{'abcdef'[int(number or 0)]}_{stem.removeprefix('intensity_')}"
        elif stem == "area" and labels.ndim == 3:
            stem = "volume"
        out[stem] = values
    return out


def check(
    labels: np.ndarray, pixels: np.ndarray, step: Sequence[int], scale: Sequence[float]
) -> None:
    rows = in_blocks(labels, pixels, step)
    table = schema(labels.shape, scale, len(pixels))
    found = table.obs(rows)
    found |= {n: v for (n, _, _), v in zip(table.features, table.intensities(rows).T, strict=True)}
    wanted = truth(labels, pixels, scale)
    assert set(wanted) <= set(found)
    for name, values in wanted.items():
        if values.dtype.kind in "iu":
            np.testing.assert_array_equal(found[name], values, err_msg=name)
            continue
        # Where the true value is 0, theirs and ours are what rounding left of the others.
        size = 1e-6 if name.startswith(("axis", "ecc")) else 1e-9
        size *= float(np.abs(pixels).max()) if name[1:2] == "_" else 1
        np.testing.assert_allclose(found[name], values, rtol=1e-10, atol=size, err_msg=name)
    for channel, plane in enumerate(pixels):
        kind: Any = np.float64 if plane.dtype.kind == "f" else object
        sums = [plane[labels == i].astype(kind).sum() for i in rows["label"]]
        rounded = 1e-12 if plane.dtype.kind == "f" else 0
        np.testing.assert_allclose(rows["total"][:, channel].astype(float),
                                   np.array(sums, float), rtol=rounded)  # fmt: skip


WORLDS = {
    "disks": worlds.disks((300, 280), radius=9, pitch=22),
    "confluent": worlds.confluent((200, 230), pitch=35),
    "rods over many blocks": worlds.rods((400, 300), length=300),
    "rings": worlds.rings((300, 300)),
    "bridges": worlds.bridges((200, 220)),
    "balls": worlds.disks((40, 90, 80), radius=8, pitch=20),
    "confluent stack": worlds.confluent((30, 60, 50), pitch=18),
}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "uint32", "float32", "float64"])
@pytest.mark.parametrize("world", WORLDS)
def test_blocks_equal_the_whole(world: str, dtype: str) -> None:
    labels = WORLDS[world]
    rng = np.random.default_rng(1)
    high = 2**16 if np.dtype(dtype).kind == "f" else np.iinfo(dtype).max
    pixels = rng.uniform(0, high, (2, *labels.shape)).astype(dtype)
    step = (7, 32, 32)[-labels.ndim :]
    check(labels, pixels, step, scale=(2.0, 0.5, 0.25)[-labels.ndim :])


@pytest.mark.parametrize("field", [samples.dsb2018, samples.stack3d])
def test_real_labels(field: Callable[[], samples.Field]) -> None:
    """Nuclei outlined by people, most of which lie in many blocks."""
    real = field()
    labels, pixels = real.masks.astype(np.int32), real.image[None]
    check(labels, pixels, (5, 13, 11)[-labels.ndim :], scale=(2.0, 0.7, 0.3)[-labels.ndim :])


def test_one_block_and_blocks_of_single_pixels() -> None:
    labels = worlds.confluent((24, 20), pitch=7)
    pixels = np.random.default_rng(2).integers(0, 9, (1, *labels.shape), np.int32)
    for step in (labels.shape, (1, 1), (1, 20), (24, 1), (5, 3)):
        check(labels, pixels, step, scale=(1, 1))


@settings(max_examples=60)
@given(data=st.data())
def test_any_labels_and_blocks(data: st.DataObject) -> None:
    shape = data.draw(hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=9))
    labels = data.draw(hnp.arrays(np.int32, shape, elements=st.integers(0, 4)))
    pixels = data.draw(hnp.arrays(np.uint16, (1, *shape)))
    step = data.draw(st.tuples(*(st.integers(1, n) for n in shape)))
    rows, whole = in_blocks(labels, pixels, step), in_blocks(labels, pixels, shape)
    for name in ("label", "n", "low", "high", "place", "total", "least", "most"):
        np.testing.assert_array_equal(rows[name], whole[name])
    np.testing.assert_allclose(rows["spread"], whole["spread"], atol=1e-12, rtol=1e-12)
    np.testing.assert_allclose(rows["power"], whole["power"], rtol=1e-12, atol=1e-4)
    for row in rows:
        places = np.argwhere(labels == row["label"])
        centred = places - places.mean(axis=0)
        moments = (centred.T @ centred)[np.triu_indices(labels.ndim)]
        np.testing.assert_allclose(row["spread"], moments, atol=1e-12)


def test_far_from_the_origin_nothing_is_lost() -> None:
    """Sums of squared places, or of squared bright pixels, would have no digits left."""
    labels = worlds.disks((60, 60), radius=9, pitch=22)
    flat = np.random.default_rng(3).normal(0, 1e-3, (1, *labels.shape))
    far = (10**9, 10**9)
    near = measure_block(labels, flat, start=(0, 0)).rows
    halves = [
        measure_block(labels[a:b], flat[:, a:b] + 1e6, start=(far[0] + a, far[1])).rows
        for a, b in ((0, 31), (31, 60))
    ]
    rows = combine(np.concatenate(halves))
    np.testing.assert_allclose(rows["spread"], near["spread"], rtol=1e-13, atol=1e-10)
    np.testing.assert_array_equal(rows["low"], near["low"] + 10**9)
    np.testing.assert_array_equal(rows["place"], near["place"])
    # 1e6 + noise is itself rounded to 1e-10.
    np.testing.assert_allclose(rows["power"], near["power"], rtol=1e-5)


def test_sums_of_integers_are_exact() -> None:
    labels = np.ones((1000, 1000), np.uint8)
    pixels = np.full((1, 1000, 1000), 2**32 - 1, np.uint32)
    pixels[0, 0, 0] -= 1
    rows = in_blocks(labels, pixels, (300, 400))
    assert rows["total"].tolist() == [[10**6 * (2**32 - 1) - 1]]


def test_booleans_and_64_bits() -> None:
    labels = np.array([[1, 1, 2]], np.uint64) * np.uint64(2**63)
    labels[0, 2] = 5
    rows = measure_block(labels, np.array([[[True, False, True]]]), start=(0, 0)).rows
    assert rows["label"].tolist() == [5, 2**63]
    assert rows["total"].tolist() == [[1], [1]]
    assert rows["most"].tolist() == [[1], [1]]
    rows = measure_block(labels, np.array([[[2**40, 1, 7]]], np.int64), start=(0, 0)).rows
    assert rows["total"].tolist() == [[7.0], [2.0**40 + 1]]
    table = schema((1, 3), (1, 1), 1).model_copy(update={"id_type": "uint64"})
    ids = table.obs(whole(*measure_block(labels, labels[None], start=(0, 0))))["label"]
    assert ids.dtype == np.uint64
    assert ids.tolist() == [5, 2**63]


def test_not_a_number_and_infinity_carry_through() -> None:
    labels = np.array([[1, 1, 2, 2, 3, 3]])
    pixels = np.array([[[1, math.nan, 1, math.inf, 2, 4]]])
    with np.errstate(all="raise"):
        rows = combine(measure_block(labels, pixels, start=(0, 0)).rows)
        values = schema((1, 6), (1, 1), 1).intensities(rows)
    assert np.isnan(values[0]).all()
    np.testing.assert_array_equal(values[1], [math.inf, 1, math.inf, math.nan, math.inf])
    np.testing.assert_array_equal(values[2], [3, 2, 4, 1, 6])


def test_nothing_and_negative_ids() -> None:
    pixels = np.zeros((2, 4, 5), np.uint8)
    rows = measure_block(np.zeros((4, 5), np.uint32), pixels, start=(0, 0)).rows
    assert (len(rows), rows.dtype) == (0, row_dtype(2, np.dtype("u1"), 2))
    table = schema((4, 5), (1, 1), 2)
    assert table.intensities(rows).shape == (0, 10)
    assert {len(c) for c in table.obs(combine(rows)).values()} == {0}
    with pytest.raises(LabelError, match="the labels hold the id -3"):
        measure_block(np.full((4, 5), -3), pixels, start=(0, 0))


def test_what_reaches_the_border() -> None:
    labels = np.zeros((3, 6, 6), np.int16)
    labels[1, 1:3, 1:3], labels[1, 4, 5], labels[0, 2, 4] = 1, 2, 3
    rows = measure_block(labels, labels[None], start=(0, 0, 0)).rows
    found = schema(labels.shape, (1, 1, 1), 1).obs(rows)
    assert found["touches_border"].tolist() == [False, True, True]


def test_physical_places_are_those_of_the_image() -> None:
    labels = np.zeros((6, 8), np.int32)
    labels[2:4, 3:6] = 9
    table = schema((6, 8), (0.5, 0.25), 1).model_copy(update={"translation": (10.0, 20.0)})
    rows = whole(*measure_block(labels, labels[None], start=(0, 0)))
    found = {name: values.tolist() for name, values in table.obs(rows).items()}
    assert found["centroid_y"] == [10 + 2.5 * 0.5]
    assert found["centroid_x"] == [20 + 4 * 0.25]
    # The first pixel's middle is at the translation, so its edge lies half a pixel before.
    assert (found["bbox_y_min"], found["bbox_y_max"]) == ([10 + 1.5 * 0.5], [10 + 3.5 * 0.5])
    assert (found["bbox_x_min"], found["bbox_x_max"]) == ([20 + 2.5 * 0.25], [20 + 5.5 * 0.25])
    assert (found["area"], found["n_pixels"]) == ([6 * 0.125], [6])
    np.testing.assert_array_equal(table.spatial(rows), [[21.0, 11.25]])
