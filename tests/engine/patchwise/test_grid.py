from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cytopave.engine.boxes import Box
from cytopave.engine.patchwise.grid import SIDE, axis, linear, taper
from cytopave.engine.segmenters.cellpose_placed import region

lengths = st.integers(1, 3000)
scales = st.sampled_from([1.0, 30 / 17, 0.5, 30 / 41, 2.5])


@st.composite
def windows(draw: st.DrawFn) -> tuple[int, float, int, int]:
    length = draw(lengths)
    start = draw(st.integers(0, length - 1))
    return length, draw(scales), start, draw(st.integers(start + 1, length))


@given(st.integers(1, 5000))
def test_the_grid_is_the_one_that_cellpose_lays_over_the_whole_image(length: int) -> None:
    transforms = pytest.importorskip("cellpose.transforms")
    before, after, *_ = transforms.get_pad_yx(length, length, min_size=(SIDE, SIDE))
    padded = np.zeros((1, length + before + after, SIDE), np.float32)
    _, rows, *_ = transforms.make_tiles(padded, bsize=SIDE)
    assert axis(length).starts == tuple(int(a) - before for a, _ in rows)


def test_the_taper_is_cellposes() -> None:
    transforms = pytest.importorskip("cellpose.transforms")
    expected = transforms._taper_mask(ly=SIDE, lx=SIDE)
    np.testing.assert_allclose(np.outer(taper(), taper()), expected, rtol=1e-6)


@given(windows())
def test_a_window_gets_all_patches_that_cover_it_and_reads_all_that_they_see(
    case: tuple[int, float, int, int],
) -> None:
    length, scale, start, stop = case
    grid = axis(length, scale)
    span = grid.span(start, stop)
    wanted = range(*span.wanted)
    covering = [
        i for i, s in enumerate(grid.starts) if s < span.wanted[1] and s + SIDE > span.wanted[0]
    ]
    assert list(span.patches) == covering
    assert 0 <= span.read[0] <= start
    assert stop <= span.read[1] <= length
    assert (grid.weights(*span.wanted) > 0).all(), "a pixel without a patch"
    if not grid.resized:
        assert wanted == range(start, stop)


@given(windows())
def test_weights_and_samples_do_not_depend_on_the_window(case: tuple[int, float, int, int]) -> None:
    length, scale, start, stop = case
    grid = axis(length, scale)
    span = grid.span(start, stop)
    whole = grid.weights(0, grid.scaled)
    np.testing.assert_array_equal(grid.weights(*span.wanted), whole[slice(*span.wanted)])
    part, full = (
        linear(length, grid.scaled, *span.inside),
        linear(length, grid.scaled, 0, grid.scaled),
    )
    for name in ("lower", "upper", "weight"):
        np.testing.assert_array_equal(getattr(part, name), getattr(full, name)[slice(*span.inside)])
    assert part.lower.min() >= span.read[0]
    assert part.upper[part.weight > 0].max(initial=0) < span.read[1]


@pytest.mark.parametrize(
    ("source", "target"), [(300, 211), (211, 300), (50, 125), (64, 64), (3, 1)]
)
def test_lines_are_resized_as_opencv_does(source: int, target: int) -> None:
    cv2 = pytest.importorskip("cv2")
    line = np.random.default_rng(0).random((1, source)).astype(np.float32)
    at = linear(source, target, 0, target)
    own = line[:, at.lower] * (1 - at.weight) + line[:, at.upper] * at.weight
    expected = cv2.resize(line, (target, 1), interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(own, expected, atol=1e-5)


def test_the_region_is_what_the_patches_see_within_the_image() -> None:
    shape = (1, 1000, 300)
    window = Box((0, 400, 0), (1, 500, 300))
    got = region(window, shape, rescale=1.0)
    starts = [s for s in axis(1000).starts if s < 500 and s + SIDE > 400]
    assert got == Box((0, starts[0], 0), (1, starts[-1] + SIDE, 300))
    assert region(Box.of(shape), shape, rescale=2.0) == Box.of(shape)
