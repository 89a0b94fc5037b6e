"""TIFF files as microscopes, ImageJ and tifffile write them: every pixel, and what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import stores
import tifffile
from converted import conversions, convert_here, level, means

from cytopave.engine.convert.files import inspect
from cytopave.engine.errors import CorruptError, ImageError
from cytopave.engine.omezarr import ngff

if TYPE_CHECKING:
    from pathlib import Path

UM = "micrometer"
SIZES: dict[str, Any] = {
    "PhysicalSizeX": 0.325, "PhysicalSizeXUnit": "µm",
    "PhysicalSizeY": 650, "PhysicalSizeYUnit": "nm",
    "PhysicalSizeZ": 1.5, "PhysicalSizeZUnit": "µm",
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byteorder": ">"},
        {"bigtiff": True, "tile": (32, 16)},
        {"compression": "zlib", "predictor": True, "tile": (16, 32), "byteorder": ">"},
        {"compression": "lzw", "rowsperstrip": 7},
        {"contiguous": False, "rowsperstrip": 11},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_time_series_of_stacks_with_channels(
    folder: Path, options: dict[str, Any], dtype: str
) -> None:
    pixels = stores.pixels((2, 3, 4, 50, 61), dtype)
    file = folder / "scan.ome.tif"
    opening = {k: options[k] for k in ("byteorder", "bigtiff") if k in options}
    writing = {k: v for k, v in options.items() if k not in opening}
    named = {"Name": ["DAPI", "GFP", "Cy5"], "Color": [65535, 16711935, -16776961]}
    tifffile.imwrite(
        file,
        pixels,
        photometric="minisblack",
        metadata={
            "axes": "TCZYX", "TimeIncrement": 2.5, "TimeIncrementUnit": "min",
            "Channel": named, **SIZES,
        },
        **opening,
        **writing,
    )  # fmt: skip
    (image,) = convert_here(file)
    assert image.url == str(folder / "scan.zarr")
    assert (image.axes, image.dtype, image.version) == ("tczyx", dtype, "0.5")
    assert image.scale == pytest.approx((2.5, 1, 1.5, 0.65, 0.325), rel=1e-12)
    assert image.units == ("minute", None, UM, UM, UM)
    assert image.channels == ("DAPI", "GFP", "Cy5")
    np.testing.assert_array_equal(level(image), pixels)
    omero = ngff.ome_of(ngff.read_attributes(image.folder) or {})["omero"]["channels"]
    assert [c["color"] for c in omero] == ["0000FF", "00FF00", "FF0000"]
    windows = [(c["window"]["start"], c["window"]["end"]) for c in omero]
    assert windows == [(p.min(), p.max()) for p in pixels.swapaxes(0, 1)]


def test_a_pyramid_of_means(folder: Path) -> None:
    pixels = stores.pixels((2, 700, 1113), "uint8")
    with tifffile.TiffWriter(folder / "slide.ome.tif") as tif:
        wrong = np.zeros((2, 350, 557), np.uint8)  # of another mean than ours: it is not taken
        options: dict[str, Any] = {"photometric": "minisblack", "tile": (128, 128)}
        tif.write(pixels, subifds=1, metadata={"axes": "CYX", **SIZES}, **options)
        tif.write(wrong, subfiletype=1, **options)
    (image,) = convert_here(folder / "slide.ome.tif")
    assert [v.shape for v in image.levels] == [(2, 700, 1113), (2, 350, 557), (2, 175, 279)]
    expected = pixels
    for k in range(3):
        np.testing.assert_array_equal(level(image, k), expected)
        factor, shift = 2**k, (2**k - 1) / 2
        assert image.levels[k].scale == pytest.approx((1, 0.65 * factor, 0.325 * factor))
        assert image.levels[k].translation == pytest.approx((0, 0.65 * shift, 0.325 * shift))
        expected = means(expected)


@pytest.mark.parametrize("span", [1024, 2048])
def test_large_images_are_read_part_by_part(
    folder: Path, span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts, units and levels that are made of coarser ones: the same pixels as all at once."""
    monkeypatch.setattr("cytopave.engine.convert.conversion.SPANS", (span,))
    monkeypatch.setattr("cytopave.engine.convert.conversion.OVERVIEW", 100)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 2**16, (2309, 1505), dtype=np.uint16)
    tifffile.imwrite(folder / "a.tif", pixels, tile=(256, 256), compression="zlib")
    (conversion,) = conversions(folder / "a.tif")
    assert len(conversion.parts) == (6 if span == 1024 else 2)
    assert conversion.direct == (2 if span == 1024 else 3) < len(conversion.levels)
    (image,) = convert_here(folder / "a.tif")
    expected = pixels
    for k in range(len(image.levels)):
        np.testing.assert_array_equal(level(image, k), expected)
        expected = means(expected)


def test_labels_keep_their_ids(folder: Path) -> None:
    pixels = stores.pixels((900, 700), "int32")
    tifffile.imwrite(folder / "ids.tif", pixels)
    (image,) = convert_here(folder / "ids.tif", labels=True)
    np.testing.assert_array_equal(level(image, 1), pixels[::2, ::2])
    multiscale = ngff.ome_of(ngff.read_attributes(image.folder) or {})["multiscales"][0]
    assert multiscale["type"] == "nearest"


@pytest.mark.parametrize("planar", ["contig", "separate"])
@pytest.mark.parametrize("compression", [None, "jpeg"])
def test_rgb_becomes_channels(folder: Path, planar: str, compression: str | None) -> None:
    pixels = stores.pixels((3, 64, 96), "uint8")
    tifffile.imwrite(
        folder / "rgb.tif",
        pixels if planar == "separate" else np.moveaxis(pixels, 0, -1),
        photometric="rgb",
        planarconfig=planar,
        tile=(32, 32),
        compression=compression,
        compressionargs={"level": 100, "lossless": True} if compression else None,
    )
    (image,) = convert_here(folder / "rgb.tif")
    assert (image.axes, image.channels) == ("cyx", ("Red", "Green", "Blue"))
    stored = tifffile.imread(folder / "rgb.tif")  # JPEG need not give back what was written
    np.testing.assert_array_equal(
        level(image), stored if planar == "separate" else np.moveaxis(stored, -1, 0)
    )
    omero = ngff.ome_of(ngff.read_attributes(image.folder) or {})["omero"]["channels"]
    assert [c["color"] for c in omero] == ["FF0000", "00FF00", "0000FF"]
    assert {(c["window"]["start"], c["window"]["end"]) for c in omero} == {(0, 255)}


def test_rgb_time_series(folder: Path) -> None:
    pixels = stores.pixels((3, 40, 50, 3), "uint8")
    tifffile.imwrite(folder / "t.ome.tif", pixels, photometric="rgb", metadata={"axes": "TYXS"})
    (image,) = convert_here(folder / "t.ome.tif")
    assert image.axes == "tcyx"
    np.testing.assert_array_equal(level(image), np.moveaxis(pixels, -1, 1))


def test_several_images_in_a_file(folder: Path) -> None:
    first, second = stores.pixels((3, 40, 50), "uint16"), stores.pixels((70, 30), "uint8")
    with tifffile.TiffWriter(folder / "many.ome.tif") as tif:
        tif.write(first, photometric="minisblack", metadata={"axes": "ZYX", "Name": "stack"})
        tif.write(second, metadata={"axes": "YX", "Name": "overview of it", **SIZES})
    images = convert_here(folder / "many.ome.tif")
    assert [i.folder.name for i in images] == ["many-0.zarr", "many-1.zarr"]
    np.testing.assert_array_equal(level(images[0]), first)
    np.testing.assert_array_equal(level(images[1]), second)
    assert images[1].scale == pytest.approx((0.65, 0.325))
    out = folder / "one"
    for chosen in (1, "1", "overview of it"):
        (only,) = conversions(folder / "many.ome.tif", output=out, scene=chosen)
        assert (only.store, only.scene.name) == (out / "many-1.zarr", "overview of it")
    with pytest.raises(ImageError, match=r"no image '2' in .*0 \(stack\), 1 \(overview of it\)"):
        conversions(folder / "many.ome.tif", scene="2")


def test_an_imagej_hyperstack(folder: Path) -> None:
    pixels = stores.pixels((2, 4, 3, 40, 50), "uint16")
    tifffile.imwrite(
        folder / "ij.tif",
        pixels,
        imagej=True,
        resolution=(1 / 0.3, 1 / 0.3),
        metadata={"axes": "TZCYX", "spacing": 2.5, "unit": "um", "finterval": 3.0},
    )
    (image,) = convert_here(folder / "ij.tif")
    np.testing.assert_array_equal(level(image), pixels.swapaxes(1, 2))
    assert image.scale[2:] == (2.5, 0.3, 0.3)
    assert image.units[2:] == (UM, UM, UM)


def test_files_that_belong_together(folder: Path) -> None:
    """One image in two files, as the first one's OME-XML says: either of them is the whole."""
    pixels = stores.pixels((2, 40, 50), "uint16")
    write_set(folder, pixels)
    for name in ("a.ome.tif", "b.ome.tif"):
        (image,) = convert_here(folder / name, output=folder / name[0])
        np.testing.assert_array_equal(level(image), pixels)
    assert len(conversions(folder)) == 1
    (folder / "b.ome.tif").unlink()
    with pytest.raises(ImageError, match=r"others are missing: put all of them into its folder"):
        inspect(folder / "a.ome.tif")


def write_set(folder: Path, pixels: np.ndarray) -> None:
    uuids = {
        name: f"urn:uuid:{i}0000000-0000-0000-0000-000000000000" for i, name in enumerate("ab")
    }
    blocks = "".join(
        f'<TiffData FirstZ="{z}" IFD="0" PlaneCount="1">'
        f'<UUID FileName="{name}.ome.tif">{uuid}</UUID></TiffData>'
        for z, (name, uuid) in enumerate(uuids.items())
    )
    for name, plane in zip(uuids, pixels, strict=True):
        xml = (
            '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
            f'UUID="{uuids[name]}"><Image ID="Image:0"><Pixels ID="Pixels:0" '
            'DimensionOrder="XYZCT" Type="uint16" SizeX="50" SizeY="40" SizeZ="2" SizeC="1" '
            f'SizeT="1"><Channel ID="Channel:0:0" SamplesPerPixel="1"/>{blocks}</Pixels>'
            "</Image></OME>"
        )
        tifffile.imwrite(folder / f"{name}.ome.tif", plane, description=xml, metadata=None)


@pytest.mark.parametrize(
    ("resolution", "unit", "size"),
    [((20000, 10000), "CENTIMETER", (1.0, 0.5)), ((72, 72), "INCH", None), ((1, 1), "NONE", None)],
)
def test_resolutions_of_plain_files(
    folder: Path, resolution: Any, unit: str, size: tuple[float, float] | None
) -> None:
    """What is meant for printers says nothing about a microscope's pixels."""
    tifffile.imwrite(
        folder / "a.tif", stores.pixels((30, 40), "uint8"), resolution=resolution,
        resolutionunit=unit,
    )  # fmt: skip
    (conversion,) = conversions(folder / "a.tif")
    if size:
        assert (conversion.scale, conversion.units, conversion.notes) == (size, (UM, UM), ())
    else:
        assert (conversion.scale, conversion.units) == ((1.0, 1.0), (None, None))
        assert "does not say the pixel size along y, x" in conversion.notes[0]
    (given,) = conversions(folder / "a.tif", pixel_size=(0.5, 0.25))
    assert (given.scale, given.units, given.notes) == ((0.5, 0.25), (UM, UM), ())


def test_pages_without_a_meaning_are_asked_for(folder: Path) -> None:
    pixels = stores.pixels((5, 30, 40), "uint16")
    tifffile.imwrite(folder / "a.tif", pixels, photometric="minisblack", metadata=None)
    with pytest.raises(ImageError, match=r"does not say what its pages are .*--axes, such as zyx"):
        inspect(folder / "a.tif")
    (image,) = convert_here(folder / "a.tif", axes="tyx")
    assert image.axes == "tyx"
    np.testing.assert_array_equal(level(image), pixels)
    with pytest.raises(ImageError, match=r"has 3 axes .* names 2"):
        inspect(folder / "a.tif", axes="yx")


def test_one_named_channel_keeps_its_name(folder: Path) -> None:
    pixels = stores.pixels((30, 40), "uint16")
    metadata = {"axes": "CYX", "Channel": {"Name": ["DAPI"]}}
    tifffile.imwrite(folder / "a.ome.tif", pixels[None], metadata=metadata)
    (image,) = convert_here(folder / "a.ome.tif")
    assert (image.axes, image.channels, image.shape) == ("cyx", ("DAPI",), (1, 30, 40))


def test_bits(folder: Path) -> None:
    pixels = stores.pixels((30, 41), "bool")
    tifffile.imwrite(folder / "a.tif", pixels, photometric="minisblack")
    (image,) = convert_here(folder / "a.tif")
    np.testing.assert_array_equal(level(image), pixels)


def test_complex_numbers_are_no_pixels(folder: Path) -> None:
    tifffile.imwrite(folder / "a.tif", np.zeros((8, 8), np.complex64))
    with pytest.raises(ImageError, match="complex64 values: only integers, floats and booleans"):
        inspect(folder / "a.tif")


@pytest.mark.parametrize("options", [{}, {"tile": (32, 32), "compression": "zlib"}])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_truncated_files(folder: Path, options: dict[str, Any], share: float) -> None:
    path = folder / "a.ome.tif"
    pixels = stores.pixels((3, 120, 130), "uint16")
    tifffile.imwrite(path, pixels, photometric="minisblack", metadata={"axes": "ZYX"}, **options)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises((CorruptError, ImageError), match="truncated") as caught:
        inspect(path)
    assert "\n" not in str(caught.value)


def test_damaged_pixels_leave_nothing(folder: Path) -> None:
    path = folder / "a.tif"
    tifffile.imwrite(path, stores.pixels((128, 128), "uint16"), tile=(64, 64), compression="zlib")
    with tifffile.TiffFile(path) as tif:
        place = tif.pages[0].dataoffsets[2]
    content = bytearray(path.read_bytes())
    content[place : place + 400] = b"\xff" * 400
    path.write_bytes(content)
    with pytest.raises(CorruptError, match=r"a\.tif is truncated or damaged"):
        convert_here(path)
    assert [p.name for p in folder.iterdir()] == ["a.tif"]


@pytest.mark.parametrize("content", [b"", b"no image", b"II*\0" + b"\xff" * 64])
def test_files_that_are_no_tiff(folder: Path, content: bytes) -> None:
    (folder / "a.tif").write_bytes(content)
    with pytest.raises(ImageError, match=r"is no TIFF file, or a truncated one"):
        inspect(folder / "a.tif")
