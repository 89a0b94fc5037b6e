from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from cytopave.engine import samples
from cytopave.engine.errors import ImageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "kept"
    monkeypatch.setenv("CYTOPAVE_SAMPLES", str(folder))
    samples.package.cache_clear()
    yield folder
    samples.package.cache_clear()


def test_held_out_fields_share_no_pixels_with_training() -> None:
    held_out, training = samples.nuclei_fields("held-out"), samples.nuclei_fields("training")
    assert (len(held_out), len(training)) == (18, 30)
    assert sum(len(np.unique(f.masks)) - 1 for f in held_out) == 753
    assert not {f.image.tobytes() for f in held_out} & {f.image.tobytes() for f in training}
    for field in held_out:
        assert field.image.shape == field.masks.shape
        assert field.image.dtype in (np.uint8, np.uint16)
    assert [f.name for f in held_out] == [f.name for f in samples.nuclei_fields("held-out")]
    assert len({f.name for f in held_out}) == 18


def test_other_samples() -> None:
    stack = samples.stack3d()
    assert stack.image.shape == stack.masks.shape == (31, 61, 57)
    assert len(np.unique(stack.masks)) - 1 == 51
    flat = samples.dsb2018()
    assert flat.image.shape == flat.masks.shape == (512, 512)
    assert samples.colour_nuclei().shape == (3, 1024, 1344)


def field(name: str, pixels: list[list[int]], masks: list[list[int]]) -> samples.Field:
    return samples.Field(name, np.array(pixels, np.uint16), np.array(masks, np.int32))


def test_a_mosaic_scales_each_field_and_numbers_its_objects_on() -> None:
    one = field("one", [[0, 100], [50, 100]], [[0, 7], [3, 7]])
    two = field("two", [[10, 10], [10, 11]], [[1, 1], [1, 4]])
    image, masks = samples.mosaic([one, two], 2, 2, side=2)
    assert masks.tolist() == [[0, 2, 3, 3], [1, 2, 3, 4], [0, 6, 7, 7], [5, 6, 7, 8]]
    assert image.dtype == np.uint16
    assert masks.dtype == np.uint32
    assert image[0, :2].tolist() == [0, 65535]
    np.testing.assert_array_equal(image[:2], image[2:])


def test_a_mosaic_takes_the_middle() -> None:
    ramp = np.arange(25, dtype=np.uint16).reshape(5, 5)
    _, masks = samples.mosaic([samples.Field("ramp", ramp, ramp.astype(np.int32))], 1, 1, side=3)
    assert masks.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_field_smaller_than_its_place_is_refused() -> None:
    with pytest.raises(ImageError, match="take side=2 or less"):
        samples.mosaic([field("tiny", [[0, 1], [2, 3]], [[0, 0], [0, 1]])], 1, 1, side=3)


def test_a_damaged_archive_is_fetched_again(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CYTOPAVE_SAMPLES")
    good = samples.package("stardist")
    samples.package.cache_clear()
    monkeypatch.setenv("CYTOPAVE_SAMPLES", str(empty_folder))
    empty_folder.mkdir()
    shutil.copy(good, empty_folder / good.name)
    assert samples.package("stardist") == empty_folder / good.name
    (empty_folder / good.name).write_bytes(good.read_bytes()[:1000])
    samples.package.cache_clear()
    monkeypatch.setenv("PIP_FIND_LINKS", str(good.parent))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert samples.package("stardist").read_bytes() == good.read_bytes()


def test_with_no_internet_the_message_names_the_remedy(
    empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(empty_folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ImageError, match=r"stardist==0.9.2.*CYTOPAVE_SAMPLES"):
        samples.package("stardist")
    assert list(empty_folder.iterdir()) == []
