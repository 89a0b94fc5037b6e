"""Histograms agree with numpy and skimage where they are exact, and do not depend on chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stores
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from skimage.filters import threshold_otsu

from cytopave.engine import intensity
from cytopave.engine.errors import CorruptError, ImageError
from cytopave.engine.intensity import Histogram, coarse_level, histogram, sample_boxes
from cytopave.engine.omezarr.image import open_image


def histograms(path: Path, data: np.ndarray, axes: str | None = None, **kwargs: Any) -> Any:
    stores.plain_array(path, data, **kwargs)
    image = open_image(path, axes=axes)
    return histogram(image, channels=image.channel_indices())


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", ">u2", "int16", "uint32", "int64"])
def test_integers_are_exact(tmp_path: Path, dtype: str) -> None:
    data = stores.pixels((64, 50), "int8" if np.dtype(dtype).kind == "i" else "uint8")
    data = data.astype(np.dtype(dtype).newbyteorder("=")) * (90 if data.dtype != dtype else 1)
    (found,) = histograms(tmp_path / "a.zarr", data, chunks=(16, 16), dtype=dtype)
    assert found.exact
    assert (found.minimum, found.maximum) == (data.min(), data.max())
    for q in (0, 0.1, 1, 33, 50, 99, 99.9, 100):
        assert found.percentile(q) == pytest.approx(np.percentile(data, q), abs=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "uint64"])
def test_others_are_right_to_a_bin(tmp_path: Path, dtype: str) -> None:
    data = stores.pixels((64, 50), dtype)
    (found,) = histograms(tmp_path / "a.zarr", data, chunks=(16, 16))
    assert not found.exact
    assert found.minimum == float(data.min())
    assert found.maximum == pytest.approx(float(data.max()))
    for q in (0, 1, 33, 50, 99, 100):
        want = np.percentile(data.astype("float64"), q)
        assert abs(found.percentile(q) - want) <= found.width


def test_nan_and_infinity_do_not_count(tmp_path: Path) -> None:
    data = np.linspace(0, 1, 1000, dtype="float32").reshape(40, 25)
    data[::2] = [[np.nan] * 10 + [np.inf] * 10 + [-np.inf] * 5]
    (found,) = histograms(tmp_path / "a.zarr", data)
    finite = data[np.isfinite(data)]
    assert found.counts.sum() == finite.size == 500
    assert found.percentile(50) == pytest.approx(np.percentile(finite, 50), abs=1e-5)


def test_nothing_finite_is_refused(tmp_path: Path) -> None:
    data = np.zeros((2, 8, 8), "float32")
    data[1] = np.nan
    with pytest.raises(ImageError, match=r"channel 1 of .*a\.zarr has no finite pixel"):
        histograms(tmp_path / "a.zarr", data, "cyx")


def test_one_histogram_a_channel(tmp_path: Path) -> None:
    data = np.stack([np.full((8, 8), 3), np.full((8, 8), 5)]).astype("u1")
    stores.plain_array(tmp_path / "a.zarr", data)
    image = open_image(tmp_path / "a.zarr", axes="cyx")
    assert [h.maximum for h in histogram(image, channels=(1, 0))] == [5, 3]
    assert [h.maximum for h in histogram(image, channels=())] == [3, 5]


def test_time_points(tmp_path: Path) -> None:
    data = np.arange(3, dtype="u1")[:, None, None] * np.ones((3, 8, 8), "u1")
    stores.plain_array(tmp_path / "a.zarr", data, chunks=(2, 8, 8))
    image = open_image(tmp_path / "a.zarr", axes="tyx")
    (all_times,) = histogram(image, channels=())
    assert all_times.counts[:3].tolist() == [64, 64, 64]
    (last,) = histogram(image, channels=(), time=2)
    assert last.counts[:3].tolist() == [0, 0, 64]


class TestOtsu:
    @pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
    def test_is_that_of_the_pixels(self, tmp_path: Path, dtype: str) -> None:
        rng = np.random.default_rng(0)
        data = np.where(
            rng.random((80, 80)) < 0.3, rng.normal(180, 9, (80, 80)), rng.normal(60, 9, (80, 80))
        ).astype(dtype)
        (found,) = histograms(tmp_path / "a.zarr", data)
        tolerance = 1.0 if dtype == "float32" else 0.0
        assert abs(found.otsu() - threshold_otsu(data, nbins=65536)) <= tolerance

    @pytest.mark.parametrize("dtype", ["uint8", "float32", "int32"])
    def test_of_one_value_is_that_value(self, tmp_path: Path, dtype: str) -> None:
        (found,) = histograms(tmp_path / "a.zarr", np.full((8, 8), 7, dtype))
        assert found.otsu() == found.percentile(50) == found.minimum == found.maximum == 7

    def test_of_booleans_separates_them(self, tmp_path: Path) -> None:
        (found,) = histograms(tmp_path / "a.zarr", stores.pixels((32, 32), "bool"))
        assert 0 <= found.otsu() < 1


class TestSampling:
    def test_the_smallest_level_with_enough_pixels(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stores.ome_image(tmp_path / "i.zarr", stores.pixels((2, 64, 64)), axes="cyx", n_levels=4)
        image = open_image(tmp_path / "i.zarr")
        assert coarse_level(image).level == 0  # none has 4 million
        monkeypatch.setattr(intensity, "ENOUGH_PIXELS", 32 * 32)
        assert coarse_level(image).level == 1
        monkeypatch.setattr(intensity, "ENOUGH_PIXELS", 16 * 16 - 1)
        assert coarse_level(image).level == 2
        assert coarse_level(image.at_level(3)).level == 3
        (found,) = histogram(image, channels=(1,))
        assert found.counts.sum() == 16 * 16

    def test_a_large_image_is_sampled_evenly(self, tmp_path: Path) -> None:
        zarr.create_array(
            str(tmp_path / "a.zarr"), shape=(65536, 65536), chunks=(1024, 1024), dtype="u2"
        )
        image = open_image(tmp_path / "a.zarr")
        boxes = sample_boxes(image, n_channels=1, time=None)
        assert len(boxes) == len(set(boxes)) == 64
        assert boxes == sample_boxes(image, n_channels=1, time=None)
        centres = np.array([b.start for _, b in boxes]) // 1024
        counts = np.histogram2d(centres[:, 0], centres[:, 1], bins=4, range=[[0, 64]] * 2)[0]
        assert counts.min() >= 2  # 4 on average in each of 16 parts
        assert counts.max() <= 6
        assert min(len(set(c)) for c in centres.T) > 32  # not the same few columns

    def test_bytes_are_bounded(self, tmp_path: Path) -> None:
        zarr.create_array(
            str(tmp_path / "a.zarr"), shape=(9, 40000, 40000), chunks=(1, 4096, 4096), dtype="f4"
        )
        image = open_image(tmp_path / "a.zarr", axes="cyx")
        boxes = sample_boxes(image, n_channels=1, time=None)
        assert len(boxes) == 2
        assert len(sample_boxes(image, n_channels=9, time=None)) == 1

    def test_small_chunks_make_up_enough_pixels(self, tmp_path: Path) -> None:
        zarr.create_array(
            str(tmp_path / "a.zarr"), shape=(9, 8192, 8192), chunks=(1, 128, 128), dtype="u2"
        )
        image = open_image(tmp_path / "a.zarr", axes="tyx")
        boxes = sample_boxes(image, n_channels=1, time=None)
        assert len(boxes) == intensity.ENOUGH_PIXELS // 128**2 == 256
        assert {t for t, _ in boxes} == set(range(9))
        assert {t for t, _ in sample_boxes(image, n_channels=1, time=4)} == {4}

    def test_a_sample_stands_for_the_image(self, tmp_path: Path) -> None:
        y, x = np.mgrid[:1024, :1024]
        data = (20000 + 10 * y + 5 * x + stores.pixels((1024, 1024)) % 100).astype("u2")
        stores.plain_array(tmp_path / "a.zarr", data, chunks=(16, 16))
        image = open_image(tmp_path / "a.zarr")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(intensity, "ENOUGH_PIXELS", 0)
            (found,) = histogram(image, channels=())
        assert found.counts.sum() == 64 * 16 * 16
        for q in (1, 50, 99):
            assert abs(found.percentile(q) - np.percentile(data, q)) < 0.05 * np.ptp(data)


def test_does_not_depend_on_chunks(tmp_path: Path) -> None:
    data = stores.pixels((3, 50, 40), "float32")
    first = histograms(tmp_path / "a.zarr", data, chunks=(1, 16, 16))[0]
    second = histograms(tmp_path / "b.zarr", data, chunks=(3, 50, 7))[0]
    np.testing.assert_array_equal(first.counts, second.counts)


def test_damage_is_named(tmp_path: Path) -> None:
    stores.plain_array(tmp_path / "a.zarr", stores.pixels((32, 32)))
    file = stores.chunk_files(tmp_path / "a.zarr")[0]
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptError, match="truncated or damaged"):
        histogram(open_image(tmp_path / "a.zarr"), channels=())


def test_percentiles_beyond_100_are_a_bug() -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        Histogram(np.array([1]), 0.0, 1.0, exact=True).percentile(101)


@settings(max_examples=100, deadline=None)
@given(
    counts=hnp.arrays(np.int64, st.integers(1, 20), elements=st.integers(0, 5)),
    q=st.floats(0, 100),
)
def test_percentiles_are_numpys(counts: np.ndarray, q: float) -> None:
    counts[0] += 1
    found = Histogram(counts, -3.0, 1.0, exact=True)
    values = np.repeat(np.arange(len(counts)) - 3.0, counts)
    assert found.percentile(q) == pytest.approx(np.percentile(values, q))
