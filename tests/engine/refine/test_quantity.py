"""Lengths and sizes as people give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores

from cytopave.engine.errors import LabelError
from cytopave.engine.omezarr.image import Image, open_image
from cytopave.engine.refine.quantity import Quantity, pixels_of, spacing

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("given", "value", "unit", "power"),
    [
        (50, 50, None, 1),
        ("50", 50, None, 1),
        ("1.5 px", 1.5, None, 1),
        ("2.5um", 2.5, "micrometer", 1),
        ("20 um2", 20, "micrometer", 2),
        ("20µm²", 20, "micrometer", 2),
        ("80 micrometers^3", 80, "micrometer", 3),
        ("1e3nm", 1000, "nanometer", 1),
        ("0.5 mm2", 0.5, "millimeter", 2),
    ],
)
def test_what_is_understood(given: Any, value: float, unit: str | None, power: int) -> None:
    found = Quantity.parse(given)
    assert (found.value, found.unit, found.power) == (value, unit, power)
    assert Quantity.parse(str(found)) == found


@pytest.mark.parametrize("given", ["", "many", "-3", 0, "3 bananas", "4px2", "1.2.3", "inf", True])
def test_what_is_not(given: Any) -> None:
    with pytest.raises(ValueError, match=r"no length or size|units known|without a power"):
        Quantity.parse(given)


@pytest.fixture
def labels(tmp_path: Path) -> Image:
    """A stack whose pixels are 2 x 0.5 x 0.25 micrometers."""
    data = np.zeros((4, 8, 8), np.uint32)
    return open_image(stores.ome_image(tmp_path / "a.zarr", data, scale=(2.0, 0.5, 0.25)))


def test_physical_sizes_become_pixels(labels: Image) -> None:
    assert pixels_of(Quantity.parse("5 um3"), labels) == pytest.approx(20)
    assert pixels_of(Quantity.parse("5e9 nm3"), labels) == pytest.approx(20)
    assert pixels_of(Quantity.parse(7), labels) == 7
    assert spacing(Quantity.parse("3um"), labels) == pytest.approx((2, 0.5, 0.25))
    assert spacing(Quantity.parse("3000nm"), labels) == pytest.approx((2000, 500, 250))
    assert spacing(Quantity.parse(3), labels) == (1, 1, 1)


def test_what_labels_cannot_have(labels: Image, tmp_path: Path) -> None:
    with pytest.raises(LabelError, match=r"no size of objects in stacks.*such as 80um3"):
        pixels_of(Quantity.parse("5um2"), labels)
    with pytest.raises(LabelError, match="no length: give a distance"):
        spacing(Quantity.parse("5um2"), labels)
    stores.plain_array(tmp_path / "b.zarr", np.zeros((8, 8), np.uint8))
    plain = open_image(tmp_path / "b.zarr")
    with pytest.raises(LabelError, match="axis y has no unit: give a number of pixels"):
        spacing(Quantity.parse("5um"), plain)
