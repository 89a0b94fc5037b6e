"""The layout of a label pyramid: chunks, shards, units and sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import stores
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.omezarr.pyramid import (
    GROUP_PIXELS,
    UNIT_PIXELS,
    divisor,
    plan_blocks,
    sample_index,
    unit_edges,
    units,
)


@pytest.mark.parametrize(
    ("shape", "tile", "chunk", "unit"),
    [
        # 4 Mpx of tiles are a unit.
        ((8192, 8192), (2048, 2048), (512, 512), (2048, 2048)),
        ((8192, 8192), (1024, 1024), (512, 512), (2048, 2048)),
        # Small tiles share a chunk.
        ((8192, 8192), (256, 256), (512, 512), (2048, 2048)),
        ((8192, 8192), (96, 300), (480, 300), (1920, 1200)),
        # A core with no good divisor is a chunk, up to 2048.
        ((9000, 9000), (1009, 1500), (1009, 500), (2018, 1500)),
        # Beyond that, chunks do not align with cores.
        ((9000, 9000), (2503, 2048), (512, 512), (2560, 2048)),
        # A tile too large for a unit is cut.
        ((20000, 20000), (8192, 8192), (512, 512), (4096, 4096)),
        # One tile for the whole image.
        ((300, 300), (512, 512), (300, 300), (300, 300)),
        ((700, 3000), (1024, 4096), (512, 512), (1024, 3072)),
        # Stacks.
        ((64, 4096, 4096), (32, 1024, 1024), (8, 512, 512), (16, 1024, 1024)),
        ((50, 2048, 2048), (1, 2048, 2048), (1, 512, 512), (1, 2048, 2048)),
    ],
)
def test_plans(
    shape: tuple[int, ...],
    tile: tuple[int, ...],
    chunk: tuple[int, ...],
    unit: tuple[int, ...],
) -> None:
    plan = plan_blocks(shape, tile)
    assert (plan.chunk, plan.unit) == (chunk, unit)


@given(
    shape=st.lists(st.integers(1, 9000), min_size=2, max_size=3),
    tile=st.lists(st.integers(1, 9000), min_size=3, max_size=3),
)
def test_plans_nest(shape: list[int], tile: list[int]) -> None:
    tile = tile[: len(shape)]
    plan = plan_blocks(shape, tile)
    for c, u in zip(plan.chunk, plan.unit, strict=True):
        assert u % c == 0
    assert math.prod(plan.chunk) <= 8 * 4 * 2048 * 2048
    assert math.prod(plan.unit) <= max(UNIT_PIXELS, GROUP_PIXELS, math.prod(plan.chunk))
    cores = [max(min(t, n), c) for n, t, c in zip(shape, tile, plan.chunk, strict=True)]
    for n, t, c, u in zip(shape, tile, plan.chunk, plan.unit, strict=True):
        fits = t % c == 0 or c % t == 0
        if t < n and fits and math.prod(cores) <= UNIT_PIXELS / 2:
            assert u % t == 0  # a unit is made of whole cores


@pytest.mark.parametrize(
    ("length", "target", "want"),
    [(2048, 512, 512), (1500, 512, 500), (600, 512, 600), (1009, 512, 1009), (2503, 512, None)],
)
def test_divisor(length: int, target: int, want: int | None) -> None:
    assert divisor(length, target) == want


@given(
    shape=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    tile=st.tuples(st.integers(1, 60), st.integers(1, 60)),
)
def test_units_partition_the_image(shape: tuple[int, int], tile: tuple[int, int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cytopave.engine.omezarr.pyramid.CHUNK", 4)
        patch.setattr("cytopave.engine.omezarr.pyramid.GROUP_PIXELS", 64)
        plan = plan_blocks(shape, tile)
    edges = unit_edges(shape, plan)
    count = stores.partition_count(shape, units(edges))
    assert (count == 1).all()
    for cuts, unit in zip(edges, plan.unit, strict=True):
        assert all(c % unit == 0 for c in cuts[:-1])


@pytest.mark.parametrize(
    ("fine", "coarse", "shift", "want"),
    [
        (8, 4, 0.0, [0, 2, 4, 6]),
        (9, 5, 0.5, [0, 2, 4, 6, 8]),  # half a pixel rounds down
        (9, 4, 0.0, [0, 2, 4, 6]),
        (9, 3, 1.0, [1, 4, 7]),
        (8, 2, 1.5, [1, 5]),
        (5, 5, 0.0, [0, 1, 2, 3, 4]),
        (10, 4, 0.0, [0, 2, 5, 7]),  # no whole factor
        (4, 2, 99.0, [1, 3]),  # a nonsensical translation
        (1, 1, 0.0, [0]),
    ],
)
def test_sampling(fine: int, coarse: int, shift: float, want: list[int]) -> None:
    assert sample_index(fine, coarse, shift=shift).tolist() == want


@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(-5, 50))
def test_sampling_stays_inside(fine: int, coarse: int, shift: float) -> None:
    coarse = min(fine, coarse)
    index = sample_index(fine, coarse, shift=shift)
    assert len(index) == coarse
    assert index.min() >= 0
    assert index.max() < fine
    assert (np.diff(index) >= 0).all()
