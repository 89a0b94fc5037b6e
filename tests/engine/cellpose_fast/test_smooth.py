from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from cytopave.engine.cellpose_fast.passes import planes_at_once, reach
from cytopave.engine.cellpose_fast.smooth import smoothed


@given(st.data())
def test_it_is_scipys_filter_in_every_window(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 40))
    sigma = data.draw(st.sampled_from([0.4, 1.0, 2.3, 6.0]))
    start = data.draw(st.integers(0, length - 1))
    stop = data.draw(st.integers(start + 1, length))
    values = np.random.default_rng(length).normal(0, 1, (3, length, 2)).astype("f4")
    held = max(0, start - reach(sigma)), min(length, stop + reach(sigma))
    found, whole = (
        smoothed(
            torch.from_numpy(values[:, slice(*inside)]),
            1,
            sigma,
            length=length,
            held=inside,
            wanted=wanted,
        ).numpy()
        for inside, wanted in ((held, (start, stop)), ((0, length), (0, length)))
    )
    np.testing.assert_array_equal(found, whole[:, start:stop])
    expected = ndimage.gaussian_filter(values, [0, sigma, 0])
    np.testing.assert_allclose(whole, expected, atol=1e-5)


@given(st.integers(1, 400), st.sampled_from([1, 8, 32, 128]))
def test_planes_fill_batches_without_taking_much_memory(patches: int, batch: int) -> None:
    planes = planes_at_once(patches, batch)
    assert planes == 1 or planes * patches <= max(256, batch)
    one = -(-patches // batch)
    assert -(-planes * patches // batch) <= planes * one
