"""Formats that plugins of bioio read; a LIF file is written for the purpose."""

from __future__ import annotations

import builtins
import importlib.metadata
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
from converted import convert_here, level
from lif import write_lif
from nikon import write_nd2

from cytopave.engine.convert import plugins
from cytopave.engine.convert.files import inspect, open_pixels
from cytopave.engine.errors import CorruptError, ImageError, MissingExtraError
from cytopave.engine.omezarr import ngff

if TYPE_CHECKING:
    from pathlib import Path

SIZE = {"t": 2.0, "z": 1.5e-6, "y": 0.3e-6, "x": 0.2e-6}
NAMES = ("Green", "Red", "Gray")


def lif(path: Path) -> dict[str, np.ndarray]:
    images = {
        "Series 1": stores.pixels((2, 3, 4, 50, 61), "uint16"),
        "Series 2": stores.pixels((1, 3, 1, 600, 40), "uint16"),
    }
    write_lif(path, images, pixel_size=SIZE, channels=NAMES)
    return images


def test_all_images_of_a_lif_file(folder: Path) -> None:
    first, second = lif(folder / "a.lif").values()
    images = convert_here(folder / "a.lif")
    assert [i.folder.name for i in images] == ["a-0.zarr", "a-1.zarr"]
    assert [i.axes for i in images] == ["tczyx", "cyx"]
    assert images[0].scale == pytest.approx((2, 1, 1.5, 0.3, 0.2))
    assert images[0].units == ("second", None, "micrometer", "micrometer", "micrometer")
    assert images[0].channels == images[1].channels == NAMES
    np.testing.assert_array_equal(level(images[0]), first)
    np.testing.assert_array_equal(level(images[1]), second[0, :, 0])


def test_an_nd2_file(folder: Path) -> None:
    pixels = stores.pixels((2, 3, 4, 50, 61), "uint16")
    colors = {"DAPI": 0xFF0000, "GFP": 0x00FF00, "Cy5": 0x0000FF}
    write_nd2(folder / "a.nd2", pixels, seconds=5.0, planes_um=1.5, pixel_um=0.325, channels=colors)
    (image,) = convert_here(folder / "a.nd2")
    assert (image.axes, image.channels) == ("tczyx", ("DAPI", "GFP", "Cy5"))
    assert image.scale == pytest.approx((5, 1, 1.5, 0.325, 0.325))
    assert image.units == ("second", None, "micrometer", "micrometer", "micrometer")
    np.testing.assert_array_equal(level(image), pixels)
    omero = ngff.ome_of(ngff.read_attributes(image.folder) or {})["omero"]["channels"]
    assert [c["color"] for c in omero] == ["0000FF", "00FF00", "FF0000"]
    content = (folder / "a.nd2").read_bytes()
    (folder / "b.nd2").write_bytes(content[: len(content) // 2])
    with pytest.raises(ImageError, match=r"b\.nd2 cannot be read, it may be truncated"):
        inspect(folder / "b.nd2")


def test_planes_are_read_one_by_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lif(folder / "a.lif")
    scene = inspect(folder / "a.lif")[0]
    assert scene.block == (1, 1, 1, 50, 61)
    import bioio_lif

    read, original = [], bioio_lif.Reader._get_image_data

    def counted(**given: Any) -> np.ndarray:
        read.append(given["retrieve_indices"])
        return np.asarray(original(**given))

    monkeypatch.setattr(bioio_lif.Reader, "_get_image_data", staticmethod(counted))
    pixels = open_pixels(scene)
    part = pixels.read((slice(1, 2), slice(0, 1), slice(1, 3), slice(0, 50), slice(10, 20)))
    assert part.shape == (1, 1, 2, 50, 10)
    assert sorted(read) == [(1, 0, 1, None, None), (1, 0, 2, None, None)]


@pytest.mark.parametrize("share", [0.001, 0.02, 0.9])
def test_truncated_lif_files(folder: Path, share: float) -> None:
    lif(folder / "a.lif")
    content = (folder / "a.lif").read_bytes()
    (folder / "a.lif").write_bytes(content[: int(share * len(content))])
    with pytest.raises((CorruptError, ImageError), match="truncated") as caught:
        convert_here(folder / "a.lif")
    assert "\n" not in str(caught.value)
    assert {p.name for p in folder.iterdir()} <= {"a.lif", "a-0.zarr"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a.czi", r"without the package bioio-czi \(GPL-3.0, so not among cytopave's own\)"),
        ("a.oib", r"without the package bioio-bioformats \(it needs Java\)"),
        ("a.DV", "without the package bioio-dv: install it"),
    ],
)
def test_what_reads_a_format_is_named(folder: Path, name: str, says: str) -> None:
    (folder / name).write_bytes(b"anything")
    with pytest.raises(MissingExtraError, match=says):
        inspect(folder / name)


def test_without_bioio(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "bioio":
            raise ModuleNotFoundError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    (folder / "a.nd2").write_bytes(b"anything")
    with pytest.raises(MissingExtraError, match=r"bioio-nd2 \(the extra cytopave\[convert\]\)"):
        inspect(folder / "a.nd2")


def test_unknown_formats(folder: Path) -> None:
    (folder / "a.xyz").write_bytes(b"anything")
    with pytest.raises(ImageError, match=r"unknown format \(.xyz\).*bioio-bioformats"):
        inspect(folder / "a.xyz")
    with pytest.raises(ImageError, match="there is no file"):
        inspect(folder / "b.xyz")


def test_what_the_extra_installs_may_be_depended_on() -> None:
    """GPL packages are users' own to add."""
    names = [n for n, (_, about) in plugins.PACKAGES.items() if about == plugins.EXTRA]
    assert sorted(names) == [".lif", ".nd2"]
    required = importlib.metadata.requires("cytopave") or []
    extra = {r.split(">")[0] for r in required if "convert" in r}
    assert extra == {"bioio", "bioio-lif", "bioio-nd2", "imagecodecs"}
